//! Tables of what the program knows by name: methods with their repositories, backbones with their sources.

use std::path::Path;

use polars::prelude::{DataFrame, IntoColumn, NamedFrom, Series};

use crate::artifact::paper::backbone_label;
use crate::error::Result;
use crate::options::Described;
use crate::results::{TextColumn, TextTable, escaped, failed};
use crate::{criterion, grid, recovery};

/// A table of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct List {
    pub heads: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// The column that names a row.
    pub label: usize,
}

/// Criteria and recoveries with the repository of the reference (paper table 1).
pub(super) fn methods() -> List {
    let rows = |category: &'static str, methods: Vec<Described>| {
        methods.into_iter().map(move |of| vec![category.to_owned(), of.label.to_owned(), of.name, of.source.to_owned()])
    };
    let criteria = rows("Pruning criterion", criterion::described());
    let recoveries = rows("Recovery method", recovery::described());
    List {
        heads: ["Category", "Method", "Name in a grid", "Reference"].map(str::to_owned).to_vec(),
        rows: criteria.chain(recoveries).collect(),
        label: 1,
    }
}

/// The backbones that have a file in `experiments/backbones`, with where they come from (paper table A2).
///
/// # Errors
/// A folder or a file that cannot be read.
pub(super) fn checkpoints(experiments: &Path) -> Result<List> {
    let rows = grid::backbone_files(experiments)?.into_iter().map(|(name, path, source)| {
        let there = if path.join("config.json").is_file() { "here" } else { "not here" };
        vec![
            backbone_label(&name).to_owned(),
            name,
            source.unwrap_or_default(),
            path.display().to_string(),
            there.to_owned(),
        ]
    });
    Ok(List {
        heads: ["Model", "Name in a grid", "Source", "Folder", "State"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
        label: 0,
    })
}

impl List {
    fn texts(&self, shown: impl Fn(&String) -> String) -> TextTable {
        let column = |(at, head): (usize, &String)| {
            let cell = |row: &Vec<String>| if row[at].is_empty() { "—".to_owned() } else { shown(&row[at]) };
            TextColumn::words(head, self.rows.iter().map(cell).collect())
        };
        TextTable { columns: self.heads.iter().enumerate().map(column).collect(), lead: 1, ..TextTable::default() }
    }

    /// The list for a terminal of so many columns.
    pub(super) fn screen(&self, width: Option<usize>) -> String {
        self.texts(String::clone).screen(width)
    }

    pub(super) fn markdown(&self) -> String {
        self.texts(|text| escaped(text)).markdown()
    }

    /// # Errors
    /// Two heads that are alike.
    pub(super) fn frame(&self) -> Result<DataFrame> {
        let column = |(at, head): (usize, &String)| {
            let texts = self.rows.iter().map(|row| Some(row[at].as_str()).filter(|text| !text.is_empty()));
            Series::new(head.into(), texts.collect::<Vec<_>>()).into_column()
        };
        let columns = self.heads.iter().enumerate().map(column).collect();
        DataFrame::new(self.rows.len(), columns).map_err(|error| failed(&error))
    }
}
