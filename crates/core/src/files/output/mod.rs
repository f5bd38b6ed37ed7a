//! Output folders and files at places that users choose. Files of others are never replaced or removed.
//!
//! | file | noun |
//! | --- | --- |
//! | `manifest` | what this program wrote into a folder, by name and hash |
//! | `folder` | a folder that is put in its place whole, or files in it one by one |
//! | `swap` | the old folder's way out: what is a user's goes over to the new one |
//! | `file` | a single file |
//! | `apart` | outputs lie apart from inputs |

mod apart;
mod file;
mod folder;
mod manifest;
mod swap;

pub use apart::{Input, apart};
pub use file::{OutputFile, SEAL, UNSEALED, is_sealed, sealed};
pub use folder::{Draft, OutputFolder};
pub use manifest::Manifest;
