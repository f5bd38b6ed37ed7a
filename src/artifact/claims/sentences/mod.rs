//! The paper's claims, section by section.
//!
//! A sentence is worded as it is written, whether or not the paper's own tables bear it out. Where a word of it is no
//! number ("competitive", "substantial"), `reading` says how it was taken; the threshold is ours, not the paper's. Sections
//! are counted as the paper prints them; appendices A to H in their order.
//!
//! Another claim is another entry: what it says, whose numbers it is about, and a check over one setting of them.

mod analysis;
mod appendices;
mod costs;
mod introduction;
mod results;
mod words;

use super::claim::Claim;

/// All claims, in the order of the paper.
pub fn claims() -> impl Iterator<Item = &'static Claim> {
    [introduction::CLAIMS, analysis::CLAIMS, results::CLAIMS, appendices::CLAIMS, costs::CLAIMS].into_iter().flatten()
}
