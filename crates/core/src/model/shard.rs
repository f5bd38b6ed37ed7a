//! Reader for a single weight file (safetensors or GGUF), which parses the header and reads tensors at byte offsets.

use std::collections::BTreeMap;
use std::fs::{File, Metadata as FileMetadata};
use std::io::{ErrorKind, Read};
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use safetensors::tensor::Metadata;

use super::gguf_backbone;
use super::resident_weights::{ElementEncoding, TensorInfo};
use crate::error::{Error, Result};
use crate::files::gguf::{Gguf, is_gguf};
use crate::files::regular;
use crate::files::stamp::Stamp;

/// Maximum header size in bytes, as in the safetensors library.
const MAX_HEADER: u64 = 100_000_000;

/// File length, modification time, and metadata that user code cannot forge, such as the status change time.
type FileVersion = (u64, Option<SystemTime>, Option<Stamp>);

/// Open weight file with its parsed header.
pub(super) struct Shard {
    pub(super) path: PathBuf,
    /// Tensors, keyed by Hugging Face name.
    pub(super) tensors: BTreeMap<String, TensorInfo>,
    file: File,
    /// Version of the file when it was opened.
    opened: FileVersion,
}

impl Shard {
    pub(super) fn open(path: &Path) -> Result<Self> {
        let mut file = regular::open(path)?;
        let opened = file_version(&file.metadata().map_err(|error| Error::io("read", path, &error))?);
        let tensors = match is_gguf(path) {
            true => gguf_backbone::read_tensors(&Gguf::read(path, &mut file)?)?,
            false => Self::read_safetensors_header(path, &mut file, opened.0)?,
        };
        Ok(Self { path: path.to_path_buf(), tensors, file, opened })
    }

    /// Parses the header of a safetensors file that is `file_bytes` bytes long.
    fn read_safetensors_header(path: &Path, file: &mut File, file_bytes: u64) -> Result<BTreeMap<String, TensorInfo>> {
        let mut length = [0; 8];
        file.read_exact(&mut length).map_err(|error| read_error(&error, file_bytes, path))?;
        let length = u64::from_le_bytes(length);
        if length > MAX_HEADER || length + 8 > file_bytes {
            return Err(damaged_file_error(
                format!("a header of {length} bytes in a file of {file_bytes} bytes"),
                path,
            ));
        }
        let mut header = vec![0; length as usize];
        file.read_exact(&mut header).map_err(|error| read_error(&error, file_bytes, path))?;
        let metadata: Metadata = serde_json::from_slice(&header)
            .map_err(|error| damaged_file_error(format!("{error} ({file_bytes} bytes)"), path))?;
        if metadata.data_len() as u64 != file_bytes - 8 - length {
            let found = file_bytes - 8 - length;
            let expected = metadata.data_len();
            return Err(damaged_file_error(format!("{found} bytes of tensors instead of {expected}"), path));
        }
        Ok(metadata
            .tensors()
            .into_iter()
            .map(|(name, tensor)| {
                (
                    name,
                    TensorInfo {
                        encoding: ElementEncoding::Plain(tensor.dtype),
                        shape: tensor.shape.clone(),
                        interleaved: None,
                        offset_by_one: false,
                        start: 8 + length + tensor.data_offsets.0 as u64,
                        bytes: (tensor.data_offsets.1 - tensor.data_offsets.0) as u64,
                    },
                )
            })
            .collect())
    }

    /// Returns the file and tensor name for error messages.
    pub(super) fn location(&self, tensor: &str) -> String {
        format!("{}, tensor {tensor}", self.path.display())
    }

    /// Fills `buffer` with the stored bytes of a tensor, starting at `offset` in the tensor. Several threads can read
    /// at once.
    pub(super) fn read(&self, tensor: &str, info: &TensorInfo, offset: usize, buffer: &mut [u8]) -> Result<()> {
        let position = info.start + offset as u64;
        read_exact_at(&self.file, buffer, position).map_err(|error| match error.kind() {
            ErrorKind::UnexpectedEof => Error::bad_input("a weight file was truncated while it was read")
                .at(self.location(tensor))
                .expected(format!("{} bytes", info.bytes))
                .found("the end of the file")
                .hint("do not change the weights during a run; download the file again"),
            _ => Error::io("read", &self.path, &error),
        })
    }

    /// Fails if the file has changed since it was opened, because the weights may come from two versions.
    pub(super) fn check_unchanged(&self) -> Result<()> {
        let now = file_version(&self.file.metadata().map_err(|error| Error::io("read", &self.path, &error))?);
        if now == self.opened {
            return Ok(());
        }
        Err(Error::bad_input("a weight file changed after it was opened")
            .at(self.path.display())
            .expected(format!("the unmodified file ({} bytes)", self.opened.0))
            .found(format!("a modified file ({} bytes)", now.0))
            .hint("do not change the weights during a run; download the file again"))
    }
}

/// Creates the error for a failure to read the header. The file is `file_bytes` bytes long.
fn read_error(error: &std::io::Error, file_bytes: u64, path: &Path) -> Error {
    match error.kind() {
        ErrorKind::UnexpectedEof => damaged_file_error(format!("{file_bytes} bytes"), path),
        _ => Error::io("read", path, error),
    }
}

fn damaged_file_error(found: String, path: &Path) -> Error {
    Error::bad_input("a weight file is truncated or damaged")
        .at(path.display())
        .expected("a valid safetensors header, followed by exactly the bytes that it describes")
        .found(found)
        .hint("download the file again")
}

fn file_version(metadata: &FileMetadata) -> FileVersion {
    (metadata.len(), metadata.modified().ok(), Stamp::from_metadata(metadata))
}

#[cfg(unix)]
fn read_exact_at(file: &File, bytes: &mut [u8], position: u64) -> std::io::Result<()> {
    std::os::unix::fs::FileExt::read_exact_at(file, bytes, position)
}

#[cfg(windows)]
fn read_exact_at(file: &File, mut bytes: &mut [u8], mut position: u64) -> std::io::Result<()> {
    while !bytes.is_empty() {
        let count = std::os::windows::fs::FileExt::seek_read(file, bytes, position)?;
        if count == 0 {
            return Err(ErrorKind::UnexpectedEof.into());
        }
        (bytes, position) = (&mut bytes[count..], position + count as u64);
    }
    Ok(())
}
