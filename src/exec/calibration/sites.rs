//! Planning the pass: which activations the recoveries read, and which of them the first pass spools.

use std::collections::BTreeSet;

use super::job::CalibrationJob;
use super::solve::recovery_of;
use crate::calibrate::{HookPoint, Pair, PassRequest};
use crate::error::Result;
use crate::grid::Grid;
use crate::plan::Variant;
use crate::stage::operator;

/// Removed layers `[start, end)`.
type Region = (usize, usize);

/// What the recoveries of some variants read at some regions of theirs.
pub(super) fn of<'v>(
    grid: &Grid,
    variants: impl Iterator<Item = (&'v Variant, Vec<Region>)>,
) -> Result<BTreeSet<HookPoint>> {
    let mut sites = BTreeSet::new();
    for (variant, regions) in variants {
        let recovery = recovery_of(&grid.cells[variant.cell])?;
        sites.extend(operator::sites(recovery, regions));
    }
    Ok(sites)
}

/// The first pass: all of some sites where they fit the limit, or where there is no choice to wait for. Of more, those that
/// the choice is made by (`read`), if these fit.
pub(super) fn first_pass(
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
