//! The candle engine: decoder steps as candle tensor operations on any candle device, in f32, bf16 or f16.

mod batch_layout;
mod candle_engine;
#[cfg(feature = "cuda")]
mod cuda;
mod device;
mod device_weight_cache;
mod fused;
#[cfg(test)]
mod fused_test;
mod head;
mod layer;
mod layers_after;
mod memory;
mod merged;
mod notes;
mod operators;
pub mod ops;
mod reference;

pub use candle_engine::{CandleEngine, Placement};
pub use device::{DeviceName, FloatType, Gpu};
pub(super) use device_weight_cache::weight_bytes;
pub use layers_after::LayersAfter;
pub(super) use memory::MAX_PIECE_TOKENS;
pub(crate) use memory::{is_out_of_memory, out_of_memory_error};
pub use reference::CandleReference;
