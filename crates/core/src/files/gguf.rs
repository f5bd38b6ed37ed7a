//! Reader for GGUF files, as used by llama.cpp. The header is parsed by candle and checked against the file length.

use std::collections::{BTreeMap, HashMap};
use std::fs::File;
use std::io::{Cursor, Read, Seek, SeekFrom};
use std::path::{Path, PathBuf};

use candle_core::quantized::gguf_file::{Content, Value};
use candle_core::quantized::{GgmlDType, QTensor, ggml_file};

use super::{panics, regular};
use crate::error::{Error, Result, shorten};

/// Maximum size of a header in bytes. The largest known headers, with half a million BPE merges, take 20 MB. In memory,
/// a value takes up to 32 times its size in the file.
const MAX_HEADER_BYTES: u64 = 1 << 25;
/// Supported tensor types, as listed in messages.
pub const TYPES: &str = "F32, F16, BF16, Q8_0, Q4_0, Q4_1, Q5_0, Q5_1, Q2_K, Q3_K, Q4_K, Q5_K or Q6_K";

/// Returns whether a path has the extension of a GGUF file.
pub fn is_gguf(path: &Path) -> bool {
    path.extension().is_some_and(|extension| extension.eq_ignore_ascii_case("gguf")) && !path.is_dir()
}

/// Tensor in a GGUF file: its type, shape and position.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct GgufTensor {
    pub dtype: GgmlDType,
    /// Dimensions with rows first, the reverse of the order in the file.
    pub shape: Vec<usize>,
    /// Byte offset from the start of the file.
    pub start: u64,
    pub bytes: u64,
}

/// Header of a GGUF file: its tensors and metadata entries.
pub struct Gguf {
    pub path: PathBuf,
    pub tensors: BTreeMap<String, GgufTensor>,
    metadata: HashMap<String, Value>,
}

impl Gguf {
    /// Reads the header of a file.
    ///
    /// # Errors
    /// Fails if the file is not GGUF, is truncated or damaged, is one part of a split model, or has a tensor of an
    /// unsupported type.
    pub fn open(path: &Path) -> Result<Self> {
        let mut file = regular::open(path)?;
        Self::read(path, &mut file)
    }

    /// Reads the header of an open file.
    ///
    /// # Errors
    /// See [`Self::open`].
    pub fn read(path: &Path, file: &mut File) -> Result<Self> {
        let length = file.metadata().map_err(|error| Error::io("read", path, &error))?.len();
        let mut head = Vec::new();
        file.seek(SeekFrom::Start(0)).map_err(|error| Error::io("read", path, &error))?;
        file.take(MAX_HEADER_BYTES).read_to_end(&mut head).map_err(|error| Error::io("read", path, &error))?;
        // The tensor count in the header reveals duplicate names, which candle's map merges.
        let count = head.get(8..16).and_then(|bytes| bytes.try_into().ok()).map(u64::from_le_bytes);
        let is_version_1 = head.get(4..8) == Some(&[1, 0, 0, 0]);
        let content = panics::catch(|| Content::read(&mut Cursor::new(&head)))
            .map_err(|panic| unreadable_file_error(format!("the reader panicked: {panic}"), path))?
            // Keep the first line only, because candle's errors may contain a backtrace.
            .map_err(|error| {
                unreadable_file_error(error.to_string().lines().next().unwrap_or_default().to_owned(), path)
            })?;
        if !is_version_1 && count != Some(content.tensor_infos.len() as u64) {
            return Err(unreadable_file_error("two tensors with the same name".to_owned(), path));
        }
        let mut tensors = BTreeMap::new();
        for (name, info) in content.tensor_infos {
            let dtype = info.ggml_dtype;
            let shape = info.shape.dims().to_vec();
            if matches!(dtype, GgmlDType::Q8_1 | GgmlDType::Q8K) {
                return Err(unreadable_file_error(format!("tensor {name} of type {dtype:?}"), path));
            }
            let shape_error =
                || unreadable_file_error(format!("tensor {name} of shape {shape:?}, type {dtype:?}"), path);
            let numbers =
                shape.iter().try_fold(1_usize, |product, &side| product.checked_mul(side)).ok_or_else(shape_error)?;
            let block = dtype.block_size();
            let row = shape.last().copied().unwrap_or(1);
            if numbers == 0 || row % block != 0 {
                return Err(shape_error());
            }
            let bytes = (numbers / block).checked_mul(dtype.type_size()).ok_or_else(shape_error)? as u64;
            let start = content.tensor_data_offset.saturating_add(info.offset);
            if start.saturating_add(bytes) > length {
                return Err(unreadable_file_error(
                    format!("{length} bytes, but tensor {name} ends at byte {}", start.saturating_add(bytes)),
                    path,
                ));
            }
            tensors.insert(name, GgufTensor { dtype, shape, start, bytes });
        }
        let header = Self { path: path.to_owned(), tensors, metadata: content.metadata };
        match header.count("split.count")? {
            None | Some(0 | 1) => Ok(header),
            Some(parts) => Err(Error::bad_input("the GGUF file is one part of a split model")
                .at(header.location("split.count"))
                .expected("a model in a single file")
                .found(format!("{parts} parts"))
                .hint("merge the parts with llama.cpp's `llama-gguf-split --merge FIRST_PART OUTPUT`")),
        }
    }

    /// Formats the location of a header entry for messages.
    pub fn location(&self, key: &str) -> String {
        format!("{}, {key}", self.path.display())
    }

    /// Returns all entry names, sorted.
    pub fn keys(&self) -> Vec<&str> {
        let mut keys: Vec<&str> = self.metadata.keys().map(String::as_str).collect();
        keys.sort_unstable();
        keys
    }

    /// Formats an entry for a message.
    pub fn describe_entry(&self, key: &str) -> String {
        match self.metadata.get(key) {
            None => "nothing".to_owned(),
            Some(Value::Array(list)) => format!("a list of {} items", list.len()),
            Some(value) => format_scalar(value),
        }
    }

    fn value_error(&self, key: &str, expected: &str) -> Error {
        Error::bad_input("invalid metadata entry in the GGUF file")
            .at(self.location(key))
            .expected(expected)
            .found(self.describe_entry(key))
    }

    /// Reads and converts an entry. Returns `None` if it does not exist.
    fn read_typed<'a, T>(
        &'a self,
        key: &str,
        expected: &str,
        convert: impl Fn(&'a Value) -> Option<T>,
    ) -> Result<Option<T>> {
        self.metadata.get(key).map(|value| convert(value).ok_or_else(|| self.value_error(key, expected))).transpose()
    }

    /// Reads a nonnegative integer of any width, or returns `None` if there is no entry. A list must have the same
    /// value for all layers.
    ///
    /// # Errors
    /// Fails if the entry has another type, is negative, or differs between layers.
    pub fn count(&self, key: &str) -> Result<Option<u64>> {
        self.read_typed(key, "a whole number, the same for each layer", |value| match value {
            Value::Array(list) => {
                let first = as_unsigned(list.first()?)?;
                list.iter().all(|item| as_unsigned(item) == Some(first)).then_some(first)
            }
            value => as_unsigned(value),
        })
    }

    /// Reads nonnegative integers of any width, from a list or a single integer, or returns `None` if there is no
    /// entry.
    ///
    /// # Errors
    /// Fails if the entry has another type.
    pub fn counts(&self, key: &str) -> Result<Option<Vec<u64>>> {
        self.read_typed(key, "a whole number, or a list with one for each layer", |value| match value {
            Value::Array(list) => list.iter().map(as_unsigned).collect(),
            value => as_unsigned(value).map(|count| vec![count]),
        })
    }

    /// Reads a number, or returns `None` if there is no entry.
    ///
    /// # Errors
    /// Fails if the entry has another type.
    pub fn number(&self, key: &str) -> Result<Option<f64>> {
        self.read_typed(key, "a number", as_f64)
    }

    /// Reads a string, or returns `None` if there is no entry.
    ///
    /// # Errors
    /// Fails if the entry has another type.
    pub fn text(&self, key: &str) -> Result<Option<&str>> {
        self.read_typed(
            key,
            "a string",
            |value| if let Value::String(text) = value { Some(text.as_str()) } else { None },
        )
    }

    /// Returns whether the projection with this name has a bias in any layer.
    pub fn has_bias(&self, projection: &str) -> bool {
        let ending = format!(".{projection}.bias");
        self.tensors.keys().any(|name| name.ends_with(&ending))
    }

    /// Reads a boolean, or returns `None` if there is no entry.
    ///
    /// # Errors
    /// Fails if the entry has another type.
    pub fn flag(&self, key: &str) -> Result<Option<bool>> {
        self.read_typed(key, "true or false", |value| {
            if let Value::Bool(flag_value) = value { Some(*flag_value) } else { None }
        })
    }

    /// Reads a list of strings, or returns `None` if there is no entry.
    ///
    /// # Errors
    /// Fails if the entry has another type.
    pub fn texts(&self, key: &str) -> Result<Option<Vec<&str>>> {
        fn text(value: &Value) -> Option<&str> {
            if let Value::String(text) = value { Some(text) } else { None }
        }
        self.read_typed(key, "a list of strings", |value| match value {
            Value::Array(list) => list.iter().map(text).collect(),
            _ => None,
        })
    }

    /// Reads a list of numbers, or returns `None` if there is no entry.
    ///
    /// # Errors
    /// Fails if the entry has another type.
    pub fn numbers(&self, key: &str) -> Result<Option<Vec<f64>>> {
        self.read_typed(key, "a list of numbers", |value| match value {
            Value::Array(list) => list.iter().map(as_f64).collect(),
            _ => None,
        })
    }

    /// Reads all values of a small tensor. Returns `None` if it does not exist.
    ///
    /// # Errors
    /// Fails if the file cannot be read or the type is not supported.
    pub fn values(&self, name: &str) -> Result<Option<Vec<f32>>> {
        let Some(tensor) = self.tensors.get(name) else { return Ok(None) };
        let mut file = regular::open(&self.path)?;
        let mut blocks = Blocks::new(tensor.dtype, tensor.shape.iter().product());
        file.seek(SeekFrom::Start(tensor.start))
            .and_then(|_| file.read_exact(blocks.bytes()))
            .map_err(|error| Error::io("read", &self.path, &error))?;
        blocks.values().map(Some)
    }
}

fn unreadable_file_error(found: String, path: &Path) -> Error {
    Error::bad_input("cannot read the GGUF file")
        .at(path.display())
        .expected(format!("a complete GGUF file of version 1 to 3, with tensors of type {TYPES}"))
        .found(found)
        .hint("download the file again, or convert other types with llama.cpp's llama-quantize")
}

impl std::fmt::Debug for Gguf {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Gguf({}, {} tensors)", self.path.display(), self.tensors.len())
    }
}

/// Aligned buffer for the quantized blocks of a tensor.
pub struct Blocks {
    dtype: GgmlDType,
    numbers: usize,
    buffer: Vec<u64>,
}

impl Blocks {
    /// Allocates a buffer for `numbers` values, which must be a multiple of the block size.
    pub fn new(dtype: GgmlDType, numbers: usize) -> Self {
        let bytes = numbers.div_ceil(dtype.block_size()) * dtype.type_size();
        Self { dtype, numbers, buffer: vec![0; bytes.div_ceil(size_of::<u64>())] }
    }

    /// Returns the buffer, which the caller fills with the tensor's bytes.
    pub fn bytes(&mut self) -> &mut [u8] {
        let bytes = self.numbers.div_ceil(self.dtype.block_size()) * self.dtype.type_size();
        &mut bytemuck::cast_slice_mut(&mut self.buffer)[..bytes]
    }

    /// Dequantizes the bytes in the buffer.
    ///
    /// # Errors
    /// Fails if candle does not support the type.
    pub fn values(&mut self) -> Result<Vec<f32>> {
        let dtype = self.dtype;
        let numbers = self.numbers;
        let tensor = ggml_file::qtensor_from_ggml(dtype, self.bytes(), vec![numbers], &candle_core::Device::Cpu);
        let values = tensor.and_then(|tensor_data| tensor_data.dequantize(&candle_core::Device::Cpu)?.to_vec1());
        values.map_err(|error| Error::bad_input("unsupported tensor type").found(error))
    }
}

/// Quantizes values and dequantizes them again. The number of values must be a multiple of the block size.
///
/// # Errors
/// Fails if candle cannot quantize to the type.
pub fn round_values(dtype: GgmlDType, values: &[f32]) -> Result<Vec<f32>> {
    let cpu = candle_core::Device::Cpu;
    let tensor = candle_core::Tensor::from_slice(values, values.len(), &cpu)?;
    Ok(QTensor::quantize(&tensor, dtype)?.dequantize(&cpu)?.to_vec1()?)
}

fn as_unsigned(value: &Value) -> Option<u64> {
    match *value {
        Value::U8(n) => Some(n.into()),
        Value::U16(n) => Some(n.into()),
        Value::U32(n) => Some(n.into()),
        Value::U64(n) => Some(n),
        Value::I8(n) => n.try_into().ok(),
        Value::I16(n) => n.try_into().ok(),
        Value::I32(n) => n.try_into().ok(),
        Value::I64(n) => n.try_into().ok(),
        _ => None,
    }
}

fn as_f64(value: &Value) -> Option<f64> {
    match *value {
        Value::F32(n) => Some(n.into()),
        Value::F64(n) => Some(n),
        Value::I8(n) => Some(n.into()),
        Value::I16(n) => Some(n.into()),
        Value::I32(n) => Some(n.into()),
        ref value => as_unsigned(value).map(|n| n as f64),
    }
}

fn format_scalar(value: &Value) -> String {
    let text = match value {
        Value::String(text) => format!("`{text}`"),
        Value::Bool(boolean) => boolean.to_string(),
        value => as_f64(value).map_or_else(|| "a number".to_owned(), |number| number.to_string()),
    };
    shorten(&text, 80)
}
