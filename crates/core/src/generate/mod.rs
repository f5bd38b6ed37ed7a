//! Text from programs (design §20): prompts are continued token by token, with a cache of keys and values.
//!
//! What a prompt is continued with depends on the prompt, the program and the settings, and on nothing that runs beside it:
//! not on how many sequences run together, nor on their order, nor on whether a prefix was shared. On the CPU engine
//! every sum of a row is meant to run in one order; the tests hold the tokens alike, not the bits of the logits.

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
