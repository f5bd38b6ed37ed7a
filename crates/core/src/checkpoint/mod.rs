//! A variant of a backbone as a Hugging Face checkpoint: what other programs load (design §16).
//!
//! | file | noun |
//! | --- | --- |
//! | `layout` | which tensors it holds, unchanged made of, and the operators that no weight takes in |
//! | `shards` | its weight files, written tensor by tensor |
//! | `config` | its `config.json`, and the Python file that applies operators of the stream, where there are any |
//! | `gguf` | the same as one GGUF file |

mod config;
mod gguf;
mod layout;
mod shards;

pub use config::{MODELING, modeling, trimmed};
pub use gguf::{GgufText, GgufType, fits_gguf, no_place_for_operators};
pub use layout::{Attached, Layout};
pub use shards::{INDEX, WeightFiles, header};
