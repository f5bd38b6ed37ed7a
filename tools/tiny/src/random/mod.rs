//! Untrained backbones in the shapes of real ones: what a run at that size takes can be measured without a download.
//!
//! | file | noun |
//! | --- | --- |
//! | `shape` | the shapes, by name |
//! | `folder` | a backbone's folder, whole or not at all |
//! | `shard` | a weight file, written block by block |

pub mod folder;
#[cfg(test)]
mod folder_test;
pub mod shape;
mod shard;
