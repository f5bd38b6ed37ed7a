//! Output folders and files at user-chosen paths. Files that this program did not write are never removed, and are
//! replaced only if forced.
//!
//! | file | content |
//! | --- | --- |
//! | `manifest` | names and hashes of the files that this program wrote into a folder |
//! | `folder` | folders that are replaced as a whole or file by file |
//! | `swap` | removal of a replaced folder, keeping the user's files |
//! | `file` | single files |
//! | `overlap` | check that outputs do not overlap inputs |

mod file;
mod folder;
mod manifest;
mod overlap;
mod swap;

pub use file::{OutputFile, SEAL, UNSEALED, is_sealed, seal};
pub use folder::{Draft, OutputFolder};
pub use manifest::Manifest;
pub use overlap::{Input, check_separate};
