//! The calibration pass, shard by shard. Each shard is stored when it is done: a killed pass goes on with the next.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Range;
use std::time::Instant;

use super::job::CalibrationJob;
use super::shards::{KeptActivations, ROWS};
use crate::calibrate::{self, HookPoint, Pair, PassRequest, Similarities, Spool};
use crate::error::{Error, Result};
use crate::model::{Load, Trie};
use crate::store::{Draft, Payload, Store, StoredArtifact};

/// The payload of similarities.
const SUMS: &str = "sums.f64";

/// Runs the dense backbone over every shard of which something is missing.
pub(super) fn run(
    job: &CalibrationJob<'_>,
    label: &str,
    request: &PassRequest,
    kept: &mut KeptActivations,
) -> Result<Similarities> {
    if request.is_empty() {
        return Ok(Similarities::default());
    }
    let shards: Vec<Range<usize>> = job.shape.shards().collect();
    let stored: Vec<Option<Vec<f64>>> = shards.iter().map(|shard| stored_sums(job, &request.pairs, shard)).collect();
    let missing = |index: usize| {
        let sites = request.sites.iter().copied().filter(|&site| !kept.has(site, index)).collect();
        let pairs = if stored[index].is_some() { BTreeSet::new() } else { request.pairs.clone() };
        PassRequest { pairs, sites }
    };
    let work: Vec<PassRequest> = (0..shards.len()).map(missing).collect();
    let left: usize = shards.iter().zip(&work).filter(|(_, work)| !work.is_empty()).map(|(s, _)| s.len()).sum();
    let (sequences, tokens) = (job.shape.sequences, left * job.shape.length);
    if left < sequences {
        job.run.note(format!("{label}: {} of {sequences} sequences are stored", sequences - left));
    }
    let (config, load) = (&job.backbone.config, Load::windows(tokens, job.shape.length));
    let flops = Trie::new(&[request.program(config.layers)]).cost(|step| config.flops(step, &load)).shared;
    let id = job.run.start(label, tokens, 0, flops);
    let mut similarities = Similarities::new(&request.pairs);
    for (index, (shard, work)) in shards.iter().zip(&work).enumerate() {
        let (rows, sums) = if work.is_empty() { Default::default() } else { measure(job, id, shard, work)? };
        kept.add(job.shape, index, rows);
        // Sums are added shard by shard, so that they come out the same wherever a pass was cut off.
        similarities.add_sums(stored[index].as_ref().unwrap_or(&sums), shard.len());
    }
    job.run.finish(id);
    Ok(similarities)
}

/// Runs one shard and stores what it gives: the rows by site, and the sums of the similarities.
fn measure(
    job: &CalibrationJob<'_>,
    id: usize,
    shard: &Range<usize>,
    work: &PassRequest,
) -> Result<(BTreeMap<HookPoint, StoredArtifact>, Vec<f64>)> {
    let (store, started) = (job.run.store, Instant::now());
    let windows: Vec<&[u32]> = job.windows.iter().skip(shard.start).take(shard.len()).collect();
    let mut drafts = Drafts::create(store, &work.sites)?;
    let batch = job.run.settings.batch_tokens;
    let progress = |tokens| job.run.advance(id, tokens);
    let sums = calibrate::run(&*job.engine, &windows, shard.start, batch, work, &mut drafts, progress);
    job.engine.notes().into_iter().for_each(|note| job.run.note(format!("{}: {note}", job.label)));
    let sums = sums.map_err(|error| error.at(job.label.clone()))?.sums();
    // One pass made them all.
    let seconds = started.elapsed().as_secs_f64() / (work.sites.len() + 1) as f64;
    let mut rows = BTreeMap::new();
    for (site, (draft, payload)) in drafts.0 {
        payload.close().map_err(|error| unwritten(site, &error))?;
        rows.insert(site, store.commit(draft, &job.rows_key(site, shard), seconds)?);
    }
    if !work.pairs.is_empty() {
        store.put(&job.sums_key(&work.pairs, shard), seconds, &[(SUMS, bytemuck::cast_slice(&sums))])?;
    }
    Ok((rows, sums))
}

fn stored_sums(job: &CalibrationJob<'_>, pairs: &BTreeSet<Pair>, shard: &Range<usize>) -> Option<Vec<f64>> {
    let bytes = job.run.get(&job.sums_key(pairs, shard))?.read(SUMS).ok()?;
    let sums: Vec<f64> = bytes.chunks_exact(8).map(bytemuck::pod_read_unaligned).collect();
    (sums.len() == pairs.len()).then_some(sums)
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
