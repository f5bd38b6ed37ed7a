//! What a run leaves behind: the table on screen and in files, and the record of how its numbers were made.

mod atomic;
mod protocol;
mod provenance;
mod render;
mod table;

pub use atomic::{ensure_writable, write_atomically};
pub use protocol::Protocol;
pub use provenance::{Host, Provenance, utc};
pub use table::{Row, Table};
