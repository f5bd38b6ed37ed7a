//! Whether there is room for a run, on the disk and in memory: what cannot fit is refused before it begins, and not killed
//! by the system in the middle.

use std::sync::atomic::AtomicBool;

use super::event::{Event, Reporter};
use super::wait;
use crate::error::{Error, Result};
use crate::files::disk;
use crate::plan::{Plan, Quota};
use crate::store::{InventoryItem, Store};

/// Refuses to begin what the store's disk has no room for.
///
/// # Errors
/// Exit code 3: what is wanted, and what is free.
pub fn on_disk(wanted: u64, store: &Store) -> Result<()> {
    match disk::free(store.root()) {
        Some(free) if free < wanted => Err(Error::missing("the store's disk has not enough room for this grid")
            .at(store.root().display().to_string())
            .expected(format!("about {:.1} GB free", wanted as f64 / 1e9))
            .found(format!("{:.1} GB", free as f64 / 1e9))
            .hint("`ghostlab cache gc` shows what could go; or name another folder with --store")),
        _ => Ok(()),
    }
}

/// Removes from the store what nobody needs, as far as it exceeds its limit with the bytes that will come; says what went,
/// and where that is not enough.
pub(super) fn in_store(
    limit: Option<u64>,
    coming: u64,
    plan: &Plan<'_>,
    store: &Store,
    reporter: &dyn Reporter,
    stop: &AtomicBool,
) -> Result<()> {
    let Some(limit) = limit else { return Ok(()) };
    let look = || Ok::<_, Error>(Quota::of(plan, store, &store.reserved_by_others()?, limit, coming));
    let note = |text| reporter.event(Event::Note { text });
    let gigabytes = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
    let mut quota = look()?;
    if !quota.going.is_empty() {
        let _clearing = wait::claim(store, Store::CLEARING, "clearing up the store", reporter, stop)?;
        // A run that has begun since has noted what it needs.
        quota = look()?;
        quota.going.iter().try_for_each(|entry| store.remove(entry))?;
        let (count, bytes) = (quota.going.len(), quota.going.iter().map(InventoryItem::bytes).sum::<u64>());
        let seconds: f64 = quota.going.iter().map(InventoryItem::seconds).sum();
        let (limit, bytes) = (gigabytes(limit), gigabytes(bytes));
        note(format!(
            "the store's limit of {limit}: {count} artifacts of {bytes} went that took {seconds:.0} s to make"
        ));
    }
    if quota.beyond() > 0 {
        note(format!("the store exceeds its limit by {}: this grid needs that much", gigabytes(quota.beyond())));
    }
    Ok(())
}

/// What the largest job of a backbone takes when it runs alone, in bytes.
#[derive(Debug)]
pub(super) struct Needs<'a> {
    pub(super) backbone: &'a str,
    pub(super) weights: u64,
    /// Activations of a batch, operators, and what solving one takes.
    pub(super) beside: u64,
}

/// Refuses to begin a job that can never fit: into the `limit`, where one is given, or else into all that is `free`, as far
/// as the system tells.
pub(super) fn in_memory(needs: &Needs<'_>, limit: Option<u64>, free: Option<u64>) -> Result<()> {
    let wanted = needs.weights + needs.beside;
    if limit.or(free).is_none_or(|most| wanted <= most) {
        return Ok(());
    }
    let shown = |bytes: u64| format!("{:.2} GB", bytes as f64 / 1e9);
    let told = |(bytes, what): (Option<u64>, &str)| Some(format!("{} {what}", shown(bytes?)));
    let error = Error::missing("a job needs more memory than it may have")
        .at(format!("backbone {}", needs.backbone))
        .expected(format!(
            "{}: {} for the weights, {} for activations and operators",
            shown(wanted),
            shown(needs.weights),
            shown(needs.beside)
        ))
        .found([(limit, "by --memory"), (free, "free")].map(told).into_iter().flatten().collect::<Vec<_>>().join("; "));
    // As much as it takes, and not rounded below it.
    let asked = (wanted as f64 / 1e7).ceil() / 100.0;
    Err(match free {
        Some(free) if wanted <= free => error.hint(format!("--memory {asked} lets it run")),
        _ => error.hint(format!(
            "end other programs, or score fewer variants at a time; --memory {asked} runs it all the same, and the system \
             may kill it"
        )),
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEEDS: Needs<'_> = Needs { backbone: "llama", weights: 34_000_000_000, beside: 4_999_000_001 };

    #[test]
    fn what_fits_begins_and_the_limit_counts_where_there_is_one() {
        let wanted = NEEDS.weights + NEEDS.beside;
        for (limit, free, fits) in [
            (None, Some(wanted), true),
            (None, Some(wanted - 1), false),
            (None, None, true),
            (Some(wanted), Some(1), true),
            (Some(wanted - 1), Some(u64::MAX), false),
            (Some(wanted - 1), None, false),
        ] {
            assert_eq!(in_memory(&NEEDS, limit, free).is_ok(), fits, "{limit:?} {free:?}");
        }
    }

    #[test]
    fn a_refusal_says_what_is_needed_what_there_is_and_which_switch_helps() {
        let error = in_memory(&NEEDS, Some(20_000_000_000), Some(64_000_000_000)).unwrap_err();
        assert_eq!(error.exit_code(), 3);
        let text = error.to_string();
        for word in ["llama", "39.00 GB: 34.00 GB", "5.00 GB", "20.00 GB by --memory; 64.00 GB free", "--memory 39 "] {
            assert!(text.contains(word), "`{word}` is not in {text}");
        }
        let text = in_memory(&NEEDS, None, Some(20_000_000_000)).unwrap_err().to_string();
        assert!(text.contains("found:    20.00 GB free") && text.contains("end other programs"), "{text}");
    }
}
