//! Tables of what the program knows by name: methods with their repositories, backbones with their sources.

use std::path::Path;

use super::names;
use crate::error::Result;
use crate::{criterion, grid, recovery};

/// A table of texts.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct List {
    pub heads: Vec<String>,
    pub rows: Vec<Vec<String>>,
}

/// Criteria and recoveries with the repository of the reference (paper table 1).
pub fn methods() -> List {
    let of = |category: &str, name: &str, source: &str, print: String| {
        vec![category.to_owned(), print, name.to_owned(), source.to_owned()]
    };
    let criteria = criterion::described();
    let recoveries = recovery::described();
    let criteria =
        criteria.iter().map(|of_| of("Pruning criterion", &of_.name, of_.source, names::criterion(&of_.name)));
    let recoveries =
        recoveries.iter().map(|of_| of("Recovery method", &of_.name, of_.source, names::recovery(&of_.name)));
    List {
        heads: ["Category", "Method", "Name in a grid", "Reference"].map(str::to_owned).to_vec(),
        rows: criteria.chain(recoveries).collect(),
    }
}

/// The backbones that have a file in `experiments/backbones`, with where they come from (paper table A2).
///
/// # Errors
/// A folder or a file that cannot be read.
pub fn checkpoints(experiments: &Path) -> Result<List> {
    let rows = grid::backbone_files(experiments)?.into_iter().map(|(name, path, source)| {
        let there = if path.join("config.json").is_file() { "here" } else { "not here" };
        vec![names::backbone(&name), name, source.unwrap_or_default(), path.display().to_string(), there.to_owned()]
    });
    Ok(List {
        heads: ["Model", "Name in a grid", "Source", "Folder", "State"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
    })
}

impl List {
    /// The list for a terminal, columns in line.
    pub fn screen(&self) -> String {
        let width =
            |at: usize| self.rows.iter().chain([&self.heads]).map(|row| row[at].chars().count()).max().unwrap_or(0);
        let line = |row: &[String]| {
            let cells = row.iter().enumerate().map(|(at, text)| format!("{text:<width$}", width = width(at)));
            format!("{}\n", cells.collect::<Vec<_>>().join("  ").trim_end())
        };
        let rule: Vec<String> = (0..self.heads.len()).map(|at| "─".repeat(width(at))).collect();
        [line(&self.heads), line(&rule)].into_iter().chain(self.rows.iter().map(|row| line(row))).collect()
    }

    pub fn markdown(&self) -> String {
        let line = |row: &[String]| format!("| {} |\n", row.join(" | "));
        let rule: Vec<String> = self.heads.iter().map(|_| "---".to_owned()).collect();
        [line(&self.heads), line(&rule)].into_iter().chain(self.rows.iter().map(|row| line(row))).collect()
    }

    /// Comma-separated, quoted where needed.
    pub fn csv(&self) -> String {
        let quoted = |text: &String| match text.contains([',', '"', '\n']) {
            true => format!("\"{}\"", text.replace('"', "\"\"")),
            false => text.clone(),
        };
        let line = |row: &Vec<String>| format!("{}\n", row.iter().map(quoted).collect::<Vec<_>>().join(","));
        [&self.heads].into_iter().chain(&self.rows).map(line).collect()
    }
}
