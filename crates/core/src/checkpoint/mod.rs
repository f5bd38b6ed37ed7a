//! Export of a pruned variant as a Hugging Face checkpoint or GGUF file, for use by other programs (docs/design.md
//! §16).
//!
//! | module | content |
//! | --- | --- |
//! | `layout` | tensors of the checkpoint, and the operators that are not folded into weights |
//! | `shards` | weight files, written tensor by tensor |
//! | `variant_config` | `config.json`, and the Python file that applies operators not folded into weights |
//! | `gguf_export` | export as a single GGUF file |
//! | `gguf_tensor` | names, types and contents of the tensors in a GGUF file |
//! | `deci_export` | layers for llama.cpp's `deci` architecture, which may omit a sublayer or contain an operator |
//!
//! ```
//! use ghostlab_core::checkpoint::Layout;
//! use ghostlab_core::model::{Decoder, Program, deploy};
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! let folder = std::path::Path::new(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/tiny/llama"));
//! let config = Decoder::load(folder)?.config().clone();
//! let pruned = deploy(&Program::pruned(config.layers, &[3, 4], |_| None), &config);
//! let layout = Layout::plan(&config, folder, &pruned, None)?;
//! assert_eq!(layout.kept.len(), config.layers - 2);
//! # Ok(())
//! # }
//! ```

mod deci_export;
mod gguf_export;
mod gguf_tensor;
mod layout;
mod shards;
mod variant_config;

pub use crate::model::weights::INDEX;
pub use deci_export::{check_deci_step, check_deci_support};
pub use gguf_export::{GgufMetadata, gguf_form};
pub use gguf_tensor::GgufType;
pub use layout::{AttachedOperator, Layout};
pub use shards::{WeightFiles, header};
pub use variant_config::{MODELING_FILE, modeling_source, variant_config};
