//! Weight files of a backbone: a single `model.safetensors`, shards with an index, or a single GGUF file.
//!
//! Files are read instead of memory-mapped. If a mapped file were truncated while in use, `SIGBUS` would kill the
//! process, whereas a failed read returns an error that names the file.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Component, Path, PathBuf};

use candle_core::quantized::GgmlDType;
use safetensors::Dtype;

use super::resident_weights::ElementEncoding;
use super::shard::Shard;
use super::stored::{self, Float, StoredTensor};
use crate::error::{Error, Result};
use crate::files::gguf::is_gguf;
use crate::files::regular;
use crate::linalg::panels::{PackedFormat, Panels};

pub(crate) const SINGLE: &str = "model.safetensors";
/// Name of the index file, which maps tensors to weight files. It exists only if there are several weight files.
pub const INDEX: &str = "model.safetensors.index.json";

pub struct Weights {
    folder: PathBuf,
    shards: Vec<Shard>,
    /// For each tensor, the index of its file in `shards`.
    shard_index: BTreeMap<String, usize>,
    /// Stored names of the tensors that passed [`Self::check`].
    checked: BTreeSet<String>,
    /// Stored locations of the tensors whose requested names differ from their stored names.
    aliases: BTreeMap<String, TensorAlias>,
    /// Types of the tensors that are quantized at load time, keyed by requested name.
    quantized: BTreeMap<String, GgmlDType>,
}

/// Tensor, or range of its rows, that is requested under another name.
struct TensorAlias {
    stored_name: String,
    rows: Option<Rows>,
}

/// Row range of a stored tensor. All dimensions except the last are flattened into rows. The number of rows follows
/// from the requested shape.
#[derive(Clone)]
pub(super) struct Rows {
    /// Shape of the complete tensor.
    pub(super) shape: Vec<usize>,
    pub(super) first: usize,
}

impl Weights {
    /// Opens the weight files in a folder, or a GGUF file.
    ///
    /// # Errors
    /// Fails if there is no weight file, a file is truncated or malformed, or the index names a missing file or tensor.
    pub fn open(folder: &Path) -> Result<Self> {
        let (files, index) = find_weight_files(folder)?;
        let shards = files.iter().map(|file| Shard::open(file)).collect::<Result<Vec<_>>>()?;
        let mut shard_index = BTreeMap::new();
        for (position, shard) in shards.iter().enumerate() {
            for name in shard.tensors.keys() {
                if let Some(first) = shard_index.insert(name.clone(), position) {
                    let first: &Shard = &shards[first];
                    return Err(Error::bad_input("two weight files contain the same tensor")
                        .at(format!("tensor {name}"))
                        .found(format!("{} and {}", first.path.display(), shard.path.display())));
                }
            }
        }
        if let Some(index) = index {
            for (name, file) in index {
                if shard_index.get(&name).is_none_or(|&index| shards[index].path != folder.join(&file)) {
                    return Err(Error::bad_input("the shard index lists a tensor that the shard does not contain")
                        .at(folder.join(INDEX).display())
                        .expected(format!("tensor {name} in {file}"))
                        .hint("download the shard again; it is damaged or belongs to another model"));
                }
            }
        }
        let folder = folder.to_path_buf();
        let checked = BTreeSet::new();
        let aliases = BTreeMap::new();
        let quantized = BTreeMap::new();
        Ok(Self { folder, shards, shard_index, checked, aliases, quantized })
    }

    /// Returns the paths of the weight files in a folder. For a GGUF file, returns its own path.
    pub fn files(folder: &Path) -> Result<Vec<PathBuf>> {
        Ok(find_weight_files(folder)?.0)
    }

    /// Checks that a tensor exists and has the given shape and a float type, without reading its data. Records the
    /// tensor as used, for [`Self::finish`].
    ///
    /// # Errors
    /// Fails with an error that names the file and tensor.
    pub fn check(&mut self, name: &str, shape: &[usize]) -> Result<()> {
        self.locate(name, shape)?;
        self.checked.insert(self.stored_name(name).to_string());
        Ok(())
    }

    /// Makes the tensor `stored_name`, or some of its rows, available as `name`.
    pub(super) fn alias(&mut self, stored_name: &str, rows: Option<Rows>, name: &str) {
        self.aliases.insert(name.to_owned(), TensorAlias { stored_name: stored_name.to_owned(), rows });
    }

    /// Registers the types to which matrices are quantized when they are read, by requested name.
    pub(super) fn quantize(&mut self, matrices: Vec<(String, GgmlDType)>) {
        self.quantized.extend(matrices);
    }

    /// Returns whether the files contain a tensor named `name`.
    pub(super) fn contains(&self, name: &str) -> bool {
        self.shard_index.contains_key(name)
    }

    /// Iterates over the checked tensors. Yields the requested name, stored name and file of each tensor.
    pub(super) fn checked_tensors(&self) -> impl Iterator<Item = (&str, &str, &Path)> {
        self.checked.iter().filter_map(|stored| {
            let requested = self
                .aliases
                .iter()
                .find(|(_, entry)| entry.rows.is_none() && entry.stored_name == *stored)
                .map_or(stored, |(requested, _)| requested);
            Some((requested.as_str(), stored.as_str(), self.shards[*self.shard_index.get(stored)?].path.as_path()))
        })
    }

    fn stored_name<'a>(&'a self, name: &'a str) -> &'a str {
        self.aliases.get(name).map_or(name, |entry| entry.stored_name.as_str())
    }

    /// Returns the stored dtype of a tensor, or f32 if it is quantized. Returns `None` if the tensor does not exist.
    pub fn dtype(&self, name: &str) -> Option<Dtype> {
        if self.quantized.contains_key(name) {
            return Some(Dtype::F32);
        }
        let name = self.stored_name(name);
        Some(match self.shards[*self.shard_index.get(name)?].tensors.get(name)?.encoding {
            ElementEncoding::Plain(dtype) => dtype,
            ElementEncoding::Blocks(_) => Dtype::F32,
        })
    }

    pub(super) fn is_gguf(&self) -> bool {
        is_gguf(&self.folder)
    }

    /// Reads a tensor of any float type as f32.
    ///
    /// # Errors
    /// Fails if the tensor is missing, has a different shape or an unsupported type, contains a non-finite value, or if
    /// its file has changed. The error names the file and tensor.
    pub fn take(&self, name: &str, shape: &[usize]) -> Result<Vec<f32>> {
        self.locate(name, shape)?.values()
    }

    /// Reads a tensor in storage order in blocks of at most `max_values` elements, and passes each block to `each`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::take`], or if `each` fails.
    pub fn read_blocks(
        &self,
        name: &str,
        shape: &[usize],
        max_values: usize,
        each: &mut dyn FnMut(&[f32]) -> Result<()>,
    ) -> Result<()> {
        self.locate(name, shape)?.read_blocks(max_values, each)
    }

    /// Reads rows of a matrix as f32, and concatenates them.
    ///
    /// # Errors
    /// Fails in the same cases as [`Self::take`]. Only the rows read are checked for non-finite values.
    ///
    /// # Panics
    /// Panics if a row is out of bounds.
    pub fn rows(&self, name: &str, shape: [usize; 2], rows: &[u32]) -> Result<Vec<f32>> {
        self.locate(name, &shape)?.rows(rows)
    }

    /// Reads stored matrices `[outer, inner]` as one f32 matrix `[inner, Σ outer]`. `matrices` contains the name and
    /// the size along `outer` of each matrix.
    ///
    /// # Errors
    /// See [`Self::take`].
    pub fn read_transposed<N: AsRef<str>>(&self, matrices: &[(N, usize)], inner: usize) -> Result<Vec<f32>> {
        let total: usize = matrices.iter().map(|(_, outer)| outer).sum();
        let mut out = vec![0.0; inner * total];
        let mut first = 0;
        for (name, outer) in matrices {
            self.locate(name.as_ref(), &[*outer, inner])?.read_transposed(&mut out, total, first)?;
            first += outer;
        }
        Ok(out)
    }

    /// Reads stored matrices `[outer, inner]` as panels of one matrix `[inner, Σ outer]`. `matrices` contains the name
    /// and the size along `outer` of each matrix. Elements are converted or rounded to the panels' type.
    ///
    /// # Errors
    /// See [`Self::take`].
    pub(super) fn pack_panels<K: PackedFormat, N: AsRef<str>>(
        &self,
        matrices: &[(N, usize)],
        inner: usize,
    ) -> Result<Panels<K>> {
        let located = matrices.iter().map(|(name, outer)| self.locate(name.as_ref(), &[*outer, inner]));
        stored::pack_panels(&located.collect::<Result<Vec<_>>>()?, inner)
    }

    fn locate<'a>(&'a self, name: &'a str, shape: &[usize]) -> Result<StoredTensor<'a>> {
        let rows = self.aliases.get(name).and_then(|entry| entry.rows.as_ref());
        let quantized = self.quantized.get(name).copied();
        let name = self.stored_name(name);
        let stored_shape = rows.map_or(shape, |rows| rows.shape.as_slice());
        let found = self.shard_index.get(name).and_then(|&index| Some((index, self.shards[index].tensors.get(name)?)));
        let (index, info) = found.ok_or_else(|| self.missing_tensor_error(name, stored_shape))?;
        let shard = &self.shards[index];
        let mut info = info.clone();
        if info.shape != stored_shape {
            return Err(Error::bad_input("a tensor has the wrong shape")
                .at(shard.location(name))
                .expected(format!("{stored_shape:?}"))
                .found(format!("{:?}", info.shape))
                .hint("check that config.json and the weights belong to the same model, and that the config was not edited"));
        }
        let inner = shape.last().copied().unwrap_or(1);
        let first = rows.map_or(0, |rows| rows.first) * inner;
        let requested = shape.iter().product::<usize>();
        let stored_elements = stored_shape.iter().product::<usize>();
        if stored_shape.last() != shape.last() || first + requested > stored_elements {
            return Err(Error::job("the requested rows exceed the tensor")
                .at(shard.location(name))
                .expected(format!("at most {stored_shape:?}"))
                .found(format!("{shape:?} from element {first}")));
        }
        info.shape = shape.to_vec();
        let Some(float) = Float::from_encoding(info.encoding) else {
            return Err(Error::bad_input("unsupported tensor type")
                .at(shard.location(name))
                .expected("F64, F32, F16 or BF16")
                .found(info.encoding));
        };
        Ok(StoredTensor { shard, name, info, first, float: quantized.map_or(float, |_| Float::F32), quantized })
    }

    /// Fails if a stored tensor was not checked, unless `ignorable` accepts its name. An ignored bias, for example,
    /// would silently give wrong results.
    pub fn finish(&self, ignorable: impl Fn(&str) -> bool) -> Result<()> {
        let unused: Vec<&str> = self
            .shard_index
            .keys()
            .filter(|name| !self.checked.contains(*name) && !ignorable(name))
            .map(String::as_str)
            .collect();
        if unused.is_empty() {
            return Ok(());
        }
        Err(Error::bad_input("the weights contain tensors that the architecture does not use")
            .at(self.folder.display())
            .found(format!("{} such tensors, including {}", unused.len(), unused[0]))
            .hint("check that config.json belongs to this model and lists all of its layers"))
    }

    fn missing_tensor_error(&self, name: &str, shape: &[usize]) -> Error {
        Error::bad_input("a tensor is missing from the weights")
            .at(self.folder.display())
            .expected(format!("tensor {name} of shape {shape:?}"))
            .found(format!("{} other tensors", self.shard_index.len()))
            .hint("check that config.json and the weights belong to the same model, and that no shard is missing")
    }
}

/// Tensor name and shard file name for each entry in an index.
type ShardIndex = Vec<(String, String)>;

/// Finds the weight files in a folder, and reads the shard index if there is one. Fails if a listed shard is missing.
fn find_weight_files(folder: &Path) -> Result<(Vec<PathBuf>, Option<ShardIndex>)> {
    if is_gguf(folder) {
        return Ok((vec![folder.to_owned()], None));
    }
    let index = folder.join(INDEX);
    if !index.is_file() {
        if folder.join(SINGLE).is_file() {
            return Ok((vec![folder.join(SINGLE)], None));
        }
        let has_pickles =
            folder.join("pytorch_model.bin").is_file() || folder.join("pytorch_model.bin.index.json").is_file();
        let error = Error::missing("the backbone has no weights")
            .at(folder.display())
            .expected(format!("{SINGLE}, or {INDEX} with its shards"));
        return Err(if has_pickles {
            error.hint("save the model as safetensors; pickled weights are not supported")
        } else {
            error
        });
    }
    let location = index.display().to_string();
    let bytes = regular::read(&index)?;
    let value: serde_json::Value = serde_json::from_slice(&bytes)
        .map_err(|error| Error::bad_input("malformed JSON").at(&location).found(error))?;
    let entries = value
        .get("weight_map")
        .and_then(serde_json::Value::as_object)
        .and_then(|map| {
            map.iter().map(|(k, v)| Some((k.clone(), v.as_str()?.to_string()))).collect::<Option<ShardIndex>>()
        })
        .ok_or_else(|| Error::bad_input("the shard index has no `weight_map` object").at(&location))?;
    let files: BTreeSet<String> = entries.iter().map(|(_, file)| file.clone()).collect();
    for file in &files {
        // The index is untrusted input and must not refer to files outside its folder.
        if !Path::new(file).components().all(|part| matches!(part, Component::Normal(_))) {
            return Err(Error::bad_input("the index lists a file outside its folder")
                .at(location)
                .expected("the name of a shard next to the index")
                .found(format!("`{file}`")));
        }
        if !folder.join(file).is_file() {
            return Err(Error::missing("a shard is missing").at(location).expected(folder.join(file).display()));
        }
    }
    Ok((files.into_iter().map(|file| folder.join(file)).collect(), Some(entries)))
}
