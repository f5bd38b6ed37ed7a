//! A calibration pass in shards of whole sequences. Each is stored when it is done: a killed pass goes on with the next.

use std::collections::{BTreeMap, BTreeSet};
use std::fs::File;
use std::io::Write;
use std::ops::Range;
use std::time::Instant;

use memmap2::Mmap;

use super::calibration::CalibrationJob;
use crate::calibrate::{self, Activations, HookPoint, Pair, PassRequest, Shard, Similarities, Spool};
use crate::error::{Error, Result};
use crate::model::{Load, Trie};
use crate::store::{Draft, Key, Payload, Store, StoredArtifact};

const ROWS: &str = "rows.f32";
const SUMS: &str = "sums.f64";

/// The shards that are stored, verified, of each site; none in the place of one that is not.
#[derive(Default)]
pub(super) struct KeptActivations(BTreeMap<HookPoint, Vec<Option<StoredArtifact>>>);

impl KeptActivations {
    /// Whether all of a site is stored.
    pub(super) fn has(&self, site: HookPoint) -> bool {
        self.0.get(&site).is_some_and(|shards| shards.iter().all(Option::is_some))
    }
}

impl CalibrationJob<'_> {
    /// Looks for the shards of a site.
    pub(super) fn find(&self, kept: &mut KeptActivations, site: HookPoint) {
        let shards = self.shape.shards().map(|shard| self.run.get(&self.rows_key(site, &shard)));
        kept.0.insert(site, shards.collect());
    }

    /// Runs the dense backbone over every shard of which something is missing.
    pub(super) fn pass(&self, label: &str, request: &PassRequest, kept: &mut KeptActivations) -> Result<Similarities> {
        let shards: Vec<Range<usize>> = self.shape.shards().collect();
        let stored: Vec<Option<Vec<f64>>> =
            shards.iter().map(|shard| self.stored_sums(&request.pairs, shard)).collect();
        let missing = |index: usize| {
            let absent = |site: &&HookPoint| kept.0.get(site).is_none_or(|shards| shards[index].is_none());
            let sites = request.sites.iter().filter(absent).copied().collect();
            let pairs = if stored[index].is_some() { BTreeSet::new() } else { request.pairs.clone() };
            PassRequest { pairs, sites }
        };
        let work: Vec<PassRequest> = (0..shards.len()).map(missing).collect();
        let left: usize = shards.iter().zip(&work).filter(|(_, work)| !work.is_empty()).map(|(s, _)| s.len()).sum();
        let tokens = left * self.shape.length;
        let trie = Trie::new(&[request.program(self.backbone.config.layers)]);
        let flops = self.run.cost(self.backbone, &trie, &Load::windows(tokens, self.shape.length));
        if left < self.shape.sequences {
            self.run.note(format!(
                "{label}: {} of {} sequences are stored",
                self.shape.sequences - left,
                self.shape.sequences
            ));
        }
        let job = self.run.start(label, tokens, 0, flops);
        let mut similarities = Similarities::new(&request.pairs);
        for (index, work) in work.iter().enumerate() {
            let shard = &shards[index];
            let measured = if work.is_empty() { None } else { Some(self.measure(work, shard, job, kept, index)?) };
            // Sums are added shard by shard, so that they come out the same wherever a pass was cut off.
            match &stored[index] {
                Some(sums) => similarities.add_sums(sums, shard.len()),
                None => similarities.add_sums(&measured.map(|of| of.sums()).unwrap_or_default(), shard.len()),
            }
        }
        self.run.finish(job);
        Ok(similarities)
    }

    fn measure(
        &self,
        work: &PassRequest,
        shard: &Range<usize>,
        job: usize,
        kept: &mut KeptActivations,
        index: usize,
    ) -> Result<Similarities> {
        let (run, started) = (self.run, Instant::now());
        let windows: Vec<&[u32]> = self.windows.iter().skip(shard.start).take(shard.len()).collect();
        let mut drafts = Drafts::create(run.store, &work.sites)?;
        let batch = run.settings.batch_tokens;
        let progress = |tokens| run.advance(job, tokens);
        let similarities = calibrate::run(&self.decoder, &windows, shard.start, batch, work, &mut drafts, progress)
            .map_err(|error| error.at(self.label.clone()))?;
        // One pass made them all.
        let seconds = started.elapsed().as_secs_f64() / (work.sites.len() + 1) as f64;
        for (site, (draft, payload)) in drafts.0 {
            payload.close().map_err(|error| unwritten(site, &error))?;
            let artifact = run.store.commit(draft, &self.rows_key(site, shard), seconds)?;
            let shards = self.shape.shards().count();
            kept.0.entry(site).or_insert_with(|| (0..shards).map(|_| None).collect())[index] = Some(artifact);
        }
        if !work.pairs.is_empty() {
            let sums = similarities.sums();
            run.store.put(&self.sums_key(&work.pairs, shard), seconds, &[(SUMS, bytemuck::cast_slice(&sums))])?;
        }
        Ok(similarities)
    }

    /// Maps the rows of some sites.
    ///
    /// # Errors
    /// A site that is not stored whole.
    pub(super) fn open(&self, kept: &KeptActivations, sites: &BTreeSet<HookPoint>) -> Result<Activations> {
        let map = |artifact: &Option<StoredArtifact>| {
            let artifact = artifact.as_ref().ok_or_else(|| Error::job("activations vanished from the store"))?;
            let path = artifact.path(ROWS)?;
            let file = File::open(&path).map_err(|error| Error::io("open", &path, &error))?;
            // SAFETY: artifacts are never changed in place, only replaced by a rename: the mapped file stays as it is.
            let map = unsafe { Mmap::map(&file) }.map_err(|error| Error::io("map", &path, &error))?;
            Ok(Shard::Mapped(map))
        };
        let of_site = |&site: &HookPoint| {
            let shards = kept.0.get(&site).into_iter().flatten().map(map).collect::<Result<_>>()?;
            Ok((site, shards))
        };
        Activations::new(self.shape, sites.iter().map(of_site).collect::<Result<_>>()?)
    }

    /// Removes what the pass wrote and nothing needs: sites that no selection chose, and the sums that chose them.
    pub(super) fn clear(&self, request: &PassRequest, chosen: &BTreeSet<HookPoint>) -> Result<()> {
        for shard in self.shape.shards() {
            let unchosen = request.sites.difference(chosen).map(|&site| self.rows_key(site, &shard));
            let sums = (!request.pairs.is_empty()).then(|| self.sums_key(&request.pairs, &shard));
            unchosen.chain(sums).try_for_each(|key| self.run.store.discard(&key))?;
        }
        Ok(())
    }

    fn rows_key(&self, site: HookPoint, shard: &Range<usize>) -> Key {
        self.backbone.activations(self.tokens, site, shard)
    }

    fn sums_key(&self, pairs: &BTreeSet<Pair>, shard: &Range<usize>) -> Key {
        self.backbone.similarities(self.tokens, pairs, shard)
    }

    fn stored_sums(&self, pairs: &BTreeSet<Pair>, shard: &Range<usize>) -> Option<Vec<f64>> {
        let bytes = self.run.get(&self.sums_key(pairs, shard))?.read(SUMS).ok()?;
        let sums: Vec<f64> = bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
        (sums.len() == pairs.len()).then_some(sums)
    }
}

/// The rows of some sites, on their way into the store. Whatever is not committed is gone with it.
struct Drafts(BTreeMap<HookPoint, (Draft, Payload)>);

impl Drafts {
    fn create(store: &Store, sites: &BTreeSet<HookPoint>) -> Result<Self> {
        let create = |&site: &HookPoint| {
            let mut draft = store.draft()?;
            let payload = draft.payload(ROWS)?;
            Ok((site, (draft, payload)))
        };
        Ok(Self(sites.iter().map(create).collect::<Result<_>>()?))
    }
}

impl Spool for Drafts {
    fn push(&mut self, site: HookPoint, rows: &[f32]) -> Result<()> {
        let Some((_, payload)) = self.0.get_mut(&site) else { return Ok(()) };
        payload.write_all(bytemuck::cast_slice(rows)).map_err(|error| unwritten(site, &error))
    }
}

fn unwritten(site: HookPoint, error: &std::io::Error) -> Error {
    Error::missing("cannot write calibration activations")
        .at(site.to_string())
        .found(error.to_string())
        .hint("free some room on the store's disk, or name another folder with --store")
}
