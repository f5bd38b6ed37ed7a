//! Backbones in candle's tensors, on any device that candle knows.

pub mod ops;
