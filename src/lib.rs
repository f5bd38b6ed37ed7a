//! ghostlab removes layers from language models, repairs the models without training, and scores every variant.
//!
//! `ghostlab-core` implements the methods. This crate locates inputs, runs experiments, and stores and reports results.
//! Its modules form layers, and each layer uses only those below it (docs/design.md §2):
//!
//! | layer | modules |
//! | --- | --- |
//! | 5 | [`cli`] |
//! | 4 | [`archive`], [`artifact`], [`export`], [`starter`], [`verify`] |
//! | 3 | [`results`], [`search`], [`cluster`] |
//! | 2 | [`pipeline`] |
//! | 1 | [`grid`] |
//! | 0 | `ghostlab_store`, [`heap`], [`machine`], [`clock`], [`installed`], [`package`], [`template`], [`sandbox`], [`hub`], `ghostlab_core` |

pub use ghostlab_core::{
    calibrate, checkpoint, corpus, criterion, deviation, distill, error, evaluate, files, generate, iterative, latency,
    linalg, metric, model, options, quantity, recovery, significance, style, tasks,
};
pub use ghostlab_hub as hub;

pub mod archive;
pub mod artifact;
pub mod cli;
pub mod clock;
pub mod cluster;
pub mod export;
pub mod grid;
pub mod heap;
pub mod installed;
pub mod machine;
pub mod package;
pub mod pipeline;
pub mod results;
pub mod sandbox;
pub mod search;
pub mod starter;
pub mod template;
pub mod verify;

/// Allocator for the test binary. With glibc's allocator, the simulation of 512 workers in `pipeline::exec` would spend
/// 70 % of its time allocating.
#[cfg(test)]
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;
