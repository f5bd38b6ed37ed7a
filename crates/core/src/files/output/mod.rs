//! Output folders and files at user-chosen paths. Files that this program did not write are never removed, and are
//! replaced only if [`OutputFile::force`] is set.
//!
//! | file | content |
//! | --- | --- |
//! | `manifest` | list of the files that this program wrote into a folder, with their hashes |
//! | `folder` | writes an output folder, as a whole or file by file |
//! | `swap` | removes a replaced folder and keeps the user's files |
//! | `file` | writes a single output file |
//! | `overlap` | checks that outputs do not overlap inputs |

mod file;
mod folder;
mod manifest;
mod overlap;
mod swap;

pub use file::{OutputFile, SEAL, UNSEALED, is_sealed, seal};
pub use folder::{Draft, OutputFolder};
pub use manifest::Manifest;
pub use overlap::{Input, check_separate};
