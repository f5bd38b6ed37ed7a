//! Corpus text, and the token windows cut from it.
//!
//! [`read_rows`] reads the rows of a corpus file and [`Tokenizer`] tokenizes them. [`calibration_windows`] and
//! [`evaluation_windows`] cut the windows on which a backbone is calibrated or evaluated. Random numbers match
//! CPython's ([`PythonRandom`]), so a seed selects the same windows as in the reference code of the Ghosted Layers
//! paper.
//!
//! ```
//! // `random.Random(0).random()` in Python.
//! use ghostlab_core::corpus::PythonRandom;
//! assert_eq!(PythonRandom::new(0).random(), 0.844_421_851_525_048_1);
//! ```

mod added_tokens;
mod draw;
mod gguf;
mod numpy;
mod parquet_text;
mod stream;
mod text_files;
mod text_row;
mod tokenizer;
mod tokenizer_file;
mod window_rule;
mod windows;

pub(crate) use added_tokens::token_text;
pub use added_tokens::{added_beside, files_beside, tokenizer_config};
pub use draw::PythonRandom;
pub use gguf::{GgufTokenizer, to_gguf};
pub use stream::{ShardOrder, Shards};
pub use text_files::{Rows, file_format, open_rows, read_rows, read_rows_within};
pub use tokenizer::{Tokenizer, token_id, tokenizer_json};
pub use window_rule::{
    EVALUATION_SEED, WindowRule, calibration_windows, evaluation_windows, streamed_calibration_windows,
    streamed_evaluation_windows,
};
pub use windows::{Start, Windows};
