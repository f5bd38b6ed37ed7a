//! Untrained backbones in the shapes of real ones, for benchmarks at full size without a download.
//!
//! | file | content |
//! | --- | --- |
//! | `shape` | shapes by name |
//! | `folder` | atomic writing of a backbone's folder |
//! | `shard` | blockwise writing of a weight file |

pub mod folder;
#[cfg(test)]
mod folder_test;
pub mod shape;
mod shard;
