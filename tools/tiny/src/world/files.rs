//! Writes the world in files like those of a user: `corpora/web-train.jsonl.gz`, `tasks/copa.jsonl.gz`, …

use std::io::Write;
use std::path::Path;

use flate2::{Compression, GzBuilder};
use rayon::prelude::*;
use serde_json::Value;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::{ensure_writable, write_atomically};

use super::World;

/// Seed of the committed world.
pub const SEED: u64 = 0;

/// Returns the files of a world, as (relative path, JSON lines).
pub fn files(world: &World) -> Vec<(String, String)> {
    World::texts()
        .into_par_iter()
        .map(|name: String| {
            let rows = world.text(&name).unwrap_or_default();
            let path = match name.split_once('/') {
                Some((register, part)) => format!("corpora/{register}-{part}.jsonl.gz"),
                None => format!("tasks/{name}.jsonl.gz"),
            };
            (path, rows.iter().map(|row: &Value| format!("{row}\n")).collect())
        })
        .collect()
}

/// Writes all files of a world below a folder.
///
/// # Errors
/// Fails if the folder cannot be written to.
pub fn write(world: &World, folder: &Path) -> Result<()> {
    for part in ["corpora", "tasks"] {
        ensure_writable(&folder.join(part), &[])?;
    }
    files(world).par_iter().try_for_each(|(name, text)| {
        let path = folder.join(name);
        write_atomically(&path, |file| {
            // The gzip header has no time and no name, so that the files are reproducible.
            let mut gz = GzBuilder::new().write(file, Compression::best());
            let written = gz.write_all(text.as_bytes()).and_then(|()| gz.finish().map(drop));
            written.map_err(|error| Error::io("write", &path, &error))
        })
    })
}
