//! Training of the tiny backbones on the CPU, from text to a Hugging Face folder.
//!
//! | file | content |
//! | --- | --- |
//! | `recipe`, `shape`, `optimizer` | settings that determine the result |
//! | `corpus`, `tokenizer` | text, tokens, their order |
//! | `parameters` | layout of the weights |
//! | `network`, `attention`, `rotary`, `norm`, `head`, `real` | forward and backward passes of the decoder |
//! | `batch` | distribution of chunks across threads |
//! | `run`, `checkpoint`, `export` | training run, checkpoints, output files |

mod attention;
pub mod batch;
pub mod checkpoint;
pub mod corpus;
pub mod export;
#[cfg(test)]
mod gradient_test;
pub mod head;
pub mod network;
mod norm;
pub mod optimizer;
pub mod parameters;
pub mod real;
pub mod recipe;
mod rotary;
pub mod run;
#[cfg(test)]
mod run_test;
pub mod shape;
pub mod tokenizer;
