//! Weight files: one `model.safetensors` or shards with an index, memory-mapped, checked tensor by tensor.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::path::{Path, PathBuf};

use half::{bf16, f16};
use memmap2::Mmap;
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, SafeTensors};

use crate::error::{Error, Result};

const SINGLE: &str = "model.safetensors";
const INDEX: &str = "model.safetensors.index.json";

/// The weights of one backbone.
pub struct Weights {
    folder: PathBuf,
    shards: Vec<Shard>,
    /// Tensor name → position in `shards`.
    holder: BTreeMap<String, usize>,
    taken: BTreeSet<String>,
}

struct Shard {
    path: PathBuf,
    map: Mmap,
    metadata: Metadata,
    /// Where the tensor bytes begin: the header's length field and the header.
    data_start: usize,
}

impl Weights {
    /// Opens the weight files of a folder.
    ///
    /// # Errors
    /// No weight file; a truncated or malformed one; an index that names a file or tensor that is not there.
    pub fn open(folder: &Path) -> Result<Self> {
        let (files, index) = files_of(folder)?;
        let shards = files.iter().map(|file| Shard::open(&folder.join(file))).collect::<Result<Vec<_>>>()?;
        let mut holder = BTreeMap::new();
        for (position, shard) in shards.iter().enumerate() {
            for name in shard.metadata.tensors().keys() {
                if let Some(first) = holder.insert(name.clone(), position) {
                    let first: &Shard = &shards[first];
                    return Err(Error::bad_input("a tensor stands in two weight files")
                        .at(format!("tensor {name}"))
                        .found(format!("{} and {}", first.path.display(), shard.path.display())));
                }
            }
        }
        if let Some(index) = index {
            for (name, file) in index {
                if holder.get(&name).is_none_or(|&at| shards[at].path != folder.join(&file)) {
                    return Err(Error::bad_input("the index names a tensor that its file does not hold")
                        .at(folder.join(INDEX).display().to_string())
                        .expected(format!("tensor {name} in {file}"))
                        .hint("a shard is damaged or from another model: fetch it again"));
                }
            }
        }
        Ok(Self { folder: folder.to_path_buf(), shards, holder, taken: BTreeSet::new() })
    }

    /// The paths of the weight files (for hashing).
    pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
        Ok(files_of(folder)?.0.iter().map(|file| folder.join(file)).collect())
    }

    /// One tensor as f32, whatever float type the file stores.
    ///
    /// # Errors
    /// The tensor is missing, of another shape or of no float type, or holds a value that is not finite: named with file and place.
    pub fn take(&mut self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        let shard =
            self.holder.get(name).map(|&at| &self.shards[at]).ok_or_else(|| self.missing_tensor(name, shape))?;
        let place = || format!("{}, tensor {name}", shard.path.display());
        let info = shard.metadata.info(name).ok_or_else(|| self.missing_tensor(name, shape))?;
        if info.shape != shape {
            return Err(Error::bad_input("a tensor has the wrong shape")
                .at(place())
                .expected(format!("{shape:?}"))
                .found(format!("{:?}", info.shape))
                .hint("config.json and the weight file are of different models, or the config was edited"));
        }
        let (start, end) = info.data_offsets;
        let bytes = &shard.map[shard.data_start + start..shard.data_start + end];
        let values = to_f32(info.dtype, bytes).ok_or_else(|| {
            Error::bad_input("a tensor has a type that the decoder does not read")
                .at(place())
                .expected("F32, F16 or BF16")
                .found(format!("{:?}", info.dtype))
        })?;
        if let Some(at) = values.par_iter().position_first(|v| !v.is_finite()) {
            return Err(Error::bad_input("a weight is not a finite number")
                .at(place())
                .found(format!("{} at element {at} of {shape:?}", values[at]))
                .hint("the file is damaged, or the model overflowed its float type when it was saved"));
        }
        self.taken.insert(name.to_string());
        Ok(values)
    }

    /// Refuses tensors that nothing asked for: a bias left out would be a wrong result without a word.
    pub fn finish(self, ignorable: impl Fn(&str) -> bool) -> Result<()> {
        let left: Vec<&str> = self
            .holder
            .keys()
            .filter(|name| !self.taken.contains(*name) && !ignorable(name))
            .map(String::as_str)
            .collect();
        if left.is_empty() {
            return Ok(());
        }
        Err(Error::bad_input("the weights hold tensors that the architecture does not use")
            .at(self.folder.display().to_string())
            .found(format!("{} such tensors, the first {}", left.len(), left[0]))
            .hint("config.json is of another model, or has too few layers"))
    }

    fn missing_tensor(&self, name: &str, shape: &[usize]) -> Error {
        Error::bad_input("a tensor is missing from the weights")
            .at(self.folder.display().to_string())
            .expected(format!("tensor {name} of shape {shape:?}"))
            .found(format!("{} other tensors", self.holder.len()))
            .hint("config.json and the weight files are of different models, or a shard is missing")
    }
}

/// Tensor name → shard file, as an index lists them.
type ShardIndex = Vec<(String, String)>;

/// The weight files of a folder, and the index's entries where there is one.
fn files_of(folder: &Path) -> Result<(Vec<String>, Option<ShardIndex>)> {
    let index = folder.join(INDEX);
    if !index.is_file() {
        if folder.join(SINGLE).is_file() {
            return Ok((vec![SINGLE.to_string()], None));
        }
        let has_pickles =
            folder.join("pytorch_model.bin").is_file() || folder.join("pytorch_model.bin.index.json").is_file();
        let error = Error::missing("the backbone has no weights")
            .at(folder.display().to_string())
            .expected(format!("{SINGLE}, or {INDEX} with its shards"));
        return Err(if has_pickles {
            error.hint("save the model as safetensors first: pickled weights are not read")
        } else {
            error
        });
    }
    let place = index.display().to_string();
    let bytes = std::fs::read(&index).map_err(|error| Error::io("read", &index, &error))?;
    let value: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|error| Error::bad_input("malformed JSON").at(&place).found(error.to_string()))?;
    let entries = value
        .get("weight_map")
        .and_then(serde_json::Value::as_object)
        .and_then(|map| {
            map.iter().map(|(k, v)| Some((k.clone(), v.as_str()?.to_string()))).collect::<Option<ShardIndex>>()
        })
        .ok_or_else(|| Error::bad_input("an index of shards needs a map weight_map of names").at(&place))?;
    let files: BTreeSet<String> = entries.iter().map(|(_, file)| file.clone()).collect();
    for file in &files {
        if !folder.join(file).is_file() {
            return Err(Error::missing("a shard is missing")
                .at(place)
                .expected(folder.join(file).display().to_string()));
        }
    }
    Ok((files.into_iter().collect(), Some(entries)))
}

impl Shard {
    fn open(path: &Path) -> Result<Self> {
        let file = File::open(path).map_err(|error| Error::io("open", path, &error))?;
        // SAFETY: the map is read-only; a file that another process truncates meanwhile would fault, as with every
        // memory-mapped reader of safetensors.
        let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::io("map", path, &error))?;
        let (header, metadata) = SafeTensors::read_metadata(&map).map_err(|error| {
            Error::bad_input("a weight file is truncated or damaged")
                .at(path.display().to_string())
                .expected("a safetensors header that covers the file exactly")
                .found(format!("{error} ({} bytes)", map.len()))
                .hint("fetch the file again")
        })?;
        Ok(Self { path: path.to_path_buf(), map, metadata, data_start: header + 8 })
    }
}

fn to_f32(dtype: Dtype, bytes: &[u8]) -> Option<Vec<f32>> {
    match dtype {
        Dtype::F32 => Some(bytes.par_chunks_exact(4).map(|b| f32::from_le_bytes([b[0], b[1], b[2], b[3]])).collect()),
        Dtype::F16 => Some(bytes.par_chunks_exact(2).map(|b| f16::from_le_bytes([b[0], b[1]]).to_f32()).collect()),
        Dtype::BF16 => Some(bytes.par_chunks_exact(2).map(|b| bf16::from_le_bytes([b[0], b[1]]).to_f32()).collect()),
        _ => None,
    }
}
