//! What went wrong with a gzip file.

use std::io::ErrorKind;
use std::path::Path;

use crate::error::Error;

/// The error for a failed reading through a decoder; none where it is not the file's content that is to blame.
pub fn damage(path: &Path, error: &std::io::Error) -> Option<Error> {
    let what = match error.kind() {
        ErrorKind::UnexpectedEof => "the gzip file is cut short",
        ErrorKind::InvalidData | ErrorKind::InvalidInput => "the gzip file is damaged",
        _ => return None,
    };
    Some(Error::bad_input(what).at(path.display().to_string()).found(error.to_string()).hint("download the file again"))
}
