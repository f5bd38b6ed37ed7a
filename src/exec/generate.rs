//! Generated texts and tasks, written to the store when they are asked for.

use std::path::PathBuf;
use std::time::Instant;

use rayon::prelude::*;
use serde_json::json;

use crate::error::{Error, Result};
use crate::grid::{self, Grid};
use crate::store::{Artifact, Key, Kind, Lookup, Store};
use crate::tasks::{Split, Task};
use crate::world::World;

/// The seed of the world that everybody shares.
const SEED: u64 = 0;

/// The grid with every generated text in a file of the store.
///
/// # Errors
/// The store cannot be written to.
pub fn generated(grid: &Grid, store: &Store) -> Result<Grid> {
    let mut grid = grid.clone();
    let texts = grid.corpora.values_mut().map(|corpus| (&mut corpus.path, None));
    let tasks = grid.tasks.iter_mut().map(|(name, data)| {
        let task = data.task.clone().unwrap_or_else(|| name.clone());
        (&mut data.path, Some(task))
    });
    let wanted: Vec<(&mut PathBuf, Option<String>)> = texts.chain(tasks).collect();
    wanted.into_par_iter().try_for_each(|(path, task)| {
        if let Some(name) = grid::generated(path).map(str::to_string) {
            *path = file(&name, task.as_deref(), store)?;
        }
        Ok::<_, Error>(())
    })?;
    Ok(grid)
}

/// The file of one text; it is made where it is not stored whole.
fn file(name: &str, task: Option<&str>, store: &Store) -> Result<PathBuf> {
    let key = Key::new(Kind::World, json!({"seed": SEED, "text": name}), []);
    // A reader of tasks wants to see by the name that it is the right split.
    let payload = match task.map(Task::find).transpose()?.map(|task| task.split) {
        Some(Split::Validation) => "validation.jsonl",
        Some(Split::Test) => "test.jsonl",
        None => "text.jsonl",
    };
    let whole = |artifact: &Artifact| artifact.verify().is_ok();
    if let Lookup::Whole(artifact) = store.look(&key)
        && whole(&artifact)
    {
        return artifact.path(payload);
    }
    let started = Instant::now();
    let rows = World::new(SEED).text(name);
    let rows = rows.ok_or_else(|| Error::job("no such text can be generated").found(format!("`{name}`")))?;
    let lines: String = rows.iter().map(|row| format!("{row}\n")).collect();
    store.put(&key, started.elapsed().as_secs_f64(), &[(payload, lines.as_bytes())])?.path(payload)
}
