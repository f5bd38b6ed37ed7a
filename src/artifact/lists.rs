//! Tables of what the program knows by name: methods with their repositories, backbones with their sources.

use std::path::Path;

use polars::prelude::{DataFrame, IntoColumn, NamedFrom, Series};

use crate::artifact::paper::backbone_label;
use crate::error::Result;
use crate::grid::BackboneFile;
use crate::hub::{Hub, Lock, Settings, Want};
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

/// The paper's criteria and recoveries with the repository of the reference (paper tables 1 and A2).
pub(super) fn methods() -> List {
    let rows = |category: &'static str, methods: Vec<Described>| {
        let own = methods.into_iter().filter(|of| !of.beyond);
        own.map(move |of| vec![category.to_owned(), of.label.to_owned(), of.name, of.source.to_owned()])
    };
    let criteria = rows("Pruning criterion", criterion::described());
    let recoveries = rows("Recovery method", recovery::described());
    List {
        heads: ["Category", "Method", "Name in a grid", "Reference"].map(str::to_owned).to_vec(),
        rows: criteria.chain(recoveries).collect(),
        label: 1,
    }
}

/// The backbones that have a file in `experiments/backbones`, with where they come from (paper table A1).
///
/// # Errors
/// A folder or a file that cannot be read.
pub(super) fn checkpoints(experiments: &Path) -> Result<List> {
    let lock = Lock::read(&experiments.join(Lock::FILE))?;
    let hub = Hub::new(Settings::from_env()?);
    let cached = |want: &Want| {
        let repo = hub.cached(want, &lock).ok()?;
        repo.files
            .iter()
            .all(|file| file.cached.is_some())
            .then(|| hub.cache().snapshot(&want.source.repo, &repo.commit))
    };
    let rows =
        grid::backbone_files(experiments)?.into_iter().map(|BackboneFile { name, path, source, want, .. }| {
            let local = path.clone().filter(|path| path.join("config.json").is_file());
            let found = local.or_else(|| cached(want.as_ref()?));
            let there = if found.is_some() { "here" } else { "not here" };
            let folder = found.or(path).map_or(String::new(), |path| path.display().to_string());
            vec![backbone_label(&name).to_owned(), name, source.unwrap_or_default(), folder, there.to_owned()]
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
