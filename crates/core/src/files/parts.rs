//! Paths of a backbone's files, in a Hugging Face folder or a GGUF file.

use std::path::{Path, PathBuf};

use super::gguf::is_gguf;
use crate::error::{Error, Result};

pub fn config_path(backbone: &Path) -> PathBuf {
    if is_gguf(backbone) { backbone.to_owned() } else { backbone.join("config.json") }
}

/// Returns the path of the backbone's tokenizer. A `tokenizer.json` next to a GGUF file takes precedence, because GGUF
/// cannot represent every tokenizer completely.
pub fn tokenizer_path(backbone: &Path) -> PathBuf {
    match sibling_file(backbone, "tokenizer.json") {
        file if is_gguf(backbone) && !file.is_file() => backbone.to_owned(),
        file => file,
    }
}

/// Checks that a backbone has a tokenizer.
///
/// # Errors
/// Fails with exit code 3 if a folder has no `tokenizer.json` or the GGUF file does not exist.
pub fn check_tokenizer(backbone: &Path) -> Result<()> {
    let file = tokenizer_path(backbone);
    if file.exists() { Ok(()) } else { Err(missing_tokenizer_error(&file)) }
}

/// Creates the error for a missing `tokenizer.json`.
pub fn missing_tokenizer_error(file: &Path) -> Error {
    Error::missing("the model has no tokenizer.json")
        .at(file.display())
        .expected("a tokenizer in the Hugging Face format next to config.json")
        .found("no such file")
        .hint("save it with `tokenizer.save_pretrained(folder)`, or download it from the model's repository")
}

/// Returns the path of a file in a backbone's folder, or in the folder of its GGUF file.
pub fn sibling_file(backbone: &Path, name: &str) -> PathBuf {
    match backbone.parent() {
        Some(folder) if is_gguf(backbone) => folder.join(name),
        _ => backbone.join(name),
    }
}

pub fn is_backbone(path: &Path) -> bool {
    path.is_dir() || is_gguf(path) && path.is_file()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn tokenizer_json_takes_precedence_over_gguf_tokenizer() {
        let folder = tempfile::tempdir().unwrap();
        let file = folder.path().join("m.GGUF");
        std::fs::write(&file, "").unwrap();
        assert_eq!((config_path(&file), tokenizer_path(&file)), (file.clone(), file.clone()));
        std::fs::write(folder.path().join("tokenizer.json"), "").unwrap();
        assert_eq!(tokenizer_path(&file), folder.path().join("tokenizer.json"));
        assert_eq!(tokenizer_path(folder.path()), folder.path().join("tokenizer.json"));
        assert_eq!(config_path(folder.path()), folder.path().join("config.json"));
        assert!(is_backbone(&file) && is_backbone(folder.path()) && !is_backbone(&folder.path().join("none.gguf")));
    }
}
