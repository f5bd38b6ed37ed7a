//! Backbones and their pruned or repaired variants. A variant is a [`Program`], and a [`Trie`] runs many programs
//! together.
//!
//! ```
//! use ghostlab_core::model::{Config, Decoder, Program};
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! let folder = concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/tiny/llama");
//! let config: Config = Decoder::load(folder.as_ref())?.config().clone();
//! let dense = Program::dense(config.layers);
//! let pruned = Program::pruned(config.layers, &[3, 4], |_| None);
//! // Each layer has two steps: attention and MLP.
//! assert_eq!(dense.0.len() - pruned.0.len(), 4);
//! # Ok(())
//! # }
//! ```

pub mod architecture;
pub(crate) mod attached_form;
pub mod batch;
mod batching;
mod cache;
pub mod candle;
mod choice;
mod compare;
mod compute_type;
pub mod config;
mod config_fields;
mod content;
mod cost;
pub mod cut;
mod deci;
pub mod decoder;
mod decoding;
mod deployed;
pub(crate) mod engine;
pub(crate) mod experts;
pub(crate) mod gguf_backbone;
mod kernel_family;
mod layer_merge;
mod length_regime;
mod merged_layer;
mod merged_weights;
mod operator;
mod operator_parts;
mod products;
pub mod program;
mod resident_weights;
mod rms_norm;
mod rope;
mod rope_config;
mod rounding;
mod shard;
pub(crate) mod side_operators;
mod slice;
mod stored;
pub mod sublayer;
pub(crate) mod tensor_name;
pub(crate) mod tensors;
pub mod trie;
mod weight_cache;
pub mod weights;
pub(crate) mod window;

pub use attached_form::{AttachedForm, Attachment, BranchPlace, StepForm};
pub use batch::{Batch, Divergence, Prediction, ScoredRow};
pub use candle::{CandleEngine, CandleReference, DeviceName, FloatType, Gpu, LayersAfter, Placement};
pub(crate) use candle::{is_out_of_memory, out_of_memory_error};
pub use choice::{EngineChoice, EngineName, EngineRequest};
pub use compute_type::ComputeType;
pub use config::{Config, LongRope, Rope, Scaling};
pub use content::{TensorHashes, content, tensor_hashes};
pub use cost::Load;
pub use cut::Cut;
pub use deci::DECI;
pub use decoder::Decoder;
pub(crate) use decoding::argmax;
pub use decoding::{BlockId, Decoding, SequenceInput};
pub use deployed::{DeployedModel, deploy, fold_scalar_factors, folder_program};
pub use engine::{
    BatchDivergences, BatchObserver, BatchPredictions, CPU, Engine, EngineId, HostRows, ResidualStream, Tolerance,
    count_fitting_pieces,
};
pub use gguf_backbone::gguf_config;
pub use kernel_family::KernelFamily;
pub use layer_merge::{LayerMerge, MergeForm};
pub use length_regime::LengthRegime;
pub use merged_layer::MergedLayer;
pub(crate) use merged_layer::weighted_sum;
pub use operator::Operator;
pub use products::Products;
pub use program::{Program, Repairs, Step};
pub use rms_norm::RmsNorm;
pub use rounding::WeightType;
pub use slice::elements;
pub use sublayer::Sublayer;
pub use tensors::{check_weights, describe_quantization};
pub use trie::{Model, Observer, Trie};
