//! Text and the token windows cut from it.
//!
//! A corpus file becomes rows ([`read_rows`]), rows become token ids ([`Tokenizer`]), ids become the windows that a
//! backbone is calibrated or scored on ([`calibration`], [`evaluation`]). The draws are CPython's ([`PythonRandom`]),
//! so that a seed names the same windows here and in the paper's reference code.

mod documents;
mod draw;
mod parquet;
mod rule;
mod text;
mod tokenizer;
mod tokenizer_file;
mod windows;

pub use draw::PythonRandom;
pub use rule::{Rule, calibration, evaluation};
pub use text::{format, read_rows, read_rows_within};
pub use tokenizer::Tokenizer;
pub use windows::{Start, Windows};
