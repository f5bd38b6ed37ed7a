//! From one calibration of a backbone to its repaired variants, stage by stage: select what needs no pass, plan the pass,
//! collect, select what waited for it, solve, train what is to be trained. `repair` goes through them; data stands between them.

mod hold;
mod job;
mod pass;
mod repair;
mod select;
mod shards;
mod solve;
mod train;
mod trials;

pub(super) use hold::Hold;
pub(super) use repair::repair;
