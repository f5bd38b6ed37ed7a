//! The science of ghostlab as a library: tensors and text in, numbers out. It knows no YAML, no store, and never prints.
//!
//! Each room uses only those in lines above its own:
//!
//! | rooms | what |
//! | --- | --- |
//! | [`error`], [`quantity`], [`deviation`], [`options`], [`style`], [`files`], [`linalg`], [`significance`] | messages, what numbers may be, where official code departs from its formulas, options, looks, files, numbers |
//! | [`model`], [`corpus`], [`tasks`] | backbones as programs and the engines that run them, text as windows, questions as requests |
//! | [`checkpoint`] | a variant as a folder that other programs load |
//! | [`metric`] | what each kind of number is called, and which way it is better |
//! | [`calibrate`] | one dense pass: similarities and activations |
//! | [`distill`] | an operator in training |
//! | [`generate`] | text from programs, token by token |
//! | [`criterion`], [`recovery`], [`evaluate`], [`latency`] | which layers go, what takes their place, what that costs |

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
pub mod latency;
pub mod linalg;
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
