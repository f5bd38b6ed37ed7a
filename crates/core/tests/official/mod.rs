//! Comparison with published implementations (reference data `official`; its README lists commits, settings and tolerances).

mod authors;
mod others;
pub(crate) mod setting;
mod split;
