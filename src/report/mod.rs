//! What a run leaves behind: the table on screen and in files, and the record of how its numbers were made.

pub(crate) mod csv;
mod documents;
mod protocol;
mod provenance;
pub(crate) mod render;
pub(crate) mod table;
mod wide;

pub use crate::clock::utc;
pub use crate::files::atomic::{ensure_writable, write_atomically};
pub use documents::{Answers, write_documents, write_lm_eval};
pub use protocol::{Protocol, stem};
pub use provenance::Provenance;
pub use table::{Measured, Row, Table};
pub use wide::Wide;
