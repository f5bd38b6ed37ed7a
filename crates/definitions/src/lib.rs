//! Task definitions of lm-evaluation-harness without Python: YAML in; documents, requests, filters, metrics and groups out.
//! It knows no models, no tensors and no downloads: rows come through [`Rows`], answers through [`Answer`].
//!
//! What the harness does at commit `4e7e0d4` is done here to the byte; what needs Python is refused by its key, with file
//! and line, before anything runs. Each file uses only those in lines above its own:
//!
//! | files | what |
//! | --- | --- |
//! | [`activity`], `keys` | which input a thread is processing, for a watcher that enforces limits; keys of mappings by hash |
//! | [`value`], `bounds` | Python's values, limits that are checked first |
//! | [`literal`], [`yaml`], [`pattern`] | Python's literals, its YAML, its regular expressions |
//! | [`row`], [`prepared`] | a row with its place, what is checked of it, what is added to it |
//! | `exchange`, `jinja`, `method`, [`template`] | Jinja as Python prints it |
//! | [`generation`] | settings of a generation |
//! | [`translation`], [`edits`], [`aggregate`], [`metric`], [`filter`] | numbers of documents to a score, answers to numbers |
//! | [`equivalent`], [`definition`], `content`, [`library`] | a definition with every key checked, its content; files, groups and tags |
//! | `parquet`, [`python_object`], `tabular`, [`rows`], [`document`], [`prompt`], [`chat`], [`task`], [`results`] | rows, examples, messages, requests, scores |
//! | [`tokens`], [`native`] | requests as token ids; the nine tasks of the paper, which are definitions of our own in `tasks/` |

pub mod activity;
pub mod aggregate;
mod bounds;
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
pub mod native;
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

pub use chat::ChatTemplate;
pub use definition::Definition;
pub use library::{Group, Library, Selection};
pub use results::Answer;
pub use row::Row;
pub use rows::{FileRows, Rows};
pub use task::{Ask, Request, Setting, Task};
pub use value::Value;
