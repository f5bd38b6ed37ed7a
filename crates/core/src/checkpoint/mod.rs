//! A variant of a backbone as a Hugging Face checkpoint: what other programs load (design §16).
//!
//! | file | noun |
//! | --- | --- |
//! | `layout` | which tensors it holds, unchanged made of, and the operators that no weight takes in |
//! | `shards` | its weight files, written tensor by tensor |
//! | `config` | its `config.json`, and the Python file that applies operators of the stream, where there are any |
//! | `gguf` | the same as one GGUF file |
//!
//! ```
//! use ghostlab_core::checkpoint::Layout;
//! use ghostlab_core::model::{Decoder, Program, deployed};
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/tiny/llama"));
//! let config = Decoder::load(folder)?.config().clone();
//! let pruned = deployed(&Program::pruned(config.layers, &[3, 4], |_| None), &config);
//! let layout = Layout::of(&config, folder, &pruned, None)?;
//! assert_eq!(layout.kept.len(), config.layers - 2);
//! # Ok(())
//! # }
//! ```

mod config;
mod gguf;
mod layout;
mod shards;

pub use config::{MODELING, modeling, trimmed};
pub use gguf::{GgufText, GgufType, fits_gguf, no_place_for_operators};
pub use layout::{Attached, Layout};
pub use shards::{INDEX, WeightFiles, header};
