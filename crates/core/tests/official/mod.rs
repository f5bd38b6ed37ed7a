//! Comparison with published implementations. The results are in the reference data `official`, whose README lists
//! commits, settings and tolerances.

mod authors;
mod others;
pub(crate) mod setting;
mod split;
