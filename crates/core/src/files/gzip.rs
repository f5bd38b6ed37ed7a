//! Bounded decompression of gzip files, and classification of read errors.

use std::fs::File;
use std::io::{BufReader, ErrorKind};
use std::path::Path;

use flate2::read::MultiGzDecoder;

use super::limit::{self, LimitedReader, TextLimit};
use crate::error::Error;

/// Returns a reader for the decompressed text. Concatenated gzip members, as in C4's shards, are read as one text.
pub fn reader(file: File, limit: TextLimit) -> BufReader<LimitedReader<MultiGzDecoder<BufReader<File>>>> {
    BufReader::new(limit.reader(MultiGzDecoder::new(BufReader::new(file))))
}

/// Returns the error to report if a read failed because the file is too large, truncated or damaged. Returns `None` for
/// other I/O errors.
pub fn content_error(path: &Path, limit: TextLimit, error: &std::io::Error) -> Option<Error> {
    if limit::is_exceeded(error) {
        return Some(limit.limit_error(path));
    }
    let what = match error.kind() {
        ErrorKind::UnexpectedEof => "the gzip file is truncated",
        ErrorKind::InvalidData | ErrorKind::InvalidInput => "the gzip file is damaged",
        _ => return None,
    };
    Some(Error::bad_input(what).at(path.display()).found(error).hint("download the file again"))
}
