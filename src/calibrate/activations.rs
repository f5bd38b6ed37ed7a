//! Activations at chosen sites of the backbone: written as shards while a pass runs, kept under their content hash,
//! memory-mapped back.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::fs::File;
use std::io::Write;
use std::ops::Range;

use memmap2::Mmap;

use crate::error::{Error, Result};
use crate::store::{Artifact, Draft, Key, Payload, Store};

/// A place in the backbone whose residual stream can be kept.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum Site {
    /// `X_l`: what enters layer `l`; `X_L` enters the final norm.
    Stream(usize),
    /// Within layer `l`, between its attention and its MLP. `X_{l+1}` minus this is the MLP's branch.
    Middle(usize),
}

impl fmt::Display for Site {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Stream(layer) => write!(f, "stream {layer}"),
            Self::Middle(layer) => write!(f, "middle {layer}"),
        }
    }
}

/// About how large a shard is. (Small in this crate's own tests, so that a few rows fill several.)
const SHARD_BYTES: usize = if cfg!(test) { 4096 } else { 64 << 20 };

/// How the rows of one calibration are cut into shards: whole sequences, so that a sequence is never split.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Shape {
    pub channels: usize,
    pub sequences: usize,
    /// Tokens of a sequence.
    pub length: usize,
}

impl Shape {
    /// Rows of each shard but the last.
    fn shard_rows(self) -> usize {
        let sequence = self.length * self.channels * size_of::<f32>();
        (SHARD_BYTES / sequence.max(1)).clamp(1, self.sequences.max(1)) * self.length
    }

    fn rows(self) -> usize {
        self.sequences * self.length
    }

    /// Bytes of one site.
    pub fn bytes(self) -> u64 {
        (self.rows() * self.channels * size_of::<f32>()) as u64
    }
}

/// Takes the rows of some sites during a pass. Whatever is not kept is gone with it.
pub struct Spool {
    shape: Shape,
    sites: BTreeMap<Site, Writer>,
}

struct Writer {
    draft: Draft,
    payload: Option<Payload>,
    rows: usize,
    shards: usize,
}

impl Spool {
    /// # Errors
    /// The store cannot be written to.
    pub fn create(store: &Store, sites: &BTreeSet<Site>, shape: Shape) -> Result<Self> {
        let writer = |&site| Ok((site, Writer { draft: store.draft()?, payload: None, rows: 0, shards: 0 }));
        Ok(Self { shape, sites: sites.iter().map(writer).collect::<Result<_>>()? })
    }

    /// Appends rows of a site, `[rows, C]`; a site that nobody wants is passed over.
    pub(super) fn push(&mut self, site: Site, mut rows: &[f32]) -> Result<()> {
        let Some(writer) = self.sites.get_mut(&site) else { return Ok(()) };
        let (channels, shard_rows) = (self.shape.channels, self.shape.shard_rows());
        while !rows.is_empty() {
            let room = shard_rows - writer.rows % shard_rows;
            let (now, later) = rows.split_at((room * channels).min(rows.len()));
            let payload = match &mut writer.payload {
                Some(payload) => payload,
                none => none.insert(writer.draft.payload(&shard_name(writer.shards))?),
            };
            payload.write_all(bytemuck::cast_slice(now)).map_err(|error| unwritten(site, &error))?;
            writer.rows += now.len() / channels;
            if writer.rows.is_multiple_of(shard_rows) {
                writer.close(site)?;
            }
            rows = later;
        }
        Ok(())
    }

    /// Ends the pass: the shards that are still open are closed.
    pub(super) fn finish(mut self) -> Result<Self> {
        for (site, writer) in &mut self.sites {
            writer.close(*site)?;
        }
        Ok(self)
    }

    /// The sites that were spooled.
    pub fn sites(&self) -> impl Iterator<Item = Site> {
        self.sites.keys().copied()
    }

    /// Stores one site under its key and takes it out of the spool; none where it was not spooled.
    pub fn keep(&mut self, store: &Store, site: Site, key: &Key, seconds: f64) -> Result<Option<Artifact>> {
        self.sites.remove(&site).map(|writer| store.commit(writer.draft, key, seconds)).transpose()
    }
}

impl Writer {
    fn close(&mut self, site: Site) -> Result<()> {
        let Some(payload) = self.payload.take() else { return Ok(()) };
        self.shards += 1;
        payload.close().map_err(|error| unwritten(site, &error))
    }
}

fn shard_name(index: usize) -> String {
    format!("{index:06}.f32")
}

fn unwritten(site: Site, error: &std::io::Error) -> Error {
    Error::missing("cannot write calibration activations")
        .at(site.to_string())
        .found(error.to_string())
        .hint("free some room on the store's disk, or name another folder with --store")
}

/// Rows of the kept sites, in the order of the calibration tokens. The system reads them from the disk as they are
/// used, and may forget them again: they do not count as memory that has to be there.
pub struct Activations {
    shape: Shape,
    sites: BTreeMap<Site, Vec<Mmap>>,
}

impl Activations {
    /// Maps stored sites.
    ///
    /// # Errors
    /// An artifact that has not the shards of this shape.
    pub fn open(shape: Shape, artifacts: &BTreeMap<Site, Artifact>) -> Result<Self> {
        let sites = artifacts.iter().map(|(&site, artifact)| {
            let shards = artifact.payloads().map(|name| {
                let path = artifact.path(name)?;
                let file = File::open(&path).map_err(|error| Error::io("open", &path, &error))?;
                // SAFETY: artifacts are never changed in place, only replaced by a rename: the mapped file stays as it is.
                unsafe { Mmap::map(&file) }.map_err(|error| Error::io("map", &path, &error))
            });
            let shards = shards.collect::<Result<Vec<_>>>()?;
            let bytes: u64 = shards.iter().map(|shard| shard.len() as u64).sum();
            if bytes == shape.bytes() {
                return Ok((site, shards));
            }
            Err(Error::job("stored activations have another size")
                .at(site.to_string())
                .expected(format!("{} bytes", shape.bytes()))
                .found(bytes.to_string()))
        });
        Ok(Self { shape, sites: sites.collect::<Result<_>>()? })
    }

    pub fn shape(&self) -> Shape {
        self.shape
    }

    /// Whether a site is here.
    pub fn has(&self, site: Site) -> bool {
        self.sites.contains_key(&site)
    }

    /// Cuts a range of rows into blocks of at most `most` rows, each within one shard.
    pub fn blocks(&self, rows: Range<usize>, most: usize) -> impl Iterator<Item = Range<usize>> + use<> {
        let shard_rows = self.shape.shard_rows();
        let mut first = rows.start;
        std::iter::from_fn(move || {
            let end = (first + most).min(rows.end).min((first / shard_rows + 1) * shard_rows);
            let block = (first < end).then_some(first..end);
            first = end;
            block
        })
    }

    /// Rows of a site, `[rows, C]`: a range within one shard, as [`Self::blocks`] gives it. A sequence always is.
    ///
    /// # Errors
    /// The site was not kept, or the range reaches past its end.
    pub fn rows(&self, site: Site, rows: Range<usize>) -> Result<&[f32]> {
        let shards =
            self.sites.get(&site).ok_or_else(|| Error::job("activations were not kept").at(site.to_string()))?;
        let (shard_rows, channels) = (self.shape.shard_rows(), self.shape.channels);
        let shard = rows.start / shard_rows;
        let within = (rows.start - shard * shard_rows) * channels..(rows.end - shard * shard_rows) * channels;
        let values: &[f32] = shards.get(shard).map_or(&[], |shard| bytemuck::cast_slice(shard));
        values.get(within).ok_or_else(|| {
            Error::job("a block of activations is not within one shard")
                .at(site.to_string())
                .found(format!("rows {rows:?} of {}", self.shape.rows()))
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::store::Kind;
    use serde_json::json;

    #[test]
    fn rows_come_back_from_their_shards() {
        let folder = tempfile::tempdir().unwrap();
        let store = Store::open(folder.path()).unwrap();
        // A sequence has 2,560 bytes: a shard holds one.
        let shape = Shape { channels: 10, sequences: 3, length: 64 };
        let (kept, left) = (Site::Stream(2), Site::Middle(1));
        let mut spool = Spool::create(&store, &[kept, left].into(), shape).unwrap();
        let value = |row: usize, channel: usize| (row * 10 + channel) as f32;
        for first in (0..shape.rows()).step_by(48) {
            let block: Vec<f32> = (first..first + 48).flat_map(|r| (0..10).map(move |c| value(r, c))).collect();
            spool.push(kept, &block).unwrap();
            spool.push(left, &block[..10]).unwrap();
        }
        let mut spool = spool.finish().unwrap();
        let key = Key::new(Kind::Activations, json!(kept.to_string()), []);
        let artifact = spool.keep(&store, kept, &key, 0.0).unwrap().unwrap();
        assert_eq!(artifact.payloads().count(), 3);
        drop(spool);
        let activations = Activations::open(shape, &[(kept, artifact)].into()).unwrap();
        assert!(!activations.has(left));
        let blocks: Vec<_> = activations.blocks(5..shape.rows() - 3, 50).collect();
        assert_eq!((blocks[0].start, blocks[blocks.len() - 1].end), (5, shape.rows() - 3));
        for pair in blocks.windows(2) {
            assert_eq!(pair[0].end, pair[1].start);
        }
        for block in blocks {
            let rows = activations.rows(kept, block.clone()).unwrap();
            assert_eq!((rows[0], rows[rows.len() - 1]), (value(block.start, 0), value(block.end - 1, 9)));
        }
        assert!(activations.rows(kept, 63..65).is_err(), "across two shards");
        assert_eq!(std::fs::read_dir(folder.path().join("drafts")).unwrap().count(), 0);
    }
}
