//! The candle engine: decoder steps as candle tensor operations on any candle device, in f32, bf16 or f16.

#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod engine;
mod fused;
#[cfg(test)]
mod fused_test;
mod head;
mod layer;
mod layout;
mod memory;
mod merged;
mod notes;
mod operators;
pub mod ops;
mod parts;
mod reference;

pub use device::{DeviceName, FloatType, Gpu};
pub use engine::{CandleEngine, Placement};
pub use layer::{CosSin, End};
pub(super) use memory::MAX_PIECE;
pub(crate) use memory::{is_out_of_memory, out_of_memory};
pub(super) use parts::weight_bytes;
pub use parts::{FrozenWeights, GatedTensors, LayerTensors, MlpTensors};
pub use reference::CandleReference;
