//! Numbers from every table in the paper "Ghosted Layers", embedded in the program.
//!
//! `data/paper/*.csv` is transcribed from the paper's source, including its errors. The audit
//! ([`crate::artifact::audit`]) reports these. Accuracy and memory are in percent, latency in milliseconds. The mean
//! accuracy, which some tables call `average`, is always `acc_average`, as in [`crate::results::number_record`].

mod entry;

pub use entry::PaperNumber;

use std::collections::BTreeMap;

use crate::error::{Error, Result};
use crate::results::number_record::Record;

/// Returns the numbers in a table (`table2` to `tableA10`).
///
/// # Errors
/// Fails if the table is unknown or the embedded data is invalid.
pub fn records(artifact: &str) -> Result<Vec<Record>> {
    Ok(PaperTable::find(artifact)?.entries()?.into_iter().map(|entry| entry.record).collect())
}

/// Returns the numbers in all tables. Tables known under several names are included only once.
///
/// # Errors
/// Fails if the embedded data is invalid.
pub fn all() -> Result<Vec<PaperNumber>> {
    Ok(tables().iter().map(PaperTable::entries).collect::<Result<Vec<_>>>()?.concat())
}

/// Returns the number of layers of each backbone that occurs in a table.
///
/// # Errors
/// Fails if an embedded file is invalid.
pub fn layers_by_backbone() -> Result<BTreeMap<String, usize>> {
    let conditions = all()?.into_iter().map(|entry| entry.record.condition);
    Ok(conditions.map(|condition| (condition.backbone, condition.layers)).collect())
}

#[derive(Debug)]
pub struct PaperTable {
    /// Name of the table in the paper's numbering, from `table2` to `tableA10`.
    pub name: &'static str,
    /// Names of other tables in which the paper repeats the same numbers.
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
    table!("table3", &[]),          // perplexity on three texts and mean accuracy, three backbones
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

pub fn tables() -> &'static [PaperTable] {
    &TABLES
}

impl PaperTable {
    /// Finds a table by its name or an alias.
    ///
    /// # Errors
    /// Fails if the name is unknown. The error suggests the closest name.
    pub fn find(name: &str) -> Result<&'static Self> {
        TABLES.iter().find(|table| table.name == name || table.aliases.contains(&name)).ok_or_else(|| {
            let names = TABLES.iter().flat_map(|table| [&[table.name], table.aliases].concat());
            Error::bad_input(format!("unknown paper table `{name}`")).none_of(name, names)
        })
    }

    /// Returns the table's numbers.
    ///
    /// # Errors
    /// Fails with the line number if the embedded data is invalid.
    pub fn entries(&self) -> Result<Vec<PaperNumber>> {
        PaperNumber::parse(self.name, self.text)
    }
}

const LABELS: [(&str, &str); 6] = [
    ("llama-3-8b", "LLaMA-3-8B"),
    ("llama-3.1-8b", "LLaMA-3.1-8B"),
    ("deepseek-r1-distill-llama-8b", "DeepSeek-R1-Distill-LLaMA-8B"),
    ("olmo-2-7b", "OLMo-2-7B"),
    ("llama-2-7b", "LLaMA-2-7B"),
    ("qwen-3-14b", "Qwen-3-14B"),
];

/// Returns the label that the paper uses for a backbone. Returns `name` itself if the paper has no label for it.
pub fn backbone_label(name: &str) -> &str {
    LABELS.iter().find(|(known, _)| *known == name).map_or(name, |(_, label)| label)
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn every_line_of_a_paper_table_is_parsed_as_one_record() {
        // Number of lines in each file without its header, counted with `wc -l`.
        let expected = [
            ("table2", 570),
            ("table3", 645),
            ("table4", 20),
            ("table5", 75),
            ("tableA4", 200),
            ("tableA5", 80),
            ("tableA6", 570),
            ("tableA7", 570),
            ("tableA8", 70),
            ("tableA9", 70),
            ("tableA10", 10),
        ];
        let found: Vec<(&str, usize)> =
            tables().iter().map(|table| (table.name, records(table.name).unwrap().len())).collect();
        assert_eq!(found, expected);
        assert_eq!(all().unwrap().len(), 2880);
    }

    #[test]
    fn entry_keeps_condition_location_and_digits() {
        // The number in the first row and sixth column of the paper's table 2 is 45.00.
        let entry = &PaperTable::find("table2").unwrap().entries().unwrap()[5];
        assert_eq!((entry.artifact.as_str(), entry.line, entry.printed.as_str()), ("table2", 7, "45.00"));
        assert_eq!(entry.decimals(), 2);
        let Record { condition, metric, value, error } = &entry.record;
        assert_eq!((metric.as_str(), *value, *error), ("openbookqa", Some(45.0), None));
        assert_eq!((condition.backbone.as_str(), condition.layers, condition.depth), ("llama-3-8b", 32, 0));
        assert_eq!((condition.criterion.as_str(), condition.recovery.as_str()), ("dense", "none"));
        assert_eq!((condition.finetuned, condition.calibration.as_str()), (false, "c4"));
        // Table A8 prints 95.9 ± 0.2.
        let latency = &records("tableA8").unwrap()[0];
        assert_eq!((latency.value, latency.error), (Some(95.9), Some(0.2)));
    }

    #[test]
    fn mean_accuracy_has_the_same_name_in_every_table() {
        let all = all().unwrap();
        assert!(all.iter().all(|entry| entry.record.metric != "average"));
        // Number of rows in tables 2, 3, 4, 5, A4, A6, A7 and A10: 57 + 129 + 4 + 15 + 20 + 57 + 57 + 2.
        assert_eq!(all.iter().filter(|entry| entry.record.metric == "acc_average").count(), 341);
    }

    #[test]
    fn alias_table_has_the_numbers_of_its_original() {
        assert_eq!(records("tableA3").unwrap(), records("table4").unwrap());
        assert!(!records("table4").unwrap().is_empty());
    }

    #[test]
    fn unknown_table_is_rejected_with_a_suggestion() {
        let message = records("tabelA6").unwrap_err().to_string();
        assert!(message.contains("did you mean `tableA6`?") && message.contains("table2"), "{message}");
    }

    #[test]
    fn every_table_backbone_has_exactly_one_label() {
        let shown: BTreeSet<String> =
            super::all().unwrap().into_iter().map(|number| number.record.condition.backbone).collect();
        assert_eq!(shown, LABELS.iter().map(|(name, _)| (*name).to_owned()).collect());
        assert_eq!((backbone_label("qwen-3-14b"), backbone_label("tiny-llama")), ("Qwen-3-14B", "tiny-llama"));
    }
}
