//! The folder of an untrained backbone: config, tokenizer, and weights in shards with an index.

use std::fs::{self, File};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering::Relaxed};

use serde_json::{Map, Value, json};

use super::shard::{self, Tensor};
use crate::train::export::pretty;
use crate::train::parameters::{Parameter, Parameters};
use crate::train::shape;
use crate::train::tokenizer::Tokens;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::atomic::{sweep, temporary_folder, write_whole};
use ghostlab_core::files::{disk, sha256};
use ghostlab_core::quantity::distinct_sizes;

/// A backbone to be written.
pub struct Backbone {
    /// As `config.json` says it.
    pub config: Value,
    tokenizer: Tokens,
    tensors: Vec<Tensor>,
}

/// How it is written.
pub struct Writing<'a> {
    /// The most bytes of numbers in a file; a tensor is never split.
    pub shard: u64,
    /// Set by somebody who wants it to stop.
    pub stop: &'a AtomicBool,
    /// Told the bytes that are written and those that will be.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// The most bytes of a shard where nobody says otherwise.
pub const SHARD: u64 = 4_000_000_000;
/// Room that must be left for headers, index and tokenizer.
const BESIDE: u64 = 16 << 20;

impl Backbone {
    /// A backbone of a shape: the same config and seed are the same bytes on every machine.
    ///
    /// # Errors
    /// A config that the decoder does not take, or a vocabulary smaller than the tokenizer's.
    pub fn new(mut config: Value, seed: u64) -> Result<Self> {
        // The vocabulary of the project's own backbones: real text stays text, and ids lie below any real vocabulary.
        let tokenizer = Tokens::parse(match config.get("model_type").and_then(Value::as_str) {
            Some("llama") => include_bytes!("../../../../data/tiny/llama/tokenizer.json"),
            Some("qwen3") => include_bytes!("../../../../data/tiny/qwen3/tokenizer.json"),
            _ => include_bytes!("../../../../data/tiny/olmo2/tokenizer.json"),
        })?;
        for key in ["bos_token_id", "eos_token_id"] {
            config[key] = tokenizer.end.into();
        }
        // Both names: transformers before 4.56 reads the second.
        for key in ["dtype", "torch_dtype"] {
            config[key] = "bfloat16".into();
        }
        let parsed = shape::parsed(&config)?;
        if tokenizer.size() > parsed.vocab {
            return Err(Error::bad_input("the vocabulary is too small for the tokenizer that comes with the backbone")
                .at("vocab_size")
                .expected(format!("{} or more", tokenizer.size()))
                .found(parsed.vocab));
        }
        let parameters = Parameters::of(&parsed);
        let tensors = parameters
            .list
            .iter()
            .map(|parameter: &Parameter| Tensor {
                name: parameter.name.clone(),
                shape: parameter.shape.clone(),
                key: key(seed, &parameter.name),
                deviation: parameters.deviation(parameter.kind),
            })
            .collect();
        Ok(Self { config, tokenizer, tensors })
    }

    /// Bytes of all weights.
    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes() as u64).sum()
    }

    /// Writes the folder next to its place and then moves it there. Gives the number of its weight files.
    ///
    /// # Errors
    /// Something stands there; no room on its disk; a file cannot be written; `stop` was set: nothing is left then.
    pub fn write(&self, folder: &Path, writing: &mut Writing<'_>) -> Result<usize> {
        let (parent, name) = place(folder)?;
        fs::create_dir_all(&parent).map_err(|error| Error::io("create", &parent, &error))?;
        sweep(&parent);
        self.enough_room(&parent)?;
        let draft = temporary_folder(&parent, &name).map_err(|error| Error::io("create", &parent, &error))?;
        self.files(draft.path(), writing)?;
        // Nobody has put anything there meanwhile, or this fails.
        fs::remove_dir(folder).ok();
        fs::rename(draft.path(), folder).map_err(|error| Error::io("create", folder, &error))?;
        let _moved = draft.keep();
        Ok(self.shards(writing.shard).len())
    }

    fn enough_room(&self, parent: &Path) -> Result<()> {
        let wanted = self.bytes() + BESIDE;
        let Some(free) = disk::free(parent).filter(|free| *free < wanted) else { return Ok(()) };
        let [wanted, free] = distinct_sizes(wanted, free);
        Err(Error::missing("the disk has not enough room for this backbone")
            .at(parent.display())
            .expected(format!("{wanted} free"))
            .found(free)
            .hint("name a folder on another disk, or fewer layers with --layers"))
    }

    fn files(&self, folder: &Path, writing: &mut Writing<'_>) -> Result<()> {
        let context = self.config.get("max_position_embeddings").and_then(Value::as_u64).unwrap_or(0) as usize;
        write_whole(&folder.join("config.json"), pretty(&self.config)?.as_bytes())?;
        write_whole(&folder.join("tokenizer.json"), self.tokenizer.json()?.as_bytes())?;
        write_whole(&folder.join("tokenizer_config.json"), pretty(&self.tokenizer.config(context))?.as_bytes())?;
        let shards = self.shards(writing.shard);
        let mut map = Map::new();
        let mut done = 0;
        let total = self.bytes();
        for (at, tensors) in shards.iter().enumerate() {
            let name = format!("model-{:05}-of-{:05}.safetensors", at + 1, shards.len());
            map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), Value::from(name.as_str()))));
            let path = folder.join(name);
            let failed = |error: &std::io::Error| Error::io("write", &path, error);
            let mut file = File::create(&path).map_err(|error| failed(&error))?;
            shard::write(&mut file, tensors, failed, &mut |bytes| {
                done += bytes as u64;
                (writing.progress)(done, total);
                match writing.stop.load(Relaxed) {
                    true => {
                        Err(Error::interrupted("stopped before the backbone was written").hint("nothing is left of it"))
                    }
                    false => Ok(()),
                }
            })?;
            file.sync_all().map_err(|error| failed(&error))?;
        }
        let index = json!({"metadata": {"total_size": total}, "weight_map": map});
        write_whole(&folder.join("model.safetensors.index.json"), pretty(&index)?.as_bytes())
    }

    /// The tensors in order, as many in a file as it may hold.
    fn shards(&self, most: u64) -> Vec<&[Tensor]> {
        let mut shards = Vec::new();
        let mut first = 0;
        let mut bytes = 0;
        for (at, tensor) in self.tensors.iter().enumerate() {
            let own = tensor.bytes() as u64;
            if at > first && bytes + own > most {
                shards.push(&self.tensors[first..at]);
                (first, bytes) = (at, 0);
            }
            bytes += own;
        }
        shards.push(&self.tensors[first..]);
        shards
    }
}

/// The folder that a new folder is in, and its name. A folder with something in it stays as it is.
fn place(folder: &Path) -> Result<(PathBuf, String)> {
    let whole = std::path::absolute(folder).map_err(|error| Error::io("find", folder, &error))?;
    let (Some(parent), Some(name)) = (whole.parent(), whole.file_name()) else {
        return Err(Error::bad_input("a backbone needs a folder with a name").found(folder.display()));
    };
    let is_empty = fs::read_dir(folder).is_ok_and(|mut entries| entries.next().is_none());
    if fs::symlink_metadata(folder).is_ok() && !is_empty {
        return Err(Error::bad_input("there is something where the backbone would be written")
            .at(folder.display())
            .expected("nothing, or an empty folder")
            .hint("name another folder, or remove this one"));
    }
    Ok((parent.to_path_buf(), name.to_string_lossy().into_owned()))
}

/// What decides a tensor's numbers: not its place, so that layer 0 begins equally with one layer and with 32.
fn key(seed: u64, name: &str) -> u64 {
    let hash = sha256::of_bytes(format!("{seed} {name}"));
    u64::from_str_radix(&hash[..16], 16).unwrap_or(seed)
}
