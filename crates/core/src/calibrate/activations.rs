//! Activations at selected hook points. They are collected during a forward pass and read back in blocks of rows.

use std::collections::BTreeMap;
use std::fmt;
use std::ops::Range;

use memmap2::Mmap;

use crate::error::{Error, Result};

/// Position in the backbone, also called a site, at which the residual stream can be captured.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum HookPoint {
    /// Input of layer `l`, written `X_l`. In a backbone of `L` layers, `X_L` is the input of the final norm.
    Stream(usize),
    /// Stream between the attention and the MLP of layer `l`. Subtracting it from `X_{l+1}` gives the output of the MLP
    /// branch.
    Middle(usize),
}

impl HookPoint {
    /// Returns the hook point after the given number of sublayers.
    pub(super) fn at_position(position: usize) -> Self {
        if position.is_multiple_of(2) { Self::Stream(position / 2) } else { Self::Middle(position / 2) }
    }

    /// Returns the number of sublayers before the hook point.
    pub fn position(self) -> usize {
        match self {
            Self::Stream(layer) => 2 * layer,
            Self::Middle(layer) => 2 * layer + 1,
        }
    }
}

impl fmt::Display for HookPoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(layer) => write!(f, "stream {layer}"),
            Self::Middle(layer) => write!(f, "middle {layer}"),
        }
    }
}

/// Approximate size of a shard in bytes. Tests use small shards, so that a few rows fill several of them.
const SHARD_BYTES: usize = if cfg!(test) { 4096 } else { 16 << 20 };

/// Shape of the activations at one hook point, which also determines the shard size. A shard contains whole sequences.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ActivationShape {
    pub channels: usize,
    pub sequences: usize,
    /// Number of tokens per sequence.
    pub length: usize,
}

impl ActivationShape {
    /// Returns the number of rows in each shard except the last.
    pub fn shard_rows(self) -> usize {
        let sequence_bytes = self.length * self.channels * size_of::<f32>();
        (SHARD_BYTES / sequence_bytes.max(1)).clamp(1, self.sequences.max(1)) * self.length
    }

    /// Returns the total number of rows, one for each token.
    pub fn rows(self) -> usize {
        self.sequences * self.length
    }

    /// Returns the range of sequences in each shard.
    pub fn shards(self) -> impl Iterator<Item = Range<usize>> {
        let step = (self.shard_rows() / self.length.max(1)).max(1);
        (0..self.sequences).step_by(step).map(move |first| first..(first + step).min(self.sequences))
    }

    pub fn shard_count(self) -> usize {
        self.sequences.div_ceil((self.shard_rows() / self.length.max(1)).max(1))
    }

    /// Returns the size of one hook point's activations in bytes.
    pub fn bytes(self) -> u64 {
        (self.rows() * self.channels * size_of::<f32>()) as u64
    }
}

/// Sink for activation rows during a forward pass. Rows `[rows, C]` arrive in the order of the calibration tokens.
pub trait Spool {
    /// Appends rows captured at a hook point. Ignores rows from hook points that were not requested.
    ///
    /// # Errors
    /// Fails if the rows cannot be stored, for example because the disk is full.
    fn push(&mut self, site: HookPoint, rows: &[f32]) -> Result<()>;
}

/// Spool that keeps all rows in memory.
#[derive(Debug, Default)]
pub struct InMemory(BTreeMap<HookPoint, Vec<f32>>);

impl InMemory {
    /// Creates a spool that keeps the rows captured at the given hook points.
    pub fn new(sites: impl IntoIterator<Item = HookPoint>) -> Self {
        Self(sites.into_iter().map(|site| (site, Vec::new())).collect())
    }

    /// Returns the collected activations.
    ///
    /// # Errors
    /// Fails if the number of rows does not match `shape`.
    pub fn finish(self, shape: ActivationShape) -> Result<Activations> {
        let shard = shape.shard_rows() * shape.channels;
        Activations::new(
            shape,
            self.0
                .into_iter()
                .map(|(site, rows)| {
                    (site, rows.chunks(shard.max(1)).map(|rows| Shard::Memory(rows.to_vec())).collect())
                })
                .collect(),
        )
    }
}

impl Spool for InMemory {
    fn push(&mut self, site: HookPoint, rows: &[f32]) -> Result<()> {
        if let Some(kept) = self.0.get_mut(&site) {
            kept.extend_from_slice(rows);
        }
        Ok(())
    }
}

/// Activations of consecutive whole sequences at one hook point.
pub enum Shard {
    Memory(Vec<f32>),
    /// Memory-mapped file of little-endian f32 values.
    Mapped(Mmap),
}

impl Shard {
    fn values(&self) -> &[f32] {
        match self {
            Self::Memory(values) => values,
            Self::Mapped(bytes) => bytemuck::try_cast_slice(bytes).unwrap_or_default(),
        }
    }
}

/// Activations at the captured hook points, with rows in the order of the calibration tokens. Mapped shards are paged
/// in from disk on demand and can be evicted, so they do not count as required memory.
pub struct Activations {
    shape: ActivationShape,
    sites: BTreeMap<HookPoint, Vec<Shard>>,
}

impl Activations {
    /// Combines the shards of each hook point. All shards except the last must have [`ActivationShape::shard_rows`]
    /// rows.
    ///
    /// # Errors
    /// Fails if the size of a hook point's shards does not match the shape.
    pub fn new(shape: ActivationShape, sites: BTreeMap<HookPoint, Vec<Shard>>) -> Result<Self> {
        for (site, shards) in &sites {
            let bytes: usize = shards.iter().map(|shard| size_of_val(shard.values())).sum();
            if bytes as u64 != shape.bytes() {
                return Err(Error::job("stored activations have an unexpected size")
                    .at(site)
                    .expected(format!("{} bytes", shape.bytes()))
                    .found(format!("{bytes} bytes")));
            }
        }
        Ok(Self { shape, sites })
    }

    pub fn shape(&self) -> ActivationShape {
        self.shape
    }

    pub fn has(&self, site: HookPoint) -> bool {
        self.sites.contains_key(&site)
    }

    /// Divides a range of rows into blocks of at most `max_rows` rows, each within one shard.
    pub fn blocks(&self, rows: Range<usize>, max_rows: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let shard_rows = self.shape.shard_rows();
        let mut first = rows.start;
        std::iter::from_fn(move || {
            let end = (first + max_rows).min(rows.end).min((first / shard_rows + 1) * shard_rows);
            let block = (first < end).then_some(first..end);
            first = end;
            block
        })
    }

    /// Returns the rows `[rows, C]` of a hook point. `rows` must lie within one shard, which holds for ranges from
    /// [`Self::blocks`] and for a single sequence.
    ///
    /// # Errors
    /// Fails if the hook point was not captured or the range is not within one shard.
    pub fn rows(&self, site: HookPoint, rows: Range<usize>) -> Result<&[f32]> {
        let shards = self
            .sites
            .get(&site)
            .ok_or_else(|| Error::job("the activations at this hook point were not captured").at(site))?;
        let shard_rows = self.shape.shard_rows();
        let channels = self.shape.channels;
        let shard = rows.start / shard_rows;
        let value_range = (rows.start - shard * shard_rows) * channels..(rows.end - shard * shard_rows) * channels;
        let values = shards.get(shard).map_or(&[][..], Shard::values);
        values.get(value_range).ok_or_else(|| {
            Error::job("the requested rows are not within one shard of the activations")
                .at(site)
                .found(format!("rows {rows:?} of {}", self.shape.rows()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn activations_round_trip_through_shards() {
        // A sequence takes 2,560 bytes, so each shard of 4,096 bytes holds one sequence.
        let shape = ActivationShape { channels: 10, sequences: 3, length: 64 };
        let requested = HookPoint::Stream(2);
        let ignored = HookPoint::Middle(1);
        let mut spool = InMemory::new([requested]);
        for first in (0..shape.rows()).step_by(48) {
            let block: Vec<f32> = (first..first + 48).flat_map(|r| (0..10).map(move |c| sample_value(r, c))).collect();
            spool.push(requested, &block).unwrap();
            spool.push(ignored, &block[..10]).unwrap();
        }
        let activations = spool.finish(shape).unwrap();
        assert_eq!(activations.sites[&requested].len(), 3);
        assert!(!activations.has(ignored));
        let blocks: Vec<_> = activations.blocks(5..shape.rows() - 3, 50).collect();
        assert_eq!((blocks[0].start, blocks[blocks.len() - 1].end), (5, shape.rows() - 3));
        for pair in blocks.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
        for block in blocks {
            let rows = activations.rows(requested, block.clone()).unwrap();
            assert_eq!((rows[0], rows[rows.len() - 1]), (sample_value(block.start, 0), sample_value(block.end - 1, 9)));
        }
        assert!(activations.rows(requested, 63..65).is_err(), "rows of two shards were accepted");
    }

    fn sample_value(row: usize, channel: usize) -> f32 {
        (row * 10 + channel) as f32
    }

    #[test]
    fn site_with_too_few_rows_is_rejected() {
        let shape = ActivationShape { channels: 2, sequences: 1, length: 4 };
        let mut spool = InMemory::new([HookPoint::Stream(0)]);
        spool.push(HookPoint::Stream(0), &[0.0; 6]).unwrap();
        assert!(spool.finish(shape).is_err());
    }
}
