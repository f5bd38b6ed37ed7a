//! ghostlab: prune whole layers out of a language model, repair the cut without training, score every variant.
//!
//! The science is `ghostlab-core`; what is here finds, runs, keeps and shows. The floors, each of which uses only those
//! below it (design §2):
//!
//! | floor | modules |
//! | --- | --- |
//! | 4 | [`cli`] |
//! | 3 | [`artifact`], [`results`], [`exec`] |
//! | 2 | [`plan`], [`grid`] |
//! | 1 | [`audit`], [`claims`] |
//! | 0 | [`store`], `fault`, [`machine`], [`clock`], [`paper`], [`figure`], [`page`], `ghostlab_core` |

pub use ghostlab_core::{
    calibrate, corpus, criterion, error, evaluate, files, linalg, metric, model, options, recovery, significance,
    style, tasks,
};

pub mod artifact;
pub mod audit;
pub mod claims;
pub mod cli;
pub mod clock;
pub mod exec;
mod fault;
pub mod figure;
pub mod grid;
pub mod machine;
pub mod page;
pub mod paper;
pub mod plan;
pub mod results;
pub mod store;
