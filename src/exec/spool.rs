//! Activations of a calibration pass in the store: written as shards while the pass runs, memory-mapped back.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;

use memmap2::Mmap;

use crate::calibrate::{Activations, Shape, Shard, Site, Spool};
use crate::error::{Error, Result};
use crate::store::{Artifact, Draft, Key, Payload, Store};

/// Writes the rows of some sites. Whatever is not kept is gone with it.
pub(super) struct Shards {
    shape: Shape,
    sites: BTreeMap<Site, Writer>,
}

struct Writer {
    draft: Draft,
    payload: Option<Payload>,
    rows: usize,
    shards: usize,
}

impl Shards {
    /// # Errors
    /// The store cannot be written to.
    pub(super) fn create(store: &Store, sites: &BTreeSet<Site>, shape: Shape) -> Result<Self> {
        let writer = |&site| Ok((site, Writer { draft: store.draft()?, payload: None, rows: 0, shards: 0 }));
        Ok(Self { shape, sites: sites.iter().map(writer).collect::<Result<_>>()? })
    }

    /// Ends the pass: the shards that are still open are closed.
    pub(super) fn finish(mut self) -> Result<Self> {
        for (site, writer) in &mut self.sites {
            writer.close(*site)?;
        }
        Ok(self)
    }

    /// Stores one site under its key and takes it out; none where it was not spooled.
    pub(super) fn keep(&mut self, store: &Store, site: Site, key: &Key, seconds: f64) -> Result<Option<Artifact>> {
        self.sites.remove(&site).map(|writer| store.commit(writer.draft, key, seconds)).transpose()
    }
}

impl Spool for Shards {
    fn push(&mut self, site: Site, mut rows: &[f32]) -> Result<()> {
        let Some(writer) = self.sites.get_mut(&site) else { return Ok(()) };
        let (channels, shard_rows) = (self.shape.channels, self.shape.shard_rows());
        while !rows.is_empty() {
            let room = shard_rows - writer.rows % shard_rows;
            let (now, later) = rows.split_at((room * channels).min(rows.len()));
            let payload = match &mut writer.payload {
                Some(payload) => payload,
                none => none.insert(writer.draft.payload(&format!("{:06}.f32", writer.shards))?),
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
}

impl Writer {
    fn close(&mut self, site: Site) -> Result<()> {
        let Some(payload) = self.payload.take() else { return Ok(()) };
        self.shards += 1;
        payload.close().map_err(|error| unwritten(site, &error))
    }
}

fn unwritten(site: Site, error: &std::io::Error) -> Error {
    Error::missing("cannot write calibration activations")
        .at(site.to_string())
        .found(error.to_string())
        .hint("free some room on the store's disk, or name another folder with --store")
}

/// Maps stored sites.
///
/// # Errors
/// An artifact that has not the shards of this shape.
pub(super) fn open(shape: Shape, artifacts: &BTreeMap<Site, Artifact>) -> Result<Activations> {
    let sites = artifacts.iter().map(|(&site, artifact)| {
        let shards = artifact.payloads().map(|name| {
            let path = artifact.path(name)?;
            let file = File::open(&path).map_err(|error| Error::io("open", &path, &error))?;
            // SAFETY: artifacts are never changed in place, only replaced by a rename: the mapped file stays as it is.
            let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::io("map", &path, &error))?;
            Ok(Shard::Mapped(map))
        });
        Ok((site, shards.collect::<Result<_>>()?))
    });
    Activations::new(shape, sites.collect::<Result<_>>()?)
}
