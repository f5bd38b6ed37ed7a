//! Checks that run before the first job: weights, methods, texts, memory and disk space.
//!
//! The commands `run`, `worker`, `plan` and `submit` share these checks.

use std::collections::HashSet;
use std::sync::atomic::AtomicBool;

use crate::error::{Error, Result};
use crate::files::disk;
use crate::grid::Grid;
use crate::machine;
use crate::model::check_weights;
use crate::pipeline::env::backbone::{BackbonePlan, CalibrationPlan, EvalTarget};
use crate::pipeline::env::coordination;
use crate::pipeline::env::event::{Event, Reporter};
use crate::pipeline::env::run_env::RunEnv;
use crate::pipeline::env::run_settings::RunSettings;
use crate::pipeline::plan::{Estimate, ObjectState, Plan, Quota, StoreView, batch_bytes, warnings};
use crate::pipeline::stage::tokens::{extent, tokenize_missing};
use crate::quantity::distinct_sizes;
use crate::quantity::pluralize;
use ghostlab_store::{InventoryItem, Store};

/// Machine on which a plan will run.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum TargetMachine {
    /// This machine. Memory is limited to its free memory by default.
    Local,
    /// Another machine, whose free memory is unknown.
    Remote,
}

/// State of the store and cost estimate for a plan that has passed the checks.
pub struct Preflight {
    pub state: StoreView,
    pub estimate: Estimate,
}

/// Reports the warnings about a grid and its inputs.
pub(super) fn report_warnings(grid: &Grid, plan: &Plan<'_>, reporter: &dyn Reporter) {
    for text in warnings(grid, &plan.inputs.hashes_by_path()) {
        reporter.event(Event::Note { text: format!("warning: {text}") });
    }
}

/// Callback that receives the plan and the state of the store before anything is computed.
pub type SurveyHook<'a> = &'a dyn Fn(&Plan<'_>, &StoreView);

/// Surveys the store and calls `surveyed`. Then checks the plan, tokenizes its texts, and checks that there is enough
/// memory and disk space.
///
/// # Errors
/// Fails if a weight file cannot be read, a backbone does not support a recovery, a corpus or task cannot be tokenized,
/// `stop` is set, or there is not enough memory or disk space.
pub fn preflight(
    plan: &Plan<'_>,
    env: &RunEnv<'_>,
    target: TargetMachine,
    surveyed: SurveyHook<'_>,
) -> Result<Preflight> {
    let RunEnv { store, settings, reporter, stop } = env;
    let mut state =
        if settings.retime { StoreView::survey_for_retime(plan, store) } else { StoreView::survey(plan, store) };
    surveyed(plan, &state);
    let free = machine::reported_free_memory().filter(|_| target == TargetMachine::Local);
    if plan.backbones.iter().flat_map(BackbonePlan::tokens).any(|key| state.is_absent(key)) {
        check_token_memory(plan, &state, settings.memory, free)?;
        // The costs are estimated again when the lengths of all texts are known.
        check_disk(plan, &state, settings, target, store)?;
    }
    prepare(plan, store, *reporter, stop)?;
    // Tokens are the only objects that `prepare` stores.
    state.refresh_tokens(plan);
    plan.backbones.iter().try_for_each(|backbone| note_overlap(backbone, &state, *reporter))?;
    let estimate = check_disk(plan, &state, settings, target, store)?;
    for backbone in &plan.backbones {
        check_job_memory(plan, backbone, &state, settings.memory, free)?;
    }
    Ok(Preflight { state, estimate })
}

/// Estimates the costs, and checks that there is enough disk space. The estimate excludes texts that have not been
/// tokenized.
fn check_disk(
    plan: &Plan<'_>,
    state: &StoreView,
    settings: &RunSettings,
    target: TargetMachine,
    store: &Store,
) -> Result<Estimate> {
    let memory = match target {
        TargetMachine::Local => settings.memory_bytes(),
        TargetMachine::Remote => settings.memory.unwrap_or(u64::MAX),
    };
    let estimate = Estimate::from_plan(plan, state, settings.spool_bytes, memory)?;
    let incoming = estimate.incoming();
    // Number of bytes that will be freed when the size limit of the store is enforced.
    let evicted_bytes = settings.store_limit.map(|limit| -> Result<u64> {
        let quota = Quota::new(plan, store, &store.reserved_by_others()?, limit, incoming);
        Ok(quota.evicted.iter().map(InventoryItem::bytes).sum())
    });
    check_disk_space(&estimate, evicted_bytes.transpose()?.unwrap_or(0), store)?;
    Ok(estimate)
}

/// Checks every backbone, and tokenizes the texts and tasks whose tokens are missing.
fn prepare(plan: &Plan<'_>, store: &Store, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<()> {
    for backbone in &plan.backbones {
        check_backbone(plan.grid, backbone, reporter)?;
    }
    tokenize_missing(plan.grid_inputs(), &plan.backbones, store, reporter, stop)
}

/// Reports calibrations that draw more tokens than their text contains. Their windows overlap, so they provide less
/// calibration data than their token count suggests.
fn note_overlap(backbone: &BackbonePlan, state: &StoreView, reporter: &dyn Reporter) -> Result<()> {
    for CalibrationPlan { calibration, tokens, .. } in &backbone.calibrations {
        let ObjectState::Whole(object) = state.object(tokens) else { continue };
        let (windows, corpus_tokens, _) = extent(object)?;
        let drawn = windows.saturating_mul(calibration.length);
        if drawn > corpus_tokens {
            let text = format!(
                "backbone {}: calibration {calibration} draws {drawn} tokens from {corpus_tokens} tokens of text, so \
                 each token is drawn {:.1} times on average",
                backbone.name,
                drawn as f64 / corpus_tokens.max(1) as f64
            );
            reporter.event(Event::Note { text });
        }
    }
    Ok(())
}

/// Rejects a plan if its kernels are not supported by the processor.
///
/// # Errors
/// Fails under the same conditions as [`EngineChoice::check`](crate::model::EngineChoice::check).
pub(super) fn check_kernels(plan: &Plan<'_>) -> Result<()> {
    plan.backbones.iter().try_for_each(|backbone| {
        backbone.engine.check().map_err(|error| error.at(format!("backbone `{}`", backbone.name)))
    })
}

fn check_backbone(grid: &Grid, backbone: &BackbonePlan, reporter: &dyn Reporter) -> Result<()> {
    let note = |text: String| reporter.event(Event::Note { text: format!("backbone {}: {text}", backbone.name) });
    backbone.config.notes.iter().for_each(|text| note(text.clone()));
    // Check only the headers. The weights are verified when the backbone is loaded.
    check_weights(&backbone.config, &backbone.folder)?;
    let mut checked = HashSet::new();
    for cell in backbone.variants.iter().map(|variant| &grid.cells[variant.cell]) {
        let criterion = cell
            .criterion
            .as_ref()
            .map(|method| (format!("criterion `{method}`"), method.rule.check_backbone(&backbone.config)));
        let recovery =
            cell.recovery.as_ref().map(|method| (format!("recovery `{method}`"), method.rule.check(&backbone.config)));
        for (method, result) in criterion.into_iter().chain(recovery) {
            if checked.insert(method.clone()) {
                result.map_err(|error| error.at(format!("backbone `{}`, {method}", backbone.name)))?;
            }
        }
    }
    let texts = backbone.evaluations.iter().filter_map(|evaluation| match &evaluation.target {
        EvalTarget::Windows(text) => Some((&text.corpus, text.length)),
        EvalTarget::Task(_) => None,
    });
    let lengths = backbone.calibrations.iter().map(|c| (&c.calibration.corpus, c.calibration.length)).chain(texts);
    for (corpus, length) in lengths {
        if let Some(max_positions) = backbone.config.max_positions.filter(|&max_positions| length > max_positions) {
            note(format!(
                "windows of {length} tokens on `{corpus}` exceed the training context of {max_positions} tokens"
            ));
        }
    }
    Ok(())
}

/// Rejects a plan that needs more disk space than is available. `evicted_bytes` is the number of bytes that evictions
/// will free.
///
/// # Errors
/// Fails with exit code 3 if disk space or inodes do not suffice.
fn check_disk_space(estimate: &Estimate, evicted_bytes: u64, store: &Store) -> Result<()> {
    let needed = (estimate.incoming(), estimate.cost.inodes);
    let free =
        (disk::free(store.root()).map(|free| free.saturating_add(evicted_bytes)), disk::free_inodes(store.root()));
    let shortage = |needed: String, found: String| {
        Err(Error::missing("not enough disk space in the store for this grid")
            .at(store.root().display().to_string())
            .expected(format!("about {needed} free"))
            .found(found)
            .hint("run `ghostlab cache gc` to see what can be deleted, or choose another folder with --store"))
    };
    match free {
        (Some(bytes), _) if bytes < needed.0 => {
            let [needed, free] = distinct_sizes(needed.0, bytes);
            shortage(needed, free)
        }
        (_, Some(inodes)) if inodes < needed.1 => {
            shortage(format!("{} files and folders (inodes)", needed.1), format!("{inodes} inodes free"))
        }
        _ => Ok(()),
    }
}

/// Rejects a plan if the missing calibration tokens of a backbone do not fit in memory together. Called before any
/// windows are drawn.
fn check_token_memory(plan: &Plan<'_>, state: &StoreView, limit: Option<u64>, free: Option<u64>) -> Result<()> {
    let Some(available) = limit.or(free) else { return Ok(()) };
    for backbone in &plan.backbones {
        // The windows of all texts are drawn in parallel, and each text needs two copies of its token ids while they
        // are written.
        let missing = backbone.calibrations.iter().filter(|calibration| state.is_absent(&calibration.tokens));
        let needed = missing.clone().map(token_bytes).fold(0, u64::saturating_add);
        let largest = missing.max_by_key(|calibration| token_bytes(calibration)).filter(|_| needed > available);
        if let Some(largest) = largest {
            return Err(Error::missing("not enough memory for the calibration tokens")
                .at(format!("backbone {}, largest calibration: {}", backbone.name, largest.calibration))
                .expected(format!("{} for tokens", gigabytes(needed)))
                .found(match limit {
                    Some(_) => format!("{} (--memory)", gigabytes(available)),
                    None => format!("{} free", gigabytes(available)),
                })
                .hint("reduce `sequences` or `length` of the calibration or of `finetune`"));
        }
    }
    Ok(())
}

/// Returns the memory in bytes that is needed for drawing the windows of a calibration: two copies of the token ids and
/// of the window starts.
fn token_bytes(plan: &CalibrationPlan) -> u64 {
    8 * plan.load().tokens as u64 + 32 * plan.calibration.sequences as u64
}

fn check_job_memory(
    plan: &Plan<'_>,
    backbone: &BackbonePlan,
    state: &StoreView,
    limit: Option<u64>,
    free: Option<u64>,
) -> Result<()> {
    let jobs = backbone
        .jobs()
        .map(|job| (job, state.missing_variants(backbone, job)))
        .filter(|(_, missing)| !missing.is_empty());
    let bytes = jobs.map(|(job, missing)| (job.group.bytes)(backbone, &missing)).filter(|bytes| *bytes > 0);
    let Some(largest) = bytes.max() else { return Ok(()) };
    // Weights are loaded in parts, so memory must hold at least the largest part. For generation, it must also hold the
    // KV cache of one prompt.
    let reserve = batch_bytes(plan, backbone, state, 0) + largest;
    let weights = backbone.engine.held_bytes(&backbone.config, 0);
    check_memory(&MemoryNeed { backbone: &backbone.name, weights, reserve }, limit, free)
}

/// Evicts objects that this plan does not need if the store would otherwise exceed its size limit, and reports the
/// evictions. `incoming` is the number of bytes that the run has yet to write.
pub(super) fn enforce_store_limit(incoming: u64, plan: &Plan<'_>, env: &RunEnv<'_>) -> Result<()> {
    let RunEnv { settings, store, reporter, stop } = *env;
    let Some(limit) = settings.store_limit else { return Ok(()) };
    let read_quota = || Ok::<_, Error>(Quota::new(plan, store, &store.reserved_by_others()?, limit, incoming));
    let note = |text| reporter.event(Event::Note { text });
    let mut quota = read_quota()?;
    if !quota.evicted.is_empty() {
        let gc_lease = coordination::lease(store, Store::GC_LEASE, "cleaning up the store", reporter, stop)?;
        // Read the quota again, because runs that have started in the meantime may have reserved some of the objects.
        quota = read_quota()?;
        for batch in quota.evicted.chunks(64) {
            // If this process was paused for too long, it has lost the lease, and newer runs may need the objects. The
            // next eviction will remove those that are still unused.
            if !gc_lease.is_held() {
                break;
            }
            store.remove_all(batch)?;
        }
        let count = quota.evicted.len();
        let bytes = quota.evicted.iter().map(InventoryItem::bytes).sum::<u64>();
        let seconds: f64 = quota.evicted.iter().map(InventoryItem::seconds).sum();
        let limit = gigabytes(limit);
        let bytes = gigabytes(bytes);
        note(format!(
            "store limit {limit}: evicted {} ({bytes}, computed in {seconds:.0} s)",
            pluralize(count, "object")
        ));
    }
    if quota.excess() > 0 {
        note(format!("the store exceeds its limit by {} because this grid needs the space", gigabytes(quota.excess())));
    }
    Ok(())
}

fn gigabytes(bytes: u64) -> String {
    format!("{:.2} GB", bytes as f64 / 1e9)
}

#[derive(Debug)]
struct MemoryNeed<'a> {
    backbone: &'a str,
    weights: u64,
    /// Number of bytes needed for the activations of a batch, for operators, and for solving an operator.
    reserve: u64,
}

/// Rejects a backbone whose jobs do not fit in `limit`, or in the `free` memory if there is no limit.
fn check_memory(needs: &MemoryNeed<'_>, limit: Option<u64>, free: Option<u64>) -> Result<()> {
    let needed = needs.weights + needs.reserve;
    if limit.or(free).is_none_or(|available| needed <= available) {
        return Ok(());
    }
    let error = Error::missing("a job exceeds the memory limit")
        .at(format!("backbone {}", needs.backbone))
        .expected(format!(
            "{}: {} for the weights, {} for activations and operators",
            gigabytes(needed),
            gigabytes(needs.weights),
            gigabytes(needs.reserve)
        ))
        .found(
            [(limit, "(--memory)"), (free, "free")]
                .map(|(bytes, source)| Some(format!("{} {source}", gigabytes(bytes?))))
                .into_iter()
                .flatten()
                .collect::<Vec<_>>()
                .join("; "),
        );
    let gigabytes = (needed as f64 / 1e7).ceil() / 100.0;
    Err(match free {
        Some(free) if needed <= free => error.hint(format!("raise the limit with --memory {gigabytes}")),
        _ => error.hint(format!(
            "close other programs, or score fewer variants at a time; --memory {gigabytes} overrides this check, but the \
             system may kill the run"
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY_NEED: MemoryNeed<'_> =
        MemoryNeed { backbone: "llama", weights: 34_000_000_000, reserve: 4_999_000_001 };

    #[test]
    fn memory_limit_takes_precedence_over_free_memory() {
        let needed = MEMORY_NEED.weights + MEMORY_NEED.reserve;
        for (limit, free, fits) in [
            (None, Some(needed), true),
            (None, Some(needed - 1), false),
            (None, None, true),
            (Some(needed), Some(1), true),
            (Some(needed - 1), Some(u64::MAX), false),
            (Some(needed - 1), None, false),
        ] {
            assert_eq!(check_memory(&MEMORY_NEED, limit, free).is_ok(), fits, "{limit:?} {free:?}");
        }
    }

    #[test]
    fn memory_error_shows_requirement_limit_and_hint() {
        let error = check_memory(&MEMORY_NEED, Some(20_000_000_000), Some(64_000_000_000)).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        let text = error.to_string();
        for word in ["llama", "39.00 GB: 34.00 GB", "5.00 GB", "20.00 GB (--memory); 64.00 GB free", "--memory 39"] {
            assert!(text.contains(word), "`{word}` is not in {text}");
        }
        let text = check_memory(&MEMORY_NEED, None, Some(20_000_000_000)).unwrap_err().to_string();
        assert!(text.contains("found:    20.00 GB free") && text.contains("close other programs"), "{text}");
    }
}
