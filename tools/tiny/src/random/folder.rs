//! Writes the folder of an untrained backbone: config, tokenizer, and sharded weights with an index.

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

/// Untrained backbone to be written.
pub struct Backbone {
    /// Contents of `config.json`.
    pub config: Value,
    tokenizer: Tokens,
    tensors: Vec<Tensor>,
}

pub struct Writing<'a> {
    /// Maximum bytes of tensor data per file; tensors are never split.
    pub shard: u64,
    /// Flag that cancels the write.
    pub stop: &'a AtomicBool,
    /// Callback that receives the bytes written so far and the total.
    pub progress: &'a mut dyn FnMut(u64, u64),
}

/// Default maximum bytes of a shard.
pub const SHARD: u64 = 4_000_000_000;
/// Disk space reserved for headers, index and tokenizer.
const BESIDE: u64 = 16 << 20;

impl Backbone {
    /// Creates a backbone from a config. The same config and seed give the same bytes on every machine.
    ///
    /// # Errors
    /// Fails if the decoder does not support the config, or if the vocabulary is smaller than the tokenizer's.
    pub fn new(mut config: Value, seed: u64) -> Result<Self> {
        // Use the tokenizer of the bundled backbones: its ids fit into any real vocabulary, and text tokenizes
        // normally.
        let tokenizer = Tokens::parse(match config.get("model_type").and_then(Value::as_str) {
            Some("llama") => include_bytes!("../../../../data/tiny/llama/tokenizer.json"),
            Some("qwen3") => include_bytes!("../../../../data/tiny/qwen3/tokenizer.json"),
            _ => include_bytes!("../../../../data/tiny/olmo2/tokenizer.json"),
        })?;
        for key in ["bos_token_id", "eos_token_id"] {
            config[key] = tokenizer.end.into();
        }
        // transformers before 4.56 reads `torch_dtype`.
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

    pub fn bytes(&self) -> u64 {
        self.tensors.iter().map(|tensor| tensor.bytes() as u64).sum()
    }

    /// Writes the folder next to its final path, moves it there, and returns the number of weight files.
    ///
    /// # Errors
    /// Fails if the folder exists and is not empty, the disk lacks space, a file cannot be written, or `stop` is set. A
    /// failed write leaves no files.
    pub fn write(&self, folder: &Path, writing: &mut Writing<'_>) -> Result<usize> {
        let (parent, name) = place(folder)?;
        fs::create_dir_all(&parent).map_err(|error| Error::io("create", &parent, &error))?;
        sweep(&parent);
        self.enough_room(&parent)?;
        let draft = temporary_folder(&parent, &name).map_err(|error| Error::io("create", &parent, &error))?;
        self.files(draft.path(), writing)?;
        // If the folder is no longer empty, the rename fails.
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

    /// Groups the tensors in order into files of at most `most` bytes.
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

/// Splits the path of a new folder into its parent and its name. Fails if the folder is not empty.
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

/// Returns the random key of a tensor. The key depends on its name and not its offset, so that layer 0 is the same with
/// one layer and with 32.
fn key(seed: u64, name: &str) -> u64 {
    let hash = sha256::of_bytes(format!("{seed} {name}"));
    u64::from_str_radix(&hash[..16], 16).unwrap_or(seed)
}
