//! Library for layer pruning of language models. It selects layers to remove, repairs the cut with linear operators,
//! and scores the result.
//!
//! The crate reads model and text files and returns numbers. Grid parsing, the store and console output are in the
//! `ghostlab` program.
//!
//! A variant of a backbone is represented by its [`Program`](model::Program), the steps that the pruned and repaired
//! model runs. A [`Trie`](model::Trie) shares the common steps of several programs.
//!
//! ```
//! use ghostlab_core::model::{Decoder, Program, Trie};
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/tiny/llama");
//! let decoder = Decoder::load(folder.as_ref())?;
//! let layers = decoder.config().layers;
//! let dense = Program::dense(layers);
//! let pruned = Program::pruned(layers, &[layers - 1], |_| None);
//! let shared = Trie::new(&[dense.clone(), pruned.clone()]);
//! assert!(shared.len() < Trie::new(&[dense]).len() + Trie::new(&[pruned]).len());
//! # Ok(())
//! # }
//! ```
//!
//! `examples/perplexity.rs` scores a backbone. `examples/repair.rs` removes layers and repairs the cut.
//!
//! Modules depend only on modules in the same row or in rows above:
//!
//! | modules | content |
//! | --- | --- |
//! | [`error`], [`quantity`], [`deviation`], [`options`], [`style`], [`files`], [`linalg`], [`significance`] | errors, bounded numbers, deviations of official code from the published formulas, method options, table styles, file access, linear algebra, significance tests |
//! | [`model`], [`corpus`], [`tasks`] | backbones and the engines that run them, token windows, multiple-choice requests |
//! | [`checkpoint`] | export of a variant for other programs |
//! | [`metric`] | names, directions and formats of metrics |
//! | [`calibrate`] | similarities and activations from one pass of the dense model |
//! | [`distill`] | fine-tuning of an operator |
//! | [`generate`] | text generation |
//! | [`criterion`], [`recovery`], [`evaluate`], [`latency`] | selection of layers, repair operators, scores, timing |
//! | [`iterative`] | removal of layers one by one, each with its repair |

pub mod calibrate;
pub mod checkpoint;
pub mod corpus;
pub mod criterion;
pub mod deviation;
pub mod distill;
pub mod error;
pub mod evaluate;
pub mod files;
pub mod generate;
pub mod iterative;
pub mod latency;
pub mod linalg;
mod map_input;
pub mod metric;
pub mod model;
mod named;
pub mod options;
pub mod quantity;
pub mod recovery;
pub mod significance;
pub mod style;
pub mod tasks;

pub use ghostlab_kernels::in_widest;
