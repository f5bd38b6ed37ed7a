//! Floor 1: backbones. Reading them, running their steps, and running many variants of one backbone together.

pub mod architecture;
pub mod batch;
mod cache;
pub mod candle;
mod choice;
pub mod config;
mod cost;
mod cpu;
pub mod decoder;
pub(crate) mod engine;
mod entries;
mod frozen;
mod kernels;
mod parts;
pub mod program;
mod rope;
mod shard;
mod slice;
mod stored;
mod tensors;
pub mod trie;
pub mod weights;

pub use batch::{Batch, Prediction, ScoredRow};
pub(crate) use candle::is_out_of_memory;
pub use candle::{CandleEngine, DeviceName, FloatType, Placement};
pub use choice::{EngineChoice, EngineName, EngineRequest};
pub use config::Config;
pub use cost::Load;
pub use cpu::CPU;
pub use decoder::Decoder;
pub use engine::{Engine, EngineId, HostRows, ResidualStream};
pub use frozen::{FrozenLayer, FrozenWeights};
pub use program::{Operator, Program, Repairs, Step, Sublayer};
pub use slice::elements;
pub use tensors::check_weights;
pub use trie::{Model, Observer, Trie};
