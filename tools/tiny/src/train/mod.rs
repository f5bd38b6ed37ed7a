//! The recipe of the tiny backbones: from text to a Hugging Face folder, trained on the CPU.
//!
//! | file | noun |
//! | --- | --- |
//! | `recipe`, `shape`, `optimizer` | what decides the result |
//! | `corpus`, `tokenizer` | text, tokens, their order |
//! | `parameters` | where each weight lies |
//! | `network`, `attention`, `rotary`, `norm`, `head`, `real` | the decoder, forwards and backwards |
//! | `batch` | the chunks of a step or of a score, shared out among threads |
//! | `run`, `checkpoint`, `export` | the run, its interruption, its files |

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
