//! Generates the contents of `data/tiny/`: texts and tasks of an invented world ([`world`]), and backbones trained on
//! them ([`train`]). Also generates untrained backbones in the shapes of real ones ([`random`]). `ghostlab` reads the
//! files, and does not depend on this crate.

pub mod random;
pub mod train;
pub mod world;
