//! Names of files that come from the network.

use std::fmt;
use std::path::PathBuf;

use ghostlab_core::error::{Error, Result};
use serde::{Deserialize, Serialize};

/// A path in a repository, with `/` between its parts. It names something below the folder that it is joined to, always.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(try_from = "String", into = "String")]
pub struct FileName(String);

/// Most file systems allow no more bytes for a part of a path.
const LONGEST_PART: usize = 255;

impl FileName {
    /// # Errors
    /// A name that is absolute, climbs, or has a part that a file system reads otherwise than it is written.
    pub fn new(text: &str) -> Result<Self> {
        match fault(text) {
            None => Ok(Self(text.to_owned())),
            Some(fault) => Err(Error::bad_input("a file name of the hub is refused")
                .expected("a path below the repository's folder")
                .found(format!("`{text}`: {fault}"))
                .hint("a repository that names files so is broken or hostile; nothing was written")),
        }
    }

    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// As a path of this system.
    pub fn path(&self) -> PathBuf {
        self.0.split('/').collect()
    }
}

fn fault(text: &str) -> Option<&'static str> {
    if text.is_empty() {
        return Some("it is empty");
    }
    for part in text.split('/') {
        let fault = match part {
            "" => "it is absolute, or has an empty part",
            "." | ".." => "it climbs out of its folder",
            _ if part.contains(['\\', ':']) => "it has a `\\` or a `:`, which some systems read as a way out",
            _ if part.chars().any(char::is_control) => "it has control characters",
            _ if part.len() > LONGEST_PART => "a part of it is longer than file systems allow",
            _ => continue,
        };
        return Some(fault);
    }
    None
}

impl fmt::Display for FileName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}

impl TryFrom<String> for FileName {
    type Error = String;

    fn try_from(text: String) -> std::result::Result<Self, String> {
        Self::new(&text).map_err(|error| error.one_line())
    }
}

impl From<FileName> for String {
    fn from(name: FileName) -> Self {
        name.0
    }
}

#[cfg(test)]
mod tests {
    use std::path::{Component, Path};

    use super::*;

    #[test]
    fn a_name_stays_below_its_folder_or_is_refused() {
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
