//! Floor 0: artifacts stored under the hash of what made them (design §9).
//!
//! `<root>/<kind>-v<stage version>/<2 hex>/<sha256>/` holds `meta.json` and payload files. An artifact is written to a
//! private folder and renamed into its place, so that it is whole or not there; a reader checks the hash of every
//! payload before it trusts one byte. Keys hold contents and settings, never a path, a name or a time.

mod artifact;
mod draft;
mod key;

pub use artifact::{Artifact, Meta};
pub use draft::{Draft, Payload};
pub use key::{Key, Kind};

use std::fs;
use std::path::{Path, PathBuf};

use crate::error::{Error, Result};

/// A folder of artifacts.
#[derive(Debug, Clone)]
pub struct Store {
    root: PathBuf,
}

/// What stands under a key.
#[derive(Debug)]
pub enum Lookup {
    Absent,
    /// Something is there, but it is not what was once written. It is never used; writing the key again replaces it.
    Damaged(Error),
    Whole(Artifact),
}

impl Store {
    /// # Errors
    /// Exit code 3: the folder cannot be made or written to.
    pub fn open(root: &Path) -> Result<Self> {
        let refused = |error: &std::io::Error| {
            Error::missing("the store cannot be written to")
                .at(root.display().to_string())
                .found(error.to_string())
                .hint("name another folder with --store")
        };
        fs::create_dir_all(root.join(Self::DRAFTS)).map_err(|error| refused(&error))?;
        tempfile::tempfile_in(root.join(Self::DRAFTS)).map_err(|error| refused(&error))?;
        draft::sweep(&root.join(Self::DRAFTS));
        Ok(Self { root: root.to_owned() })
    }

    const DRAFTS: &str = "drafts";

    /// Where unfinished artifacts are written.
    fn drafts(&self) -> PathBuf {
        self.root.join(Self::DRAFTS)
    }

    fn place(&self, key: &Key) -> PathBuf {
        let hash = key.hash();
        self.root.join(key.folder()).join(&hash[..2]).join(hash)
    }

    /// The artifact of a key, with every payload's hash checked.
    pub fn get(&self, key: &Key) -> Lookup {
        let folder = self.place(key);
        if !folder.exists() {
            return Lookup::Absent;
        }
        match Artifact::open(folder, key) {
            Ok(artifact) => Lookup::Whole(artifact),
            Err(error) => Lookup::Damaged(error),
        }
    }

    /// A private folder for the payloads of a new artifact; nothing is visible before [`Draft::commit`].
    pub fn draft(&self) -> Result<Draft> {
        Draft::new(&self.drafts())
    }

    /// Puts a finished draft under its key. Whoever was there before under the same key is replaced: same key, same content.
    pub fn commit(&self, draft: Draft, key: &Key, seconds: f64) -> Result<Artifact> {
        let place = self.place(key);
        draft.commit(&place, key, seconds)?;
        Artifact::open_unchecked(place, key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;
    use std::io::Write;

    fn store() -> (tempfile::TempDir, Store) {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        (folder, store)
    }

    fn write(store: &Store, key: &Key, bytes: &[u8]) -> Artifact {
        let mut draft = store.draft().unwrap();
        let mut payload = draft.payload("a.bin").unwrap();
        payload.write_all(bytes).unwrap();
        payload.close().unwrap();
        store.commit(draft, key, 1.5).unwrap()
    }

    #[test]
    fn what_was_written_is_found_again_and_nothing_else_is() {
        let (_folder, store) = store();
        let key = Key::new(Kind::Selection, &json!({"depth": 7, "scores": [0.1, 1e-300]}));
        assert!(matches!(store.get(&key), Lookup::Absent));
        write(&store, &key, b"hello");
        let Lookup::Whole(artifact) = store.get(&key) else { panic!("not found") };
        assert_eq!(std::fs::read(artifact.path("a.bin").unwrap()).unwrap(), b"hello");
        assert_eq!((artifact.meta().seconds, &artifact.meta().key), (1.5, key.readable()));
        let other = Key::new(Kind::Selection, &json!({"depth": 8, "scores": [0.1, 1e-300]}));
        assert!(matches!(store.get(&other), Lookup::Absent));
    }

    #[test]
    fn every_kind_of_damage_is_named_and_writing_again_mends_it() {
        let (_folder, store) = store();
        let key = Key::new(Kind::Selection, &json!({"a": 1}));
        let path = write(&store, &key, b"hello").path("a.bin").unwrap();
        let meta = path.with_file_name("meta.json");
        type Spoil<'a> = Box<dyn Fn() + 'a>;
        let damages: [(Spoil<'_>, &str); 5] = [
            (Box::new(|| std::fs::write(&path, b"hellx").unwrap()), "a.bin"),
            (Box::new(|| std::fs::write(&path, b"hell").unwrap()), "5 bytes"),
            (Box::new(|| std::fs::remove_file(&path).unwrap()), "a.bin"),
            (Box::new(|| std::fs::write(&meta, b"{").unwrap()), "meta.json"),
            (Box::new(|| std::fs::remove_file(&meta).unwrap()), "meta.json"),
        ];
        for (spoil, word) in damages {
            spoil();
            let Lookup::Damaged(error) = store.get(&key) else { panic!("used although damaged: {word}") };
            assert!(error.to_string().contains(word), "{error}");
            write(&store, &key, b"hello");
            assert!(matches!(store.get(&key), Lookup::Whole(_)), "{word}");
        }
    }

    #[test]
    fn an_abandoned_draft_leaves_nothing_behind() {
        let (folder, store) = store();
        let mut draft = store.draft().unwrap();
        draft.payload("a.bin").unwrap().close().unwrap();
        drop(draft);
        assert_eq!(std::fs::read_dir(folder.path().join("drafts")).unwrap().count(), 0);
    }

    #[cfg(target_os = "linux")]
    #[test]
    fn a_dead_process_s_drafts_are_swept_and_a_living_one_s_stay() {
        let (folder, store) = store();
        // Process ids end below 2^22.
        std::fs::create_dir(folder.path().join("drafts/99999999-x")).unwrap();
        let draft = store.draft().unwrap();
        Store::open(folder.path()).unwrap();
        assert_eq!(std::fs::read_dir(folder.path().join("drafts")).unwrap().count(), 1);
        drop(draft);
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_said() {
        let (folder, _) = store();
        let file = folder.path().join("file");
        std::fs::write(&file, "").unwrap();
        let error = Store::open(&file).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        assert!(error.to_string().contains("--store"), "{error}");
    }
}
