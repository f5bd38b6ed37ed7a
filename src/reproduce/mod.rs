//! Floor 4: the paper's tables and figures from a grid's outcome (design §11).
//!
//! An artifact's file describes what it shows ([`crate::grid::Description`]). The outcome becomes a list of numbers
//! (`ours`), the description puts them into rows and columns (`layout`) beside the paper's (`beside`) with paired tests
//! (`paired`), and each form writes the same table (`screen`, `markdown`, `latex`, `frame`). Figures are drawn from the
//! same numbers (`draw`).

mod beside;
mod differences;
mod draw;
#[cfg(test)]
mod formats_test;
mod frame;
mod latex;
mod layout;
mod lists;
mod markdown;
mod ours;
mod paired;
mod renamed;
mod screen;
mod setup;
mod sheet;
mod stored;

pub use beside::{Gate, GateFailure, PaperComparison, beside_paper};
pub use differences::{Difference, Differences, SettingDifference, settings_that_differ};
pub use draw::draw;
pub use frame::{Origin, write_frame};
pub use latex::latex;
pub use layout::{Row, Shown, View};
pub use lists::{List, checkpoints, methods};
pub use markdown::markdown;
pub use ours::{Number, numbers};
pub use screen::screen;
pub use setup::{Calibrated, Setup, protocol_line};
pub use sheet::{Made, PageSheet, list_sheet, sheet};
pub use stored::{StoredNumber, StoredResults};
