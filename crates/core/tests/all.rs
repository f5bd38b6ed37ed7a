//! Numerical tests of the core crate, compiled into a single binary.

mod arch;
mod architectures;
mod beyond;
mod budget;
mod common;
mod corpus;
mod distill;
mod examples;
mod generate;
mod gguf;
mod golden;
mod gpu;
mod iterative;
mod laco;
mod merge;
mod nbl;
mod official;
mod one_by_one;
mod recovery;
mod stories;
mod sublayers;
mod transformers;
mod variants;
