//! Floor 0: files that somebody else wrote: their hashes, and what the readers of their formats do on damage.

pub mod gzip;
pub mod number;
pub mod parquet;
pub mod sha256;
