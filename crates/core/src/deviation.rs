//! Cases in which the official code departs from its own formulas. This program follows the formulas.
//!
//! ```
//! use ghostlab_core::criterion;
//! use ghostlab_core::deviation::PruneCase;
//!
//! let case = PruneCase { sequences: 128, operator_sequences: 128, one_block: true, removed: Some(&[3, 4]) };
//! assert!(criterion::deviations("llm-streamline", &case).is_empty());
//! ```

/// Sequences that the official code reads of a calibration, and divides LinearPatch's sums by, however many there are.
pub const OFFICIAL_SEQUENCES: usize = 128;

/// The properties of a cell that decide whether a deviation applies.
#[derive(Debug, Clone, Copy)]
pub struct PruneCase<'a> {
    /// Calibration sequences.
    pub sequences: usize,
    /// Calibration sequences that operators are solved on.
    pub operator_sequences: usize,
    /// Whether the criterion removes one block.
    pub one_block: bool,
    /// The removed layers; none while they are not known.
    pub removed: Option<&'a [usize]>,
}

/// A deviation of a method's official code, in its registry entry.
#[derive(Debug, Clone, Copy)]
pub struct Deviation {
    pub applies: fn(&PruneCase<'_>) -> bool,
    /// Behaviour of the official code, as a sentence without a full stop.
    pub text: &'static str,
}
