//! The embedded tables.

use super::entry::PaperNumber;
use crate::error::{Error, Result, nearest};

/// A table of the paper.
#[derive(Debug)]
pub struct PaperTable {
    /// `table2`, …, `tableA10`, as the paper counts them.
    pub name: &'static str,
    /// The names under which the paper shows the same numbers again.
    pub aliases: &'static [&'static str],
    text: &'static str,
}

macro_rules! table {
    ($name:literal, $aliases:expr) => {
        PaperTable {
            name: $name,
            aliases: $aliases,
            text: include_str!(concat!("../../../data/paper/", $name, ".csv")),
        }
    };
}

static TABLES: [PaperTable; 11] = [
    table!("table2", &[]),          // accuracy on nine tasks, three backbones, calibrated on C4
    table!("table3", &[]),          // perplexity on three texts and the mean accuracy, three backbones
    table!("table4", &["tableA3"]), // the number of calibration sequences
    table!("table5", &[]),          // memory, latency and quality of LLaMA-3.1-8B
    table!("tableA4", &[]),         // accuracy after training the repaired model
    table!("tableA5", &[]),         // perplexity after training the repaired model
    table!("tableA6", &[]),         // accuracy on nine tasks, three more backbones
    table!("tableA7", &[]),         // accuracy on nine tasks, calibrated on WikiText-2
    table!("tableA8", &[]),         // latency of LLaMA-3.1-8B with 7 of 32 layers removed
    table!("tableA9", &[]),         // latency of LLaMA-3.1-8B with 11 of 32 layers removed
    table!("tableA10", &[]),        // two ways to compute the ghost layer
];

/// All tables, in the paper's order.
pub fn tables() -> &'static [PaperTable] {
    &TABLES
}

impl PaperTable {
    /// The table of this name or alias.
    ///
    /// # Errors
    /// An unknown name, with the known ones and the nearest.
    pub fn find(name: &str) -> Result<&'static Self> {
        TABLES.iter().find(|table| table.name == name || table.aliases.contains(&name)).ok_or_else(|| {
            let names: Vec<&str> = TABLES
                .iter()
                .flat_map(|table| std::iter::once(table.name).chain(table.aliases.iter().copied()))
                .collect();
            let error = Error::bad_input(format!("the paper has no table `{name}` of numbers"))
                .expected(format!("one of {}", names.join(", ")))
                .found(format!("`{name}`"));
            match nearest(name, names) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            }
        })
    }

    /// Its numbers, in its order.
    ///
    /// # Errors
    /// Embedded data that cannot be read: the line is named.
    pub fn entries(&self) -> Result<Vec<PaperNumber>> {
        PaperNumber::parse(self.name, self.text)
    }
}
