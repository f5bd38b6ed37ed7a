//! Checks that data/tiny matches the output of this crate.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]

use std::fs::{self, File};
use std::io::Read;
use std::path::PathBuf;

use flate2::read::GzDecoder;
use ghostlab_core::files::sha256;
use ghostlab_core::model::architecture::ARCHITECTURES;
use ghostlab_core::tasks::{TASKS, Task};
use ghostlab_definitions::native;
use ghostlab_tiny::train::corpus::{self, registers};
use ghostlab_tiny::train::export::Manifest;
use ghostlab_tiny::train::recipe::Recipe;
use ghostlab_tiny::world::{SEED, World, files};

const BACKBONES: [&str; 3] = ["llama", "qwen3", "olmo2"];

fn folder(name: &str) -> PathBuf {
    PathBuf::from(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/tiny")).join(name)
}

#[test]
fn the_committed_texts_and_tasks_are_those_of_the_world() {
    let made = files(&World::new(SEED));
    for (name, text) in &made {
        let mut there = Vec::new();
        GzDecoder::new(File::open(folder(name)).unwrap()).read_to_end(&mut there).unwrap();
        // Compare unpacked text, because another gzip version may produce other bytes.
        assert!(there == text.as_bytes(), "{name} has changed: `ghostlab-tiny write data/tiny` makes it anew");
    }
    let count = |part: &str| fs::read_dir(folder(part)).unwrap().count();
    assert_eq!(count("corpora") + count("tasks"), made.len(), "a file that the world does not have");
}

#[test]
fn every_task_of_the_world_reads_like_the_real_one() {
    for name in World::TASKS {
        let task = Task::find(name).unwrap();
        let read = native::task(task, &folder(&format!("tasks/{name}.jsonl.gz")), None).unwrap();
        let least = if name == "copa" { 100 } else { 300 };
        assert!(read.documents.len() >= least, "{name}: {}", read.documents.len());
        for at in 0..read.documents.len() {
            let (choices, gold) = read.solution(at).unwrap();
            let choices = choices.len();
            assert!(usize::try_from(gold.as_int().unwrap()).unwrap() < choices, "{}", read.place(at));
            assert!([2, 4].contains(&choices), "{name}: {choices} choices");
        }
    }
    assert!(World::TASKS.iter().all(|name| TASKS.iter().any(|task| task.name == *name)));
}

#[test]
fn manifest_matches_recipe_world_and_files() {
    let world = registers(0);
    for name in BACKBONES {
        let manifest = Manifest::read(&folder(name)).unwrap().unwrap();
        let architecture = ARCHITECTURES.iter().find(|architecture| architecture.model_type == name).unwrap();
        assert_eq!(manifest.recipe, Recipe::tiny(architecture), "{name}: the recipe has changed since");
        for (file, entry) in &manifest.files {
            let bytes = fs::read(folder(name).join(file)).unwrap();
            assert_eq!(
                (bytes.len() as u64, sha256::of_bytes(&bytes)),
                (entry.bytes, entry.sha256.clone()),
                "{name} {file}"
            );
        }
        let size: u64 = manifest.files.values().map(|entry| entry.bytes).sum();
        assert!(size <= 8 << 20, "{name} has {size} bytes");
        for register in &world {
            let origin = manifest.corpus.iter().find(|origin| origin.register == register.name).unwrap();
            assert_eq!(origin.train_documents, register.train.len(), "{name}: the world has changed since");
            assert_eq!(origin.train_sha256, corpus::hash(&register.train), "{name}: the world has changed since");
        }
    }
}
