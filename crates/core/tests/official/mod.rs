//! Comparisons with published implementations. Their results are in the `official` reference data, whose README lists
//! commits, settings and tolerances.

mod authors;
mod others;
pub(crate) mod setting;
mod split;
