//! Floor 2: what is put at the boundary of a removed region (design §7). One method, one file, one line in [`ENTRIES`].

mod boundary;
mod ghosted;
mod least_squares;
mod linearpatch;
mod method;
mod none;
mod prune_and_comp;
mod repair_metrics;
mod replaceme_cos;
mod replaceme_ls;

use crate::error::Result;
use crate::options::{self, Described, Options};

pub use boundary::{Boundary, Span};
use method::RecoveryEntry;
pub use method::{Fitted, Recovery, Repair, Solution, System};
pub use repair_metrics::RepairMetrics;

/// Every recovery that a grid may name.
#[rustfmt::skip] // One line each.
const ENTRIES: &[RecoveryEntry] = &[
    none::ENTRY,
    prune_and_comp::ENTRY,
    replaceme_ls::ENTRY,
    replaceme_cos::ENTRY,
    linearpatch::DIAG_ENTRY,
    linearpatch::ROTATE_ENTRY,
    ghosted::ENTRY,
];

/// The recovery of a name, with its options.
///
/// # Errors
/// An unknown name (with the nearest), an unknown option or a wrong value.
pub fn build(name: &str, options: &Options) -> Result<Box<dyn Recovery>> {
    (options::lookup("recovery", name, ENTRIES)?.build)(options)
}

/// The options of a recovery with every default filled in: what it is known by in keys.
///
/// # Errors
/// As [`build`].
pub fn resolve(name: &str, options: &Options) -> Result<Options> {
    let entry = options::lookup("recovery", name, ENTRIES)?;
    (entry.build)(options)?;
    entry.resolve(options)
}

/// The names of all recoveries and what their options are.
pub fn described() -> Vec<Described> {
    ENTRIES.iter().map(RecoveryEntry::described).collect()
}
