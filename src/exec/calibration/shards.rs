//! Stored activations in shards of whole sequences: found, mapped, cleared away.

use std::collections::{BTreeMap, BTreeSet};

use super::job::CalibrationJob;
use crate::calibrate::{ActivationShape, Activations, HookPoint, PassRequest, Shard};
use crate::error::{Error, Result};
use crate::stage::activations::ROWS;
use ghostlab_store::{Mapped, StoredObject};

/// The shards that are stored, verified, of each site; none in the place of one that is not.
#[derive(Default)]
pub(super) struct KeptActivations(BTreeMap<HookPoint, Vec<Option<StoredObject>>>);

impl KeptActivations {
    /// Looks for the shards of some sites.
    pub(super) fn find(&mut self, job: &CalibrationJob<'_>, sites: &BTreeSet<HookPoint>) {
        for &site in sites {
            let shards = job.shape.shards().map(|shard| job.run.get(&job.rows_key(site, &shard)));
            self.0.insert(site, shards.collect());
        }
    }

    /// Those of some sites of which not all is stored.
    pub(super) fn lacking(&self, sites: &BTreeSet<HookPoint>) -> BTreeSet<HookPoint> {
        let whole = |site: &HookPoint| self.0.get(site).is_some_and(|shards| shards.iter().all(Option::is_some));
        sites.iter().copied().filter(|site| !whole(site)).collect()
    }

    /// Whether a shard of a site is here.
    pub(super) fn has(&self, site: HookPoint, shard: usize) -> bool {
        self.0.get(&site).is_some_and(|shards| shards[shard].is_some())
    }

    /// Takes in what was stored just now of one shard.
    pub(super) fn add(
        &mut self,
        shape: ActivationShape,
        shard: usize,
        rows: impl IntoIterator<Item = (HookPoint, StoredObject)>,
    ) {
        for (site, artifact) in rows {
            let none = || shape.shards().map(|_| None).collect();
            self.0.entry(site).or_insert_with(none)[shard] = Some(artifact);
        }
    }

    /// Maps the rows of some sites.
    ///
    /// # Errors
    /// A site that is not stored whole.
    pub(super) fn open(&self, shape: ActivationShape, sites: &BTreeSet<HookPoint>) -> Result<Activations> {
        let of_site = |&site: &HookPoint| {
            let shards = self.0.get(&site).into_iter().flatten().map(map).collect::<Result<_>>()?;
            Ok((site, shards))
        };
        Activations::new(shape, sites.iter().map(of_site).collect::<Result<_>>()?)
    }
}

fn map(artifact: &Option<StoredObject>) -> Result<Shard> {
    let vanished = || Error::job("activations vanished from the store");
    let artifact = artifact.as_ref().ok_or_else(vanished)?;
    Ok(match artifact.map(ROWS).map_err(|error| vanished().found(error.one_line()))? {
        Mapped::File(map) => Shard::Mapped(map),
        Mapped::Memory(bytes) => Shard::Memory(bytemuck::pod_collect_to_vec(&bytes)),
    })
}

/// Removes what a pass wrote and nobody needs: sites that no selection chose, and the sums that chose them. What trainings of
/// other calibrations on the same text read stays.
pub(super) fn clear(job: &CalibrationJob<'_>, pass: &PassRequest, chosen: &BTreeSet<HookPoint>) -> Result<()> {
    let mut keys = Vec::new();
    for shard in job.shape.shards() {
        keys.extend(pass.sites.difference(chosen).map(|&site| job.rows_key(site, &shard)));
        keys.extend((!pass.pairs.is_empty()).then(|| job.sums_key(&pass.pairs, &shard)));
    }
    job.run.store.discard_unused(&keys)
}
