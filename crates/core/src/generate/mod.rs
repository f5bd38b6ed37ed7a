//! Text from programs (design §20): prompts are continued token by token, with a cache of keys and values.
//!
//! The continuation of a prompt depends only on prompt, program and settings, not on the number or order of concurrent
//! sequences, nor on shared prefixes. On the CPU engine every sum of a row has a fixed order; tests compare tokens, not
//! the bits of logits.
//!
//! ```
//! use ghostlab_core::generate::Settings;
//! assert_eq!(Settings::greedy(4, 32).max_new_tokens, 4);
//! ```

mod choice;
mod generation_config;
mod processors;
mod schedule;
mod settings;
mod text;

pub use generation_config::{GENERATION_CONFIG, GenerationConfig};
pub use processors::LogitsProcessors;
pub use schedule::{Prompt, Watch, generate};
pub use settings::{Sampling, Settings};
pub use text::{Detokenizer, End, Generation};
