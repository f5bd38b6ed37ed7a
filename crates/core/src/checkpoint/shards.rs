//! Streaming writer for checkpoint weight files. At most one tensor is in memory, and usually only a block of it.

use std::collections::HashMap;
use std::fs::File;
use std::io::Write;
use std::path::Path;

use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;
use safetensors::tensor::{Metadata, TensorInfo};
use serde_json::{Map, Value, json};

use super::layout::{CheckpointTensor, Layout, TensorContent};
use crate::error::{Error, Result};
use crate::model::tensor_name::name;
use crate::model::weights::{SINGLE, Weights};
use crate::model::{FloatType, MergedLayer, weighted_sum};

/// Number of elements per written block.
const BLOCK_ELEMENTS: usize = 1 << 20;
/// Number of elements that a thread converts per task.
const ELEMENTS_PER_TASK: usize = 1 << 14;

#[derive(Debug)]
pub struct WeightFiles {
    pub names: Vec<String>,
    /// Content of the index file, or `None` if there is only one weight file.
    pub index: Option<Value>,
}

impl Layout {
    /// Writes the weight files into a folder. A file contains at most `max_bytes` bytes of tensor data, unless a single
    /// tensor is larger. Calls `on_written` with the size of every written block in bytes.
    ///
    /// # Errors
    /// Fails if stored weights cannot be read, a value overflows the float type (the error names the tensor), or a file
    /// cannot be written. Propagates errors from `on_written`.
    pub fn write(
        &self,
        folder: &Path,
        max_bytes: u64,
        on_written: &mut dyn FnMut(u64) -> Result<()>,
    ) -> Result<WeightFiles> {
        let shards = self.group_into_shards(max_bytes);
        let mut names = Vec::new();
        let mut map = Map::new();
        for (index, tensors) in shards.iter().enumerate() {
            let name = match shards.len() {
                1 => SINGLE.to_owned(),
                count => format!("model-{:05}-of-{count:05}.safetensors", index + 1),
            };
            map.extend(tensors.iter().map(|tensor| (tensor.name.clone(), Value::from(name.clone()))));
            let path = folder.join(&name);
            let mut file = File::create(&path).map_err(|error| write_error(&error, &path))?;
            let mut write_bytes = |bytes: &[u8]| file.write_all(bytes).map_err(|error| write_error(&error, &path));
            let infos = tensors
                .iter()
                .map(|tensor| (tensor.name.clone(), tensor.dtype.candle_dtype().into(), tensor.shape.clone()))
                .collect();
            write_bytes(&header(infos)?)?;
            for tensor in tensors {
                let mut bytes = Vec::new();
                for_each_block(tensor, &self.weights, &mut |values| {
                    encode(&tensor.name, tensor.dtype, values, &mut bytes)?;
                    write_bytes(&bytes)?;
                    on_written(bytes.len() as u64)
                })?;
            }
            file.sync_all().map_err(|error| write_error(&error, &path))?;
            names.push(name);
        }
        let metadata = json!({"total_parameters": self.parameters(), "total_size": self.bytes()});
        let index = (shards.len() > 1).then(|| json!({"metadata": metadata, "weight_map": map}));
        Ok(WeightFiles { names, index })
    }

    /// Groups the tensors into files. Within a file, wider dtypes come first so that tensors are aligned.
    fn group_into_shards(&self, max_bytes: u64) -> Vec<Vec<&CheckpointTensor>> {
        let (mut shards, mut free_bytes): (Vec<Vec<&CheckpointTensor>>, u64) = (Vec::new(), 0);
        for tensor in &self.tensors {
            match shards.last_mut() {
                Some(shard) if tensor.bytes() <= free_bytes => shard.push(tensor),
                _ => {
                    shards.push(vec![tensor]);
                    free_bytes = max_bytes;
                }
            }
            free_bytes = free_bytes.saturating_sub(tensor.bytes());
        }
        shards.iter_mut().for_each(|shard| shard.sort_by_key(|tensor| std::cmp::Reverse(tensor.dtype.bytes())));
        shards
    }
}

fn write_error(error: &std::io::Error, path: &Path) -> Error {
    Error::io("write", path, error)
}

/// Encodes the length prefix and the JSON header of a safetensors file. The header is padded with spaces to a multiple
/// of eight bytes. transformers requires the `format` metadata entry.
///
/// # Errors
/// Fails if the header cannot be encoded.
pub fn header(tensors: Vec<(String, Dtype, Vec<usize>)>) -> Result<Vec<u8>> {
    let mut end = 0;
    let infos = tensors.into_iter().map(|(name, dtype, shape)| {
        let start = end;
        end += shape.iter().product::<usize>() * dtype.bitsize() / 8;
        (name, TensorInfo { dtype, shape, data_offsets: (start, end) })
    });
    let format = HashMap::from([("format".to_string(), "pt".to_string())]);
    let metadata = Metadata::new(Some(format), infos.collect()).map_err(|error| header_error(error.to_string()))?;
    let mut text = serde_json::to_vec(&metadata).map_err(|error| header_error(error.to_string()))?;
    text.resize(text.len().next_multiple_of(8), b' ');
    Ok([&(text.len() as u64).to_le_bytes()[..], &text].concat())
}

fn header_error(found: String) -> Error {
    Error::job("cannot write the header of a weight file").found(found)
}

/// Passes the elements of a tensor to `visit` in order, block by block.
pub(super) fn for_each_block(
    tensor: &CheckpointTensor,
    weights: &Weights,
    visit: &mut dyn FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    let mut in_blocks = |values: &[f32]| values.chunks(BLOCK_ELEMENTS).try_for_each(&mut *visit);
    match &tensor.content {
        TensorContent::Stored(name) => weights.read_blocks(name, &tensor.shape, BLOCK_ELEMENTS, visit),
        TensorContent::Folded(name, operator) if tensor.shape.len() == 1 => {
            in_blocks(&operator.apply(&weights.take(name, &tensor.shape)?)?)
        }
        TensorContent::Folded(name, operator) => {
            let [c, inner] = [tensor.shape[0], tensor.shape[1]];
            let columns = operator.apply(&weights.read_transposed(&[(name, c)], inner)?)?; // [inner, C]
            for_each_transposed_block(&columns, c, visit)
        }
        TensorContent::Merged(part, merged) => in_blocks(&read_merged_values(part, merged, &tensor.shape, weights)?),
        TensorContent::Bias(operator) => in_blocks(&operator.bias()?.unwrap_or_default()),
        TensorContent::Operator(operator) if operator.is_diagonal() => in_blocks(&operator.parts()?.1),
        TensorContent::Operator(operator) => for_each_transposed_block(&operator.matrix()?, operator.channels(), visit),
        TensorContent::Norm(operator) => in_blocks(&operator.norm()?.and_then(|norm| norm.weight).unwrap_or_default()),
    }
}

/// Reads the same tensor from several layers and returns the weighted sum.
pub(super) fn read_merged_values(
    part: &str,
    merged: &MergedLayer,
    shape: &[usize],
    weights: &Weights,
) -> Result<Vec<f32>> {
    let sources = merged.factors().map(|(layer, factor)| Ok((factor, weights.take(&name(layer, part), shape)?)));
    let sources: Vec<(f64, Vec<f32>)> = sources.collect::<Result<_>>()?;
    Ok(weighted_sum(&sources.iter().map(|(factor, values)| (*factor, &values[..])).collect::<Vec<_>>()))
}

/// Passes the transpose of `matrix [rows, columns]` to `visit`, several rows at a time.
fn for_each_transposed_block(
    matrix: &[f32],
    columns: usize,
    visit: &mut dyn FnMut(&[f32]) -> Result<()>,
) -> Result<()> {
    let rows = matrix.len() / columns.max(1);
    let height = (BLOCK_ELEMENTS / rows.max(1)).clamp(1, columns.max(1));
    let mut block = vec![0.0; height * rows];
    for first in (0..columns).step_by(height) {
        let height = height.min(columns - first);
        let block = &mut block[..height * rows];
        block.par_chunks_mut(rows).enumerate().for_each(|(line, out)| {
            out.iter_mut().zip(matrix.chunks_exact(columns)).for_each(|(v, row)| *v = row[first + line]);
        });
        visit(block)?;
    }
    Ok(())
}

/// Encodes values as `dtype`, in little-endian byte order. Fails if a value is not finite in that type.
pub(super) fn encode(name: &str, dtype: FloatType, values: &[f32], bytes: &mut Vec<u8>) -> Result<()> {
    let width = dtype.bytes() as usize;
    bytes.resize(values.len() * width, 0);
    let chunks = bytes.par_chunks_mut(ELEMENTS_PER_TASK * width).zip(values.par_chunks(ELEMENTS_PER_TASK));
    let non_finite = chunks.find_map_any(|(bytes, values)| {
        fn encode_each<const W: usize>(
            bytes: &mut [u8],
            values: &[f32],
            convert: impl Fn(f32) -> ([u8; W], bool),
        ) -> Option<f32> {
            let mut non_finite = None;
            for (bytes, &value) in bytes.as_chunks_mut().0.iter_mut().zip(values) {
                let (converted, is_finite) = convert(value);
                *bytes = converted;
                if !is_finite {
                    non_finite = Some(value);
                }
            }
            non_finite
        }
        match dtype {
            FloatType::F32 => encode_each(bytes, values, |v| (v.to_le_bytes(), v.is_finite())),
            FloatType::F16 => encode_each(bytes, values, |v| {
                let v = f16::from_f32(v);
                (v.to_le_bytes(), v.is_finite())
            }),
            FloatType::Bf16 => encode_each(bytes, values, |v| {
                let v = bf16::from_f32(v);
                (v.to_le_bytes(), v.is_finite())
            }),
        }
    });
    match non_finite {
        None => Ok(()),
        Some(value) => Err(Error::job("a weight overflows its float type")
            .at(format!("tensor {name}"))
            .expected(format!("a number in the range of {}", dtype.name()))
            .found(value)
            .hint("use --dtype f32, or bf16 for smaller files")),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn matrix_is_written_transposed_in_row_blocks() {
        let rows = 3;
        let columns = 5;
        let matrix: Vec<f32> = (0..rows * columns).map(|i| i as f32).collect();
        let mut out = Vec::new();
        for_each_transposed_block(&matrix, columns, &mut |block| {
            out.extend_from_slice(block);
            Ok(())
        })
        .unwrap();
        let expected: Vec<f32> = (0..columns).flat_map(|j| (0..rows).map(move |i| (i * columns + j) as f32)).collect();
        assert_eq!(out, expected);
    }

    #[test]
    fn overflow_error_names_the_tensor_the_value_and_the_type() {
        let mut bytes = Vec::new();
        assert!(encode("w", FloatType::F32, &[70_000.0], &mut bytes).is_ok());
        assert!(encode("w", FloatType::Bf16, &[70_000.0], &mut bytes).is_ok());
        let error = encode("w", FloatType::F16, &[1.0, 70_000.0], &mut bytes).unwrap_err().to_string();
        assert!(error.contains("tensor w") && error.contains("70000") && error.contains("f16"), "{error}");
    }

    #[test]
    fn header_lists_tensors_and_aligns_data_to_eight_bytes() {
        let bytes = header(vec![("a".into(), Dtype::F32, vec![3]), ("b".into(), Dtype::F16, vec![2, 5])]).unwrap();
        let length = u64::from_le_bytes(bytes[..8].try_into().unwrap()) as usize;
        assert_eq!((length + 8, bytes.len() % 8), (bytes.len(), 0));
        let header: Value = serde_json::from_slice(&bytes[8..]).unwrap();
        assert_eq!(header["__metadata__"]["format"], "pt");
        assert_eq!(header["b"], json!({"dtype": "F16", "shape": [2, 5], "data_offsets": [12, 32]}));
    }
}
