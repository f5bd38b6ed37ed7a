//! Data from a calibration pass: the residual stream at some sites ([`HookPoint`]), and sums of similarities between
//! residual streams ([`Pair`]). Both are stored in shards, which are ranges of sequences.

use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Instant;

use rayon::prelude::*;
use serde_json::{Value, json};

use super::calibration_inputs::CalibrationInputs;
use super::calibration_job::CalibrationJob;
use super::row_writer::{ROWS, RowWriter, ShardSpool};
use super::{BackboneKeyParts, Check, Cost, Family, Member, Stage};
use crate::calibrate::{
    self, ActivationShape, Activations, HookPoint, Pair, PassRequest, Shard, Similarities, WindowSubset,
};
use crate::error::{Error, ErrorKind, Result};
use crate::files::sha256;
use crate::model::{Config, Load, Program, Trie, count_fitting_pieces};
use crate::pipeline::env::backbone::{BackbonePlan, CalibrationPlan};
use ghostlab_store::{Draft, FileContent, Key, ObjectKind, Store, StoredObject, fault};

// Version 3: products of single rows are rounded differently. Version 4: there is one object per shard. Version 5: see
// version 4 of `tokens`.
pub const KIND: ObjectKind = ObjectKind::new("activations", 5);

pub const STAGE: Stage = Stage {
    check: Check::Never,
    inodes: |_| 6,
    members: &[Member::WithFields(&[SITE, SEQUENCES]), Member::WithFields(&[PAIRS, SEQUENCES])],
    ..Stage::new(KIND)
};

/// Fields in the keys of activations (site and sequences) and of similarity sums (pairs and sequences).
const SITE: &str = "site";
const PAIRS: &str = "pairs";
const SEQUENCES: &str = "sequences";

/// Payload that contains the similarity sums, in the order of their pairs.
pub const SUMS: &str = "sums.f64";

/// Returns the key family of a calibration pass. It covers all sites, because the required sites are known only after
/// layers have been selected. The rows of selected sites stay in the store, where other recoveries of the same cut read
/// them. The rows of other sites are temporary.
pub(super) fn family(backbone: BackboneKeyParts<'_>, tokens: &Arc<Key>) -> Family {
    Family::new(KIND, backbone.dense.backbone_fields(), tokens, backbone)
}

/// Returns the key of the residual stream at one site, for a range of sequences.
pub fn rows_key(backbone: BackboneKeyParts<'_>, tokens: &Arc<Key>, site: HookPoint, sequences: &Range<usize>) -> Key {
    family(backbone, tokens).member([(SITE, json!(site.to_string())), (SEQUENCES, sequence_range(sequences))])
}

/// Returns the key of similarity sums for a range of sequences.
pub fn sums_key(
    backbone: BackboneKeyParts<'_>,
    tokens: &Arc<Key>,
    pairs: &BTreeSet<Pair>,
    sequences: &Range<usize>,
) -> Key {
    family(backbone, tokens).member([(PAIRS, json!(pairs)), (SEQUENCES, sequence_range(sequences))])
}

pub(super) fn sequence_range(sequences: &Range<usize>) -> Value {
    json!([sequences.start, sequences.end])
}

const LEASE_PREFIX: &str = "calibrate-";

pub fn lease_name(backbone: BackboneKeyParts<'_>, tokens: &Key) -> String {
    let dense = backbone.dense;
    let work = format!("{} {}{}", dense.model.content, tokens.hash(), dense.engine_suffix());
    format!("{LEASE_PREFIX}{}", sha256::of_bytes(work))
}

impl CalibrationPlan {
    pub fn lease_name(&self, plan: &BackbonePlan) -> String {
        lease_name(plan.calibrated().key_parts(), &self.tokens)
    }
}

pub(super) fn is_lease(name: &str) -> bool {
    name.starts_with(LEASE_PREFIX)
}

/// Estimates the number of FLOPs for a pass through all layers.
pub fn pass_flops(config: &Config, load: &Load) -> f64 {
    Trie::new(&[Program::trunk(config.layers)]).flops(config, load).shared
}

/// Cost of hashing and writing a byte, in floating-point operations. Measured with two cores at 90 GFLOP/s and a disk
/// that writes 160 MB/s.
pub(super) const FLOPS_PER_KEPT_BYTE: f64 = 550.0;

/// Returns the size in bytes of the f32 activations at one site.
pub fn site_bytes(config: &Config, load: &Load) -> u64 {
    (4 * load.tokens * config.hidden) as u64
}

/// Estimates the cost of storing the activations of `kept` sites and of writing those of `spooled` sites to disk
/// temporarily.
pub fn cost(config: &Config, shape: ActivationShape, load: &Load, [kept, spooled]: [usize; 2]) -> Cost {
    let inodes = (kept + spooled) as u64 * shape.shard_count() as u64 * (STAGE.inodes)(false);
    let flops = FLOPS_PER_KEPT_BYTE * ((kept + spooled) as u64 * site_bytes(config, load)) as f64;
    Cost { separate: flops, shared: flops, left: flops, disk: kept as u64 * site_bytes(config, load), inodes }
}

/// Reads stored similarity sums. Returns `None` unless there are as many as `pairs`.
pub fn read_sums(object: &StoredObject, pairs: usize) -> Option<Vec<f64>> {
    let sums: Vec<f64> = object.read(SUMS).ok()?.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
    (sums.len() == pairs).then_some(sums)
}

/// Results of the first calibration pass.
pub(super) struct FirstPass {
    request: PassRequest,
    kept: KeptActivations,
    pub(super) similarities: Similarities,
    /// Activations that criteria read, or `None` if the pass did not collect all of them.
    pub(super) criterion_activations: Option<Activations>,
}

impl FirstPass {
    /// Collects the inputs that are not stored, as far as the spool limit allows.
    pub(super) fn run(job: &CalibrationJob<'_>, inputs: CalibrationInputs) -> Result<Self> {
        let CalibrationInputs { required, possible, criterion_sites, pairs } = inputs;
        let all_sites = [&required, &possible, &criterion_sites].into_iter().flatten().copied().collect();
        let mut kept = KeptActivations::default();
        kept.look_up(job, &all_sites);
        let request = plan_first_pass(job, pairs, &criterion_sites, kept.missing_sites(&all_sites));
        let similarities = run_pass(job, &job.label, &request, &mut kept)?;
        let all_kept = kept.missing_sites(&criterion_sites).is_empty();
        let criterion_activations = all_kept.then(|| kept.open(job.shape, &criterion_sites)).transpose()?;
        Ok(Self { request, kept, similarities, criterion_activations })
    }

    /// Returns the activations at `sites`, which repairs of the selected layers read. Discards the other activations,
    /// and collects those that are not stored yet in a second pass.
    pub(super) fn complete(self, job: &CalibrationJob<'_>, sites: &BTreeSet<HookPoint>) -> Result<Activations> {
        let Self { request, mut kept, criterion_activations, .. } = self;
        drop(criterion_activations);
        discard_unneeded(job, &request, sites)?;
        let missing_sites = kept.missing_sites(sites);
        kept.look_up(job, &missing_sites);
        let second_request = PassRequest { sites: missing_sites, ..PassRequest::default() };
        run_pass(job, &format!("{}, second pass", job.label), &second_request, &mut kept)?;
        kept.open(job.shape, sites)
    }
}

/// Plans the first calibration pass. `criterion_sites` are the sites whose activations criteria read.
///
/// The pass collects the activations at all of `sites` if they fit in
/// [`spool_bytes`](crate::pipeline::env::run_settings::RunSettings::spool_bytes), or if no criterion waits for the
/// pass. Otherwise, it collects only the activations that criteria read, provided that these fit.
fn plan_first_pass(
    job: &CalibrationJob<'_>,
    pairs: BTreeSet<Pair>,
    criterion_sites: &BTreeSet<HookPoint>,
    sites: BTreeSet<HookPoint>,
) -> PassRequest {
    let mut request = PassRequest { pairs, sites };
    let site_bytes = |sites: &BTreeSet<HookPoint>| job.shape.bytes() * sites.len() as u64;
    let bytes = site_bytes(&request.sites);
    let fits = bytes <= job.run.settings.spool_bytes;
    if !request.is_empty() {
        job.run.note(format!(
            "{}: {} sites, {:.1} MB of activations, {}",
            job.label,
            request.sites.len(),
            bytes as f64 / 1e6,
            if fits { "one pass" } else { "over the spool limit: a second pass will spool only the selected sites" }
        ));
    }
    let has_waiting_criteria = !request.pairs.is_empty() || !criterion_sites.is_empty();
    if has_waiting_criteria && !fits {
        let criterion_sites_fit = site_bytes(criterion_sites) <= job.run.settings.spool_bytes;
        request.sites.retain(|site| criterion_sites_fit && criterion_sites.contains(site));
    }
    request
}

/// Runs the dense backbone on every shard with missing objects, and stores these objects. Adds the activations to
/// `kept`, and returns the similarities of all shards.
fn run_pass(
    job: &CalibrationJob<'_>,
    label: &str,
    request: &PassRequest,
    kept: &mut KeptActivations,
) -> Result<Similarities> {
    if request.is_empty() {
        return Ok(Similarities::default());
    }
    let shards: Vec<Range<usize>> = job.shape.shards().collect();
    let stored: Vec<Option<Vec<f64>>> = shards
        .iter()
        .map(|shard| read_sums(&job.run.get(&shard_sums_key(job, &request.pairs, shard))?, request.pairs.len()))
        .collect();
    let work: Vec<PassRequest> = (0..shards.len())
        .map(|index| {
            let sites = request.sites.iter().copied().filter(|&site| !kept.has(site, index)).collect();
            let pairs = if stored[index].is_some() { BTreeSet::new() } else { request.pairs.clone() };
            PassRequest { pairs, sites }
        })
        .collect();
    let left: usize = shards.iter().zip(&work).filter(|(_, work)| !work.is_empty()).map(|(s, _)| s.len()).sum();
    let sequences = job.shape.sequences;
    let tokens = left * job.shape.length;
    if left < sequences {
        job.run.note(format!("{label}: {} of {sequences} sequences cached", sequences - left));
    }
    let config = &job.backbone.config;
    let load = Load::windows(tokens, job.shape.length);
    let missing: usize = shards.iter().zip(&work).map(|(shard, work)| work.sites.len() * shard.len()).sum();
    let bytes = (4 * missing * job.shape.length * job.shape.channels) as f64;
    let flops = Trie::new(&[request.program(config.layers)]).flops(config, &load).shared + FLOPS_PER_KEPT_BYTE * bytes;
    let id = job.run.start(job.guard.name(), label, tokens, 0, flops);
    let mut measured: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut next = 0;
    while next < shards.len() {
        // Process adjacent shards together if they lack the same sites and pairs, up to the token limit of the engine.
        let adjacent = (next..shards.len()).take_while(|&index| work[index] == work[next]);
        let tokens = adjacent.map(|index| shards[index].len() * job.shape.length);
        let end = next + count_fitting_pieces(tokens, job.engine.pass_tokens(work[next].streams()));
        if !work[next].is_empty() {
            for (index, (rows, sums)) in (next..).zip(measure_shards(job, id, &shards[next..end], &work[next])?) {
                kept.add(job.shape, index, rows);
                measured.insert(index, sums);
            }
            job.run.check_stop()?;
        }
        next = end;
    }
    job.run.finish(id);
    let mut similarities = Similarities::new(&request.pairs);
    for (index, shard) in shards.iter().enumerate() {
        // Add the sums in the order of the shards, so that the rounding does not depend on interruptions.
        let sums = stored[index].as_ref().or_else(|| measured.get(&index));
        similarities.add_sums(sums.map_or(&[], Vec::as_slice), shard.len());
    }
    Ok(similarities)
}

pub(super) fn shard_rows_key(job: &CalibrationJob<'_>, site: HookPoint, shard: &Range<usize>) -> Key {
    self::rows_key(job.backbone.key_parts(), job.tokens, site, shard)
}

fn shard_sums_key(job: &CalibrationJob<'_>, pairs: &BTreeSet<Pair>, shard: &Range<usize>) -> Key {
    self::sums_key(job.backbone.key_parts(), job.tokens, pairs, shard)
}

/// Results for one shard: the rows by site, and the similarity sums.
type ShardResults = (BTreeMap<HookPoint, StoredObject>, Vec<f64>);

fn measure_shards(
    job: &CalibrationJob<'_>,
    id: usize,
    shards: &[Range<usize>],
    work: &PassRequest,
) -> Result<Vec<ShardResults>> {
    fault::fault_point("activations");
    job.run.wait_for_latency_measurement()?;
    let store = job.run.store;
    let started = Instant::now();
    let (writer, drafts) = RowWriter::start(store, shards.len(), &work.sites)?;
    let mut spools: Vec<ShardSpool<'_>> = (0..shards.len()).map(|shard| writer.spool(shard, &work.sites)).collect();
    let mut pieces: Vec<WindowSubset<'_>> = shards
        .iter()
        .zip(&mut spools)
        .map(|(shard, spool)| {
            let shard: &Range<usize> = shard;
            let windows = job.windows.iter().skip(shard.start).take(shard.len()).collect();
            WindowSubset { windows, first_sequence: shard.start, spool: spool as &mut ShardSpool<'_> }
        })
        .collect();
    let batch = job.backbone.batch_tokens;
    let token_count: usize = shards.iter().map(|shard| shard.len() * job.shape.length).sum();
    let mut done = 0;
    let similarities = calibrate::run(&*job.engine, &mut pieces, batch, work, |tokens| {
        done += tokens;
        match job.run.advance(id, tokens) {
            // Store the finished shards before stopping.
            Err(error) if error.kind() == ErrorKind::Interrupted && done >= token_count => Ok(()),
            advanced => advanced,
        }
    });
    drop(spools);
    writer.finish()?;
    job.engine.notes().into_iter().for_each(|note| job.run.note(format!("{}: {note}", job.label)));
    let similarities = similarities.map_err(|error| error.at(job.label.clone()))?;
    job.check_unchanged()?;
    // Divide the time for the pass evenly among its objects.
    let seconds = started.elapsed().as_secs_f64() / (shards.len() * (work.sites.len() + 1)) as f64;
    let mut stored = Vec::new();
    for ((shard, drafts), similarities) in shards.iter().zip(drafts).zip(similarities) {
        let sums = similarities.sums();
        let key_parts = drafts.into_iter().map(|(site, draft)| (site, shard_rows_key(job, site, shard), draft));
        let rows = commit_rows(store, key_parts.collect(), seconds)?;
        job.guard.record_progress();
        if !work.pairs.is_empty() {
            store.put(&shard_sums_key(job, &work.pairs, shard), seconds, &[(SUMS, bytemuck::cast_slice(&sums))])?;
            job.guard.record_progress();
        }
        stored.push((rows, sums));
    }
    job.run.report_stored();
    Ok(stored)
}

/// Commits the rows of all sites in parallel, because each commit hashes its data and waits for the disk.
fn commit_rows(
    store: &Store,
    drafts: Vec<(HookPoint, Key, Draft)>,
    seconds: f64,
) -> Result<BTreeMap<HookPoint, StoredObject>> {
    let committed: Vec<Result<_>> =
        drafts.into_par_iter().map(|(site, key, draft)| Ok((site, store.commit(draft, &key, seconds)?))).collect();
    committed.into_iter().collect()
}

/// Stored and verified shards of each site.
#[derive(Default)]
pub(super) struct KeptActivations(BTreeMap<HookPoint, Vec<Option<StoredObject>>>);

impl KeptActivations {
    /// Looks up the shards of the given sites in the store.
    pub(super) fn look_up(&mut self, job: &CalibrationJob<'_>, sites: &BTreeSet<HookPoint>) {
        for &site in sites {
            let shards = job.shape.shards().map(|shard| job.run.get(&shard_rows_key(job, site, &shard)));
            self.0.insert(site, shards.collect());
        }
    }

    /// Returns the given sites that lack at least one shard.
    fn missing_sites(&self, sites: &BTreeSet<HookPoint>) -> BTreeSet<HookPoint> {
        let sites = sites.iter().copied();
        sites.filter(|site| self.0.get(site).is_none_or(|shards| shards.iter().any(Option::is_none))).collect()
    }

    pub(super) fn has(&self, site: HookPoint, shard: usize) -> bool {
        self.0.get(&site).is_some_and(|shards| shards[shard].is_some())
    }

    pub(super) fn add(
        &mut self,
        shape: ActivationShape,
        shard: usize,
        rows: impl IntoIterator<Item = (HookPoint, StoredObject)>,
    ) {
        for (site, artifact) in rows {
            self.0.entry(site).or_insert_with(|| shape.shards().map(|_| None).collect())[shard] = Some(artifact);
        }
    }

    /// Opens the rows of the given sites. Rows in files are memory-mapped.
    ///
    /// # Errors
    /// Fails if any shard of a site is not stored.
    pub(super) fn open(&self, shape: ActivationShape, sites: &BTreeSet<HookPoint>) -> Result<Activations> {
        Activations::new(
            shape,
            sites
                .iter()
                .map(|&site| {
                    let shards = self.0.get(&site).into_iter().flatten().map(map_shard).collect::<Result<_>>()?;
                    Ok((site, shards))
                })
                .collect::<Result<_>>()?,
        )
    }
}

fn map_shard(artifact: &Option<StoredObject>) -> Result<Shard> {
    let artifact = artifact.as_ref().ok_or_else(missing_rows_error)?;
    Ok(match artifact.map(ROWS).map_err(|error| missing_rows_error().found(error.one_line()))? {
        FileContent::File(map) => Shard::Mapped(map),
        FileContent::Memory(bytes) => Shard::Memory(bytemuck::pod_collect_to_vec(&bytes)),
    })
}

fn missing_rows_error() -> Error {
    Error::job("activations are missing from the store")
}

/// Deletes the similarity sums of a pass, and the activations at all sites except the `needed` ones. Objects in use by
/// other processes or threads, such as inputs for training, are kept.
fn discard_unneeded(job: &CalibrationJob<'_>, pass: &PassRequest, needed: &BTreeSet<HookPoint>) -> Result<()> {
    let mut keys = Vec::new();
    for shard in job.shape.shards() {
        keys.extend(pass.sites.difference(needed).map(|&site| shard_rows_key(job, site, &shard)));
        keys.extend((!pass.pairs.is_empty()).then(|| shard_sums_key(job, &pass.pairs, &shard)));
    }
    job.run.store.discard_unused(&keys)
}
