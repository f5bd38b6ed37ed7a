//! File access: atomic writes, checks for ordinary files, hashes, and handling of damage in third-party formats.

pub mod atomic;
pub mod caught;
pub mod csv;
pub mod disk;
pub mod gguf;
pub mod gguf_writer;
pub mod gzip;
pub mod json_rows;
pub mod limit;
pub mod name;
pub mod not_finite;
pub mod number;
pub mod output;
pub mod owner;
pub mod parquet;
pub mod parts;
pub mod regular;
pub mod rows;
pub mod sha256;
pub mod shown;
pub mod stamp;
