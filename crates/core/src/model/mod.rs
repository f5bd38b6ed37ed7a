//! Floor 1: backbones. Reading them, running their steps, and running many variants of one backbone together.

pub mod architecture;
pub mod batch;
pub mod config;
mod cost;
pub mod decoder;
mod entries;
mod kernels;
pub mod program;
mod rope;
mod slice;
pub mod trie;
pub mod weights;

pub use batch::{Batch, Prediction, ScoredRow};
pub use config::Config;
pub use cost::Load;
pub use decoder::Decoder;
pub use program::{Operator, Program, Repairs, Step, Sublayer};
pub use slice::elements;
pub use trie::{Model, Observer, Trie};
