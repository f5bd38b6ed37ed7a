//! Reads stored tensors as f32: the complete tensor, selected rows or the transpose.
//!
//! All threads read, check and convert blocks that fit into the CPU cache, so no second copy of the tensor is needed.

use candle_core::quantized::GgmlDType;
use half::{bf16, f16};
use rayon::prelude::*;
use safetensors::Dtype;

use super::resident_weights::{ElementEncoding, TensorInfo};
use super::shard::Shard;
use crate::error::{Error, Result};
use crate::files::gguf::{self, Blocks};
use crate::linalg::panels::{PackedFormat, Panels};
use crate::linalg::simd;

/// Number of bytes that a thread reads at a time.
const READ_BYTES: usize = 1 << 18;
/// Number of bytes to read before transposing them, chosen to fit into a shared CPU cache.
const TRANSPOSE_BYTES: usize = 1 << 22;
/// Number of rows and columns in a transposition tile. A column fills one cache line of the f32 output, and a row fills
/// one cache line of bf16 input.
const TILE_ROWS: usize = 16;
const TILE_COLUMNS: usize = 32;

/// Float type in weight files. All types are little-endian.
#[derive(Clone, Copy)]
pub(super) enum Float {
    /// The values are rounded to f32 when read.
    F64,
    F32,
    F16,
    Bf16,
}

impl Float {
    /// Returns the float type for an encoding, or `None` if the encoding is unsupported. Quantized blocks are read as
    /// f32.
    pub(super) fn from_encoding(encoding: ElementEncoding) -> Option<Self> {
        match encoding {
            ElementEncoding::Plain(Dtype::F64) => Some(Self::F64),
            ElementEncoding::Plain(Dtype::F32) | ElementEncoding::Blocks(_) => Some(Self::F32),
            ElementEncoding::Plain(Dtype::F16) => Some(Self::F16),
            ElementEncoding::Plain(Dtype::BF16) => Some(Self::Bf16),
            ElementEncoding::Plain(_) => None,
        }
    }

    fn bytes_per_value(self) -> usize {
        match self {
            Self::F64 => 8,
            Self::F32 => 4,
            Self::F16 | Self::Bf16 => 2,
        }
    }

    #[inline(always)]
    fn convert(self, bytes: &[u8], out: &mut [f32]) {
        fn decode_each<const W: usize>(bytes: &[u8], out: &mut [f32], number: impl Fn([u8; W]) -> f32) {
            out.iter_mut().zip(bytes.as_chunks().0).for_each(|(v, &bytes)| *v = number(bytes));
        }
        match self {
            Self::F64 => decode_each(bytes, out, |bytes| f64::from_le_bytes(bytes) as f32),
            Self::F32 => decode_each(bytes, out, f32::from_le_bytes),
            Self::F16 => decode_each(bytes, out, |bytes| f16::from_le_bytes(bytes).to_f32()),
            Self::Bf16 => decode_each(bytes, out, |bytes| bf16::from_le_bytes(bytes).to_f32()),
        }
    }

    /// Returns whether all values are finite after conversion to f32, in which large f64 values overflow. In infinities
    /// and NaNs, all exponent bits are set.
    fn are_all_finite(self, bytes: &[u8]) -> bool {
        #[inline(always)]
        fn no_value_matches<const W: usize>(bytes: &[u8], not_finite: impl Fn([u8; W]) -> bool) -> bool {
            // There is no early exit, so that the loop vectorizes.
            !bytes.as_chunks().0.iter().fold(false, |any, &bytes| any | not_finite(bytes))
        }
        let half = |exponent: u16| move |bytes| u16::from_le_bytes(bytes) & exponent == exponent;
        simd::in_widest!(match self {
            Self::F64 => no_value_matches(bytes, |bytes| !(f64::from_le_bytes(bytes) as f32).is_finite()),
            Self::F32 => no_value_matches(bytes, |bytes| u32::from_le_bytes(bytes) & 0x7f80_0000 == 0x7f80_0000),
            Self::F16 => no_value_matches(bytes, half(0x7c00)),
            Self::Bf16 => no_value_matches(bytes, half(0x7f80)),
        })
    }
}

/// Tensor, or range of its rows, in a weight file, with validated shape and type.
pub(super) struct StoredTensor<'a> {
    pub(super) shard: &'a Shard,
    pub(super) name: &'a str,
    /// Tensor metadata, with the shape to read.
    pub(super) info: TensorInfo,
    /// Index of the first element to read. It is nonzero only if `info.shape` describes a row range of the stored
    /// tensor.
    pub(super) first: usize,
    /// Type of the stored values.
    pub(super) float: Float,
    /// Type to which values are quantized when they are read.
    pub(super) quantized: Option<GgmlDType>,
}

impl StoredTensor<'_> {
    /// Reads all values in stored order.
    pub(super) fn values(&self) -> Result<Vec<f32>> {
        let mut values = vec![0.0; self.info.shape.iter().product()];
        self.read_into(0, &mut values)?;
        self.shard.check_unchanged()?;
        Ok(values)
    }

    /// Reads all values in stored order, and passes them to `each` in blocks of at most `max_values` values.
    pub(super) fn read_blocks(&self, max_values: usize, each: &mut dyn FnMut(&[f32]) -> Result<()>) -> Result<()> {
        let total: usize = self.info.shape.iter().product();
        let mut values = vec![0.0; max_values.min(total)];
        for first in (0..total).step_by(max_values.max(1)) {
            let values = &mut values[..max_values.min(total - first)];
            self.read_into(first, values)?;
            each(values)?;
        }
        self.shard.check_unchanged()
    }

    /// Reads values starting at element `first`, using all threads.
    fn read_into(&self, first: usize, values: &mut [f32]) -> Result<()> {
        let block_values = READ_BYTES / self.float.bytes_per_value();
        let blocks = values.par_chunks_mut(block_values).enumerate();
        first_error(blocks.map(|(block, values)| self.read_values(first + block * block_values, values)))
    }

    /// Reads and concatenates the given rows. Panics if a row does not exist.
    pub(super) fn rows(&self, rows: &[u32]) -> Result<Vec<f32>> {
        let [count, inner] = self.matrix_dims();
        let mut values = vec![0.0; rows.len() * inner];
        for (&row, values) in rows.iter().zip(values.chunks_exact_mut(inner.max(1))) {
            assert!((row as usize) < count, "row {row} of {count}");
            self.read_values(row as usize * inner, values)?;
        }
        self.shard.check_unchanged()?;
        Ok(values)
    }

    /// Reads a matrix `[outer, inner]` and writes its transpose into `out [inner, total]`, starting at column `first`.
    pub(super) fn read_transposed(&self, out: &mut [f32], total: usize, first: usize) -> Result<()> {
        let [outer, inner] = self.matrix_dims();
        let width = self.float.bytes_per_value();
        let float = self.float;
        let stride = inner * width;
        let max_rows = (TRANSPOSE_BYTES / stride.max(1)).max(1).next_multiple_of(TILE_ROWS).min(outer);
        let mut bytes = vec![0; max_rows * stride];
        for top in (0..outer).step_by(max_rows.max(1)) {
            let rows = max_rows.min(outer - top);
            let bytes = &mut bytes[..rows * stride];
            let pieces = bytes.par_chunks_mut(READ_BYTES).enumerate();
            first_error(pieces.map(|(piece, bytes)| self.read((top * stride + piece * READ_BYTES) / width, bytes)))?;
            // Each band of rows in `out` stays in the cache while the whole block is transposed into it.
            out.par_chunks_mut((TILE_COLUMNS * total).max(1)).enumerate().for_each(|(band, lines)| {
                let column = band * TILE_COLUMNS;
                let columns = lines.len() / total;
                simd::in_widest!({
                    for (index, tile) in bytes.chunks(TILE_ROWS * stride).enumerate() {
                        let mut numbers = [[0.0; TILE_COLUMNS]; TILE_ROWS];
                        let tile_rows = tile.len() / stride;
                        for (row, numbers) in tile.chunks_exact(stride).zip(&mut numbers) {
                            float.convert(&row[column * width..][..columns * width], &mut numbers[..columns]);
                        }
                        let start = first + top + index * TILE_ROWS;
                        for (j, line) in lines.chunks_exact_mut(total).enumerate() {
                            let line = &mut line[start..start + tile_rows];
                            line.iter_mut().zip(&numbers).for_each(|(v, row)| *v = row[j]);
                        }
                    }
                });
            });
        }
        self.shard.check_unchanged()
    }

    fn matrix_dims(&self) -> [usize; 2] {
        let inner = self.info.shape.last().copied().unwrap_or(1);
        [self.info.shape.iter().product::<usize>() / inner.max(1), inner]
    }

    /// Reads and converts values, starting at element `first`, until `values` is full.
    fn read_values(&self, first: usize, values: &mut [f32]) -> Result<()> {
        let mut bytes = vec![0; values.len() * self.float.bytes_per_value()];
        self.read(first, &mut bytes)?;
        simd::in_widest!(self.float.convert(&bytes, values));
        Ok(())
    }

    /// Fills `bytes` with values of type `self.float`, starting at element `first`. Undoes quantization, interleaving
    /// and [`TensorInfo::offset_by_one`], and checks that the values are finite.
    fn read(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        if let Some(dtype) = self.quantized {
            return self.read_rounded(dtype, first, bytes);
        }
        let width = self.float.bytes_per_value();
        match (self.info.encoding, self.info.interleaved) {
            (ElementEncoding::Plain(_), None) => {
                self.shard.read(self.name, &self.info, (self.first + first) * width, bytes)?;
            }
            _ => self.read_converted(self.first + first, bytes)?,
        }
        if self.float.are_all_finite(bytes) {
            if self.info.offset_by_one {
                subtract_one(bytes);
            }
            return Ok(());
        }
        let mut values = vec![0.0; bytes.len() / width];
        self.float.convert(bytes, &mut values);
        let index = values.iter().position(|v| !v.is_finite()).unwrap_or_default();
        Err(Error::bad_input("a weight is not a finite number")
            .at(self.shard.location(self.name))
            .found(format!("{} at element {} of {:?}", values[index], first + index, self.info.shape))
            .hint("check the file: it is damaged, or a value overflowed its float type when the model was saved"))
    }
}

impl StoredTensor<'_> {
    /// Implements [`read`](Self::read) for tensors that are quantized and dequantized at load time. Rows must consist
    /// of whole blocks.
    fn read_rounded(&self, dtype: GgmlDType, first: usize, bytes: &mut [u8]) -> Result<()> {
        let Some(float) = Float::from_encoding(self.info.encoding) else { return Ok(()) };
        let plain = StoredTensor { quantized: None, float, info: self.info.clone(), ..*self };
        let block = dtype.block_size();
        let count = bytes.len() / self.float.bytes_per_value();
        let from = first / block * block;
        let to = (first + count).next_multiple_of(block);
        let mut values = vec![0.0; to - from];
        plain.read_values(from, &mut values)?;
        let values = gguf::round_values(dtype, &values).map_err(|error| error.at(self.shard.location(self.name)))?;
        encode_f32(&values[first - from..], bytes);
        Ok(())
    }

    /// Implements [`read`](Self::read) for tensors that are stored quantized or with interleaved rows.
    fn read_converted(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let total = self.info.shape.iter().product::<usize>();
        let width = self.float.bytes_per_value();
        let inner = total / self.info.shape.first().copied().unwrap_or(1).max(1);
        let mut position = first;
        let mut left = bytes;
        while !left.is_empty() {
            let row = position / inner;
            let column = position % inner;
            let (row, max_count) = match self.info.interleaved {
                None => (row, left.len() / width),
                // Row i in half j of a head is stored as the head's row 2·i + j.
                Some(rows) => {
                    let head = row / rows * rows;
                    let row_of_head = row % rows;
                    (head + row_of_head % (rows / 2) * 2 + row_of_head / (rows / 2), inner - column)
                }
            };
            let count = max_count.min(left.len() / width);
            let (piece, rest) = left.split_at_mut(count * width);
            self.read_contiguous(row * inner + column, piece)?;
            (position, left) = (position + count, rest);
        }
        Ok(())
    }

    /// Reads values that are contiguous in the file, and dequantizes them if necessary.
    fn read_contiguous(&self, first: usize, bytes: &mut [u8]) -> Result<()> {
        let ElementEncoding::Blocks(dtype) = self.info.encoding else {
            return self.shard.read(self.name, &self.info, first * self.float.bytes_per_value(), bytes);
        };
        let block = dtype.block_size();
        let count = bytes.len() / self.float.bytes_per_value();
        let from = first / block;
        let to = (first + count).div_ceil(block);
        let mut blocks = Blocks::new(dtype, (to - from) * block);
        self.shard.read(self.name, &self.info, from * dtype.type_size(), blocks.bytes())?;
        let values = blocks.values().map_err(|error| error.at(self.shard.location(self.name)))?;
        encode_f32(&values[first - from * block..], bytes);
        Ok(())
    }
}

/// Fills `bytes` with little-endian values.
fn encode_f32(values: &[f32], bytes: &mut [u8]) {
    bytes.as_chunks_mut().0.iter_mut().zip(values).for_each(|(out, value)| *out = value.to_le_bytes());
}

/// Subtracts 1 from each f32.
fn subtract_one(bytes: &mut [u8]) {
    bytes.as_chunks_mut().0.iter_mut().for_each(|bytes| *bytes = (f32::from_le_bytes(*bytes) - 1.0).to_le_bytes());
}

/// Packs stacked matrices `[outer, inner]` into panels. Values are converted or rounded to the type of the panels.
pub(super) fn pack_panels<K: PackedFormat>(matrices: &[StoredTensor<'_>], inner: usize) -> Result<Panels<K>> {
    let rows: Vec<(usize, usize)> = matrices
        .iter()
        .enumerate()
        .flat_map(|(matrix, stored)| (0..stored.matrix_dims()[0]).map(move |row| (matrix, row)))
        .collect();
    // A dropped sublayer has no matrices.
    if rows.is_empty() {
        return Ok(Panels::new(Panels::<K>::allocate(inner, 0), inner, 0));
    }
    let mut out = Panels::<K>::allocate(inner, rows.len());
    let panels = out.par_chunks_mut(Panels::<K>::panel_words(inner)).zip(rows.par_chunks(K::lanes()));
    first_error(panels.map(|(panel, rows)| {
        let mut numbers = vec![0.0; rows.len() * inner]; // [up to lanes, inner]
        let mut left = &mut numbers[..];
        // Adjacent rows from the same matrix are contiguous in the file.
        for run in rows.chunk_by(|a, b| a.0 == b.0) {
            let (numbers, rest) = left.split_at_mut(run.len() * inner);
            matrices[run[0].0].read_values(run[0].1 * inner, numbers)?;
            left = rest;
        }
        K::pack_panel(&numbers, inner, panel);
        Ok(())
    }))?;
    matrices.iter().try_for_each(|stored| stored.shard.check_unchanged())?;
    Ok(Panels::new(out, inner, rows.len()))
}

/// Returns the error from the first block that failed, regardless of thread timing.
fn first_error(blocks: impl IndexedParallelIterator<Item = Result<()>>) -> Result<()> {
    let results: Vec<Result<()>> = blocks.collect();
    results.into_iter().collect()
}

#[cfg(test)]
mod tests;
