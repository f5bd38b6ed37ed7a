//! Cases in which a method's official code deviates from its published formulas. This program follows the formulas.
//!
//! ```
//! use ghostlab_core::criterion;
//! use ghostlab_core::deviation::PruneCase;
//!
//! let case = PruneCase { sequences: 128, operator_sequences: 128, one_block: true, removed: Some(&[3, 4]) };
//! assert!(criterion::deviations("llm-streamline", &case).is_empty());
//! ```

/// Number of calibration sequences that the official code hard-codes. The official code also divides LinearPatch's sums
/// by this number, regardless of the actual number of sequences.
pub const OFFICIAL_SEQUENCES: usize = 128;

/// Properties of a grid cell (one combination of settings) that determine which deviations apply.
#[derive(Debug, Clone, Copy)]
pub struct PruneCase<'a> {
    pub sequences: usize,
    /// Number of calibration sequences on which operators are fitted.
    pub operator_sequences: usize,
    /// Whether the criterion removes one block of consecutive layers.
    pub one_block: bool,
    /// Removed layers, or `None` if they are not yet known.
    pub removed: Option<&'a [usize]>,
}

/// Deviation of a method's official code from its published formulas, listed in the method's registry entry.
#[derive(Debug, Clone, Copy)]
pub struct Deviation {
    pub applies: fn(&PruneCase<'_>) -> bool,
    /// Behavior of the official code, written as a clause without a subject or a final period.
    pub text: &'static str,
}
