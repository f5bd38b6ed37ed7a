//! Tests with folders of very small shapes: the decoder reads them, they are deterministic, and none is left
//! incomplete.

use std::collections::BTreeMap;
use std::fs;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::Value;

use super::folder::{Backbone, Writing};
use super::shape::like;
use crate::train::shape::{Shape, trained};
use ghostlab_core::corpus::{Start, Windows};
use ghostlab_core::error::{ErrorKind, Result};
use ghostlab_core::evaluate::perplexity;
use ghostlab_core::files::sha256;
use ghostlab_core::model::architecture::{ARCHITECTURES, Architecture};
use ghostlab_core::model::{Decoder, Program};

fn config(architecture: &Architecture) -> Value {
    Shape { layers: 3, hidden: 32, heads: 4, head_dim: 8, intermediate: 48, vocab: 2050, ..Shape::tiny(architecture) }
        .config(0)
}

fn write(config: &Value, seed: u64, folder: &Path) -> Result<usize> {
    let stop = AtomicBool::new(false);
    let mut progress = |_, _| ();
    let mut writing = Writing { shard: 40_000, stop: &stop, progress: &mut progress };
    Backbone::new(config.clone(), seed)?.write(folder, &mut writing)
}

fn hashes(folder: &Path) -> BTreeMap<String, String> {
    let files = fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().path());
    files
        .map(|path| (path.file_name().unwrap().to_str().unwrap().to_owned(), sha256::of_file(&path).unwrap().0))
        .collect()
}

#[test]
fn decoder_reads_every_architecture_with_finite_perplexity() {
    let root = tempfile::tempdir().unwrap();
    for architecture in trained() {
        let folder = root.path().join(architecture.model_type);
        let files = write(&config(architecture), 0, &folder).unwrap();
        assert!(files > 1, "{files}");
        let engine = Decoder::load(&folder).unwrap();
        let ids: Vec<u32> = (0..128).map(|i| i * 37 % 2048).collect();
        let starts = (0..2).map(|at| Start { document: 0, token: 64 * at }).collect();
        let windows = Windows { ids, length: 64, starts, corpus_tokens: 128, bytes: 0 };
        let perplexities = perplexity::of(&engine, &[Program::dense(3)], &windows).unwrap();
        // The perplexity of a uniform distribution is 2,050.
        assert!((1000.0..4000.0).contains(&perplexities[0]), "{}: {perplexities:?}", architecture.class);
    }
}

#[test]
fn index_names_every_tensor_and_bounds_shard_size() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("new/backbone");
    let config = config(&ARCHITECTURES[1]);
    let files = write(&config, 0, &folder).unwrap();
    let index: Value = serde_json::from_slice(&fs::read(folder.join("model.safetensors.index.json")).unwrap()).unwrap();
    let backbone = Backbone::new(config, 0).unwrap();
    assert_eq!(index["metadata"]["total_size"], backbone.bytes());
    let mut held = BTreeMap::new();
    for number in 1..=files {
        let name = format!("model-{number:05}-of-{files:05}.safetensors");
        let bytes = fs::read(folder.join(&name)).unwrap();
        let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
        let size: usize = tensors.iter().map(|(_, tensor)| tensor.data().len()).sum();
        assert!(size <= 40_000 || tensors.len() == 1, "{name}: {size}");
        held.extend(tensors.names().into_iter().map(|tensor| (tensor.to_owned(), Value::from(name.as_str()))));
    }
    assert_eq!(Value::Object(held.into_iter().collect()), index["weight_map"]);
}

#[test]
fn the_same_seed_gives_the_same_bytes_on_any_number_of_threads() {
    let root = tempfile::tempdir().unwrap();
    let config = config(&ARCHITECTURES[0]);
    let of = |name: &str, seed, threads| {
        let folder = root.path().join(name);
        let pool = rayon::ThreadPoolBuilder::new().num_threads(threads).build().unwrap();
        pool.install(|| write(&config, seed, &folder)).unwrap();
        hashes(&folder)
    };
    let first = of("a", 3, 1);
    assert_eq!(of("b", 3, 3), first);
    let other = of("c", 4, 1);
    let same: Vec<&String> = first.keys().filter(|name| first[*name] == other[*name]).collect();
    let unseeded = ["config.json", "model.safetensors.index.json", "tokenizer.json", "tokenizer_config.json"];
    assert_eq!(same, unseeded);
}

#[test]
fn a_stop_leaves_nothing() {
    let root = tempfile::tempdir().unwrap();
    let stop = AtomicBool::new(false);
    let folder = root.path().join("backbone");
    let mut progress = |done, total| {
        assert!(done < total, "it goes on after the stop");
        stop.store(true, Relaxed);
    };
    let mut writing = Writing { shard: 40_000, stop: &stop, progress: &mut progress };
    let error = Backbone::new(config(&ARCHITECTURES[0]), 0).unwrap().write(&folder, &mut writing).unwrap_err();
    assert_eq!(error.kind(), ErrorKind::Interrupted);
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn what_stands_there_stays_and_an_empty_folder_is_filled() {
    let root = tempfile::tempdir().unwrap();
    let folder = root.path().join("backbone");
    fs::create_dir(&folder).unwrap();
    write(&config(&ARCHITECTURES[0]), 0, &folder).unwrap();
    let before = hashes(&folder);
    let error = write(&config(&ARCHITECTURES[0]), 1, &folder).unwrap_err();
    assert_eq!((error.kind(), hashes(&folder)), (ErrorKind::BadInput, before));
}

#[test]
fn a_backbone_larger_than_its_disk_is_refused_with_figures() {
    let root = tempfile::tempdir().unwrap();
    // 4.4 TB of layers.
    let error = write(&like("llama-3.1-8b", Some(10_000)).unwrap(), 0, &root.path().join("backbone")).unwrap_err();
    let text = error.to_string();
    assert!(text.contains("expected: 43") && text.contains(" GB free") && text.contains("--layers"), "{text}");
    assert_eq!(fs::read_dir(root.path()).unwrap().count(), 0);
}

#[test]
fn a_vocabulary_smaller_than_the_tokenizers_is_refused() {
    let mut config = config(&ARCHITECTURES[0]);
    config["vocab_size"] = 2047.into();
    let text = Backbone::new(config, 0).err().unwrap().to_string();
    assert!(text.contains("vocab_size") && text.contains("2048 or more"), "{text}");
}
