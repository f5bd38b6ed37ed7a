//! Validated names of commits, files and blobs. They come from the network and become parts of paths. Only file names
//! can contain path separators.

use std::fmt;
use std::path::PathBuf;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::sha256;
use serde::{Deserialize, Serialize};

/// Defines a string type whose values are validated on construction and deserialization.
macro_rules! checked {
    ($(#[$about:meta])* $name:ident, $check:expr) => {
        $(#[$about])*
        #[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
        #[serde(try_from = "String", into = "String")]
        pub struct $name(String);

        impl $name {
            /// Validates a string.
            ///
            /// # Errors
            /// Fails if the string is not valid for this type.
            pub fn new(text: &str) -> Result<Self> {
                let check: fn(&str) -> Result<String> = $check;
                check(text).map(Self)
            }

            pub fn as_str(&self) -> &str {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str(&self.0)
            }
        }

        impl TryFrom<String> for $name {
            type Error = String;

            fn try_from(text: String) -> std::result::Result<Self, String> {
                Self::new(&text).map_err(|error| error.one_line())
            }
        }

        impl From<$name> for String {
            fn from(name: $name) -> Self {
                name.0
            }
        }
    };
}

checked!(
    /// Full hash of a commit. Unlike a branch, it always refers to the same files.
    Commit,
    |text| validate("commit", "40 digits of 0-9 and a-f", text, parse_hex(text, 40).filter(|digits| digits == text))
);

checked!(
    /// SHA-256 of a file in lowercase hexadecimal.
    ContentHash,
    |text| validate("SHA-256", "64 hexadecimal digits", text, parse_hex(text, 64))
);

checked!(
    /// Name of a blob in the cache. This is the Hub's ETag, i.e. the SHA-256 or the Git hash. Mirrors may send other
    /// values. The name is always a single path component without an extension, because auxiliary files of the cache
    /// have extensions.
    BlobName,
    |text| {
        let good = !text.is_empty() && text.len() <= 128 && text.bytes().all(|byte| byte.is_ascii_alphanumeric() || matches!(byte, b'-' | b'_'));
        let what = "file name in the cache";
        let expected = "letters, digits, `-` and `_`, at most 128";
        validate(what, expected, text, good.then(|| text.to_owned()))
    }
);

/// Returns the string in `valid`, or the error for an invalid `text` if `valid` is `None`.
fn validate(what: &str, expected: &str, text: &str, valid: Option<String>) -> Result<String> {
    valid.ok_or_else(|| Error::bad_input(format!("invalid {what}")).expected(expected).found(format!("`{text}`")))
}

/// Converts `digits` hexadecimal digits to lowercase. Returns `None` for any other string.
fn parse_hex(text: &str, digits: usize) -> Option<String> {
    (text.len() == digits && text.bytes().all(|byte| byte.is_ascii_hexdigit())).then(|| text.to_ascii_lowercase())
}

impl Commit {
    /// Returns the first 12 digits, for display.
    pub fn short(&self) -> &str {
        &self.0[..12]
    }
}

impl BlobName {
    /// Returns the cache name of a file with this ETag. An ETag that is not a hash is combined with the file name,
    /// because several files may share it.
    pub(crate) fn for_file(&self, file: &FileName) -> Self {
        match self.sha256().is_some() || self.git_blob_hash().is_some() {
            true => self.clone(),
            false => Self(format!("etag-{}", sha256::of_bytes(format!("{self} {file}")))),
        }
    }

    /// Returns the SHA-256, if the name is one.
    pub(crate) fn sha256(&self) -> Option<ContentHash> {
        ContentHash::new(&self.0).ok()
    }

    /// Returns the Git blob hash, if the name is one.
    pub(crate) fn git_blob_hash(&self) -> Option<String> {
        parse_hex(&self.0, 40)
    }
}

/// Strips the weak prefix and the quotes of an ETag such as `"abc"` or `W/"abc"`.
pub(crate) fn strip_etag(etag: &str) -> &str {
    etag.trim_start_matches("W/").trim_matches('"')
}

impl From<ContentHash> for BlobName {
    fn from(hash: ContentHash) -> Self {
        Self(hash.0)
    }
}

checked!(
    /// Path in a repository with `/` separators. Always stays below the folder that it is joined to.
    FileName,
    |text| match find_fault(text) {
        None => Ok(text.to_owned()),
        Some(fault) => Err(Error::bad_input("unsafe file name on the hub")
            .expected("a path below the repository's folder")
            .found(format!("`{text}`: {fault}"))
            .hint("do not use this repository, which is broken or malicious; nothing was written")),
    }
);

impl FileName {
    /// Converts the name to a path with the separators of the operating system.
    pub fn path(&self) -> PathBuf {
        self.0.split('/').collect()
    }
}

/// Maximum length of a path component in bytes on most file systems.
const MAX_PATH_COMPONENT_BYTES: usize = 255;

/// Returns why a name is rejected, or `None` if it is valid. Rejected names are absolute, leave the folder, or have a
/// component with a special meaning to a file system.
fn find_fault(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    for part in text.split('/') {
        let fault = match part {
            "" => "it is absolute, or has an empty component",
            "." | ".." => "it contains `.` or `..`",
            _ if part.contains(['\\', ':']) => "it contains `\\` or `:`, which some systems interpret",
            _ if part.chars().any(char::is_control) => "it contains control characters",
            _ if part.len() > MAX_PATH_COMPONENT_BYTES => "a path component is longer than 255 bytes",
            _ => continue,
        };
        return Some(fault);
    }
    None
}

/// Size and hashes of a file from the lock, a listing or a response. `None` if unknown.
#[derive(Debug, Clone, Default)]
pub(crate) struct KnownFile {
    pub(crate) bytes: Option<u64>,
    /// SHA-256, which the Hub lists only for large files.
    pub(crate) sha256: Option<ContentHash>,
    /// Name of the blob in the cache, which is the SHA-256 or the Git hash of the file.
    pub(crate) blob: Option<BlobName>,
}

impl KnownFile {
    /// Derives the SHA-256 from the Hub's ETag, which is the SHA-256 of a large file or the Git hash of a small one.
    pub(crate) fn from_blob(blob: BlobName, bytes: Option<u64>) -> Self {
        Self { bytes, sha256: blob.sha256(), blob: Some(blob) }
    }

    /// Returns the Git blob hash: SHA-1 of `blob SIZE`, a zero byte, and the content.
    pub(crate) fn git_blob_hash(&self) -> Option<String> {
        self.blob.as_ref()?.git_blob_hash()
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use super::*;

    #[test]
    fn files_with_a_shared_non_hash_etag_have_distinct_blobs() {
        let git = BlobName::new(&"a1".repeat(20)).unwrap();
        let blob = BlobName::new("5f3-62ab").unwrap();
        let [a, b] = ["a", "b/c"].map(|name| FileName::new(name).unwrap());
        assert_eq!(git.for_file(&a), git.for_file(&b));
        assert_ne!(blob.for_file(&a), blob.for_file(&b));
        assert!(BlobName::new(blob.for_file(&a).as_str()).is_ok() && blob.for_file(&a).sha256().is_none());
    }

    #[test]
    fn blob_names_and_commits_cannot_contain_path_separators() {
        let git = "0123456789abcdef".repeat(3)[..40].to_owned();
        let sha256 = "0123456789ABCDEF".repeat(4);
        assert_eq!(Commit::new(&git).unwrap().short(), "0123456789ab");
        assert_eq!(ContentHash::new(&sha256).unwrap().as_str(), sha256.to_lowercase());
        assert_eq!(BlobName::new(strip_etag(&format!("W/\"{git}\""))).unwrap().git_blob_hash(), Some(git.clone()));
        assert_eq!(BlobName::new(strip_etag("\"5f3-62ab_x\"")).unwrap().as_str(), "5f3-62ab_x");
        for text in ["", ".", "..", "../x", "/x", "a/b", "a\\b", "C:x", "a.incomplete", ".a", "a\0", "a\n", "é", "%2e"]
        {
            assert_eq!(BlobName::new(text).unwrap_err().exit_code(), 2, "{text:?}");
            for padded in [text.to_owned(), format!("{text}{}", &git[text.len().min(40)..])] {
                assert!(
                    Commit::new(&padded).is_err() && ContentHash::new(&padded).is_err() || padded == git,
                    "{text:?}"
                );
            }
        }
        assert!(Commit::new(&git.to_uppercase()).is_err() && BlobName::new(&"a".repeat(129)).is_err());
        let name = serde_json::from_str::<BlobName>("\"abc\"").unwrap();
        assert!(Path::new(name.as_str()).components().all(|part| matches!(part, Component::Normal(_))));
        assert!(serde_json::from_str::<BlobName>("\"../abc\"").unwrap_err().to_string().contains("`../abc`"));
    }

    #[test]
    fn file_name_that_leaves_its_folder_is_rejected() {
        for name in ["config.json", "en/c4-train.00000-of-01024.json.gz", ".gitattributes", "a..b/…"] {
            let path = FileName::new(name).unwrap().path();
            assert!(path.components().all(|part| matches!(part, Component::Normal(_))), "{name}");
            assert!(Path::new("/cache").join(&path).starts_with("/cache"));
        }
        let long = "x".repeat(256);
        let bad =
            ["", "/etc/passwd", "../x", "a/../../x", "a//b", "a/", ".", "a\\..\\b", "C:/x", "a\0b", "a\nb", &long];
        for name in bad {
            let error = FileName::new(name).unwrap_err();
            assert_eq!(error.exit_code(), 2, "{name:?}");
        }
    }
}
