//! A variant of a backbone as a Hugging Face checkpoint: what other programs load (design §16).
//!
//! | file | noun |
//! | --- | --- |
//! | `layout` | which tensors it holds, unchanged made of, and the operators that no weight takes in |
//! | `shards` | its weight files, written tensor by tensor |
//! | `config` | its `config.json`, and the Python file that applies operators of the stream, where there are any |
//! | `gguf` | the same as one GGUF file |
//! | `deci` | layers of a GGUF file that lack a sublayer or hold an operator |

mod config;
mod deci;
mod gguf;
mod layout;
mod shards;

pub use config::{MODELING, modeling, trimmed};
pub use deci::{fits_deci, fits_deci_step};
pub use gguf::{GgufText, GgufType, fits_gguf};
pub use layout::{Attached, Layout};
pub use shards::{INDEX, WeightFiles, header};
