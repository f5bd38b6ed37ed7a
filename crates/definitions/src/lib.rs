//! Tasks of lm-evaluation-harness, without Python. The crate parses their YAML definitions, builds the requests to a
//! model, and scores its answers. It does not depend on models, tensors or downloads: callers provide dataset rows
//! through [`Rows`] and model outputs as [`Answer`].
//!
//! ```
//! use ghostlab_definitions::{Definition, yaml};
//!
//! # fn main() -> ghostlab_core::error::Result<()> {
//! let text = "task: t\ndataset_path: x\ntest_split: test\noutput_type: loglikelihood\ndoc_to_text: q\ndoc_to_target: '{{d}}'\n";
//! let definition = Definition::read(&yaml::parse(text, "t.yaml")?)?;
//! assert_eq!(definition.name, "t");
//! # Ok(())
//! # }
//! ```
//!
//! Results match lm-evaluation-harness at commit `4e7e0d4` byte for byte. Keys that need Python are rejected before a
//! model runs, and the error gives the file and line. The table lists the modules roughly from the lowest layer to the
//! highest:
//!
//! | modules | purpose |
//! | --- | --- |
//! | [`activity`], `keys` | reports of the input that a thread is processing; hash index of mapping keys |
//! | [`value`], `bounds` | Python values, limits on untrusted input |
//! | [`literal`], [`yaml`], [`pattern`] | Python literals, PyYAML parsing, Python regular expressions |
//! | [`row`], [`prepared`] | rows with their files and lines, column checks, derived columns |
//! | `refusal`, `exchange`, `jinja`, `method`, [`template`] | Jinja with Python semantics |
//! | [`generation`] | stop sequences, length limits and sampling parameters |
//! | [`translation`], [`edits`], [`aggregate`], [`metric`], [`filter`] | BLEU and chrF, TER, aggregation into scores, per-document metrics, answer filters |
//! | [`equivalent`], [`definition`], `content`, [`library`] | replacement of known Python hooks, parsed definitions, cache keys, folders of definitions |
//! | `parquet`, [`python_object`], `tabular`, [`rows`] | rows from Parquet, JSON, CSV and text files |
//! | [`document`], [`prompt`], [`chat`], [`task`], [`results`] | questions and answers, few-shot prompts, chat templates, requests, scores |
//! | [`tokens`], [`builtin`] | requests as token ids; built-in definitions of the paper's nine tasks (in `tasks/`) |

pub mod activity;
pub mod aggregate;
mod bounds;
pub mod builtin;
pub mod chat;
mod content;
pub mod definition;
pub mod document;
pub mod edits;
pub mod equivalent;
mod exchange;
pub mod filter;
pub mod generation;
mod jinja;
mod keys;
pub mod library;
pub mod literal;
mod method;
pub mod metric;
mod parquet;
pub mod pattern;
pub mod prepared;
pub mod prompt;
pub mod python_object;
mod refusal;
pub mod results;
pub mod row;
pub mod rows;
mod tabular;
pub mod task;
pub mod template;
pub mod tokens;
pub mod translation;
pub mod value;
pub mod yaml;

#[doc(hidden)]
pub use builtin as native; // Former name, which `tools/tiny` uses.
pub use chat::ChatTemplate;
pub use definition::Definition;
pub use library::{Group, Library, Selection};
pub use results::Answer;
pub use row::Row;
pub use rows::{FileRows, Rows};
pub use task::{PromptSettings, Request, RequestKind, Task};
pub use value::Value;
