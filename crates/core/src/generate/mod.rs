//! Text generation by [`Program`](crate::model::Program)s (docs/design.md §20), token by token using a KV cache.
//!
//! The continuation of a prompt depends only on the prompt, the program and the settings. It does not depend on the
//! number or order of concurrent sequences or on shared prefixes. To ensure this, the CPU engine sums each row in a
//! fixed order. Tests compare tokens, not logit bits.
//!
//! ```
//! use ghostlab_core::generate::Settings;
//! assert_eq!(Settings::greedy(4, 32).max_new_tokens, 4);
//! ```

mod generated_text;
mod generation_config;
mod processors;
mod sampling;
mod schedule;
mod settings;

pub use generated_text::{Detokenizer, End, Generation};
pub use generation_config::{GENERATION_CONFIG, GenerationConfig};
pub use processors::LogitsProcessors;
pub use schedule::{GenerationObserver, Prompt, generate};
pub use settings::{Sampling, Settings};
