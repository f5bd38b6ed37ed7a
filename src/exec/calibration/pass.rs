//! The calibration pass, shard by shard. Each shard is stored when it is done: a killed pass goes on with the next.

use std::collections::{BTreeMap, BTreeSet};
use std::io::Write;
use std::ops::Range;
use std::time::Instant;

use super::job::CalibrationJob;
use super::shards::KeptActivations;
use crate::calibrate::{self, HookPoint, Pair, PassRequest, Piece, Similarities, Spool};
use crate::error::{Error, ErrorKind, Result};
use crate::exec::timing_lock;
use crate::model::{Load, Trie, together};
use crate::stage::activations::{ROWS, SUMS, read_sums};
use ghostlab_store::fault;
use ghostlab_store::{Draft, Payload, Store, StoredObject};

/// The first pass: all of some sites where they fit the limit, or where there is no choice to wait for. Of more, those that
/// the choice is made by (`read`), if these fit.
pub(super) fn first(
    job: &CalibrationJob<'_>,
    pairs: BTreeSet<Pair>,
    read: &BTreeSet<HookPoint>,
    sites: BTreeSet<HookPoint>,
) -> PassRequest {
    let mut request = PassRequest { pairs, sites };
    let of = |sites: &BTreeSet<HookPoint>| job.shape.bytes() * sites.len() as u64;
    let bytes = of(&request.sites);
    let fits = bytes <= job.run.settings.spool_bytes;
    if !request.is_empty() {
        job.run.note(format!(
            "{}: {} sites, {:.1} MB of activations, {}",
            job.label,
            request.sites.len(),
            bytes as f64 / 1e6,
            if fits { "one pass" } else { "over the limit: a second pass spools only what the selections chose" }
        ));
    }
    let waits = !request.pairs.is_empty() || !read.is_empty();
    if waits && !fits {
        let may = of(read) <= job.run.settings.spool_bytes;
        request.sites.retain(|site| may && read.contains(site));
    }
    request
}

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
    let flops = Trie::new(&[request.program(config.layers)]).flops(config, &load).shared;
    let id = job.run.start(job.hold.name(), label, tokens, 0, flops);
    let mut measured: BTreeMap<usize, Vec<f64>> = BTreeMap::new();
    let mut next = 0;
    while next < shards.len() {
        // Of neighbours that lack the same, so many as the engine takes through the layers together.
        let like = (next..shards.len()).take_while(|&index| work[index] == work[next]);
        let tokens = like.map(|index| shards[index].len() * job.shape.length);
        let end = next + together(tokens, job.engine.pass_tokens(work[next].streams()));
        if !work[next].is_empty() {
            for (index, (rows, sums)) in (next..).zip(measure(job, id, &shards[next..end], &work[next])?) {
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
        // Sums are added shard by shard, so that they come out the same wherever a pass was cut off.
        let sums = stored[index].as_ref().or_else(|| measured.get(&index));
        similarities.add_sums(sums.map_or(&[], Vec::as_slice), shard.len());
    }
    Ok(similarities)
}

/// What one shard gives: the rows by site, and the sums of the similarities.
type OfShard = (BTreeMap<HookPoint, StoredObject>, Vec<f64>);

/// Runs some shards together and stores what they give.
fn measure(job: &CalibrationJob<'_>, id: usize, shards: &[Range<usize>], work: &PassRequest) -> Result<Vec<OfShard>> {
    fault::here("activations");
    timing_lock::keep(job.run.store, job.run.reporter, job.run.stop)?;
    let (store, started) = (job.run.store, Instant::now());
    let mut drafts = shards.iter().map(|_| Drafts::create(store, &work.sites)).collect::<Result<Vec<_>>>()?;
    let piece = |(shard, drafts)| {
        let shard: &Range<usize> = shard;
        let windows = job.windows.iter().skip(shard.start).take(shard.len()).collect();
        Piece { windows, first_sequence: shard.start, spool: drafts as &mut Drafts }
    };
    let mut pieces: Vec<Piece<'_>> = shards.iter().zip(&mut drafts).map(piece).collect();
    let batch = job.run.settings.batch_tokens;
    let whole: usize = shards.iter().map(|shard| shard.len() * job.shape.length).sum();
    let mut done = 0;
    let progress = |tokens| {
        done += tokens;
        match job.run.advance(id, tokens) {
            // What is whole is stored before the pass stops.
            Err(error) if error.kind() == ErrorKind::Interrupted && done >= whole => Ok(()),
            advanced => advanced,
        }
    };
    let similarities = calibrate::run(&*job.engine, &mut pieces, batch, work, progress);
    job.engine.notes().into_iter().for_each(|note| job.run.note(format!("{}: {note}", job.label)));
    let similarities = similarities.map_err(|error| error.at(job.label.clone()))?;
    job.unchanged()?;
    // One pass made them all.
    let seconds = started.elapsed().as_secs_f64() / (shards.len() * (work.sites.len() + 1)) as f64;
    let mut stored = Vec::new();
    for ((shard, drafts), similarities) in shards.iter().zip(drafts).zip(similarities) {
        let (mut rows, sums) = (BTreeMap::new(), similarities.sums());
        for (site, (draft, payload)) in drafts.0 {
            payload.close().map_err(|error| unwritten(site, &error))?;
            rows.insert(site, store.commit(draft, &job.rows_key(site, shard), seconds)?);
            job.hold.gone_on();
        }
        if !work.pairs.is_empty() {
            store.put(&job.sums_key(&work.pairs, shard), seconds, &[(SUMS, bytemuck::cast_slice(&sums))])?;
            job.hold.gone_on();
        }
        stored.push((rows, sums));
    }
    job.run.kept();
    Ok(stored)
}

fn stored_sums(job: &CalibrationJob<'_>, pairs: &BTreeSet<Pair>, shard: &Range<usize>) -> Option<Vec<f64>> {
    read_sums(&job.run.get(&job.sums_key(pairs, shard))?, pairs.len())
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
