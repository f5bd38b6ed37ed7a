//! Tables that list the built-in methods and the backbones with their sources.

use std::path::{Component, Path, PathBuf};

use crate::artifact::paper::backbone_label;
use crate::error::{Error, Result};
use crate::grid::{BackboneFile, Description};
use crate::hub::{Hub, HubSettings, Lock, RepoFiles};
use crate::options::MethodDescription;
use crate::results::{RowHeader, RowHeaderKind, Table, TableRow, distinct};
use crate::{criterion, grid, recovery};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct NameList {
    pub heads: Vec<String>,
    pub rows: Vec<Vec<String>>,
    /// Index of the column with the row labels.
    pub label: usize,
    /// Index of the column with the category of each row, or `None` if the rows have no categories.
    kind: Option<usize>,
    /// Index of the column with the names used in grids. Artifact descriptions select rows by these names.
    name: usize,
    /// Index of the URL column.
    source: usize,
    /// Heading of the URL column in the paper.
    head: &'static str,
}

/// Lists the criteria and recoveries that the paper compares (its tables 1 and A2).
pub(super) fn list_methods() -> NameList {
    let criteria = method_rows("Pruning criterion", criterion::descriptions());
    let recoveries = method_rows("Recovery method", recovery::descriptions());
    NameList {
        heads: ["Category", "Method", "Name in a grid", "Reference"].map(str::to_owned).to_vec(),
        rows: criteria.chain(recoveries).collect(),
        label: 1,
        kind: Some(0),
        name: 2,
        source: 3,
        head: "Official repository",
    }
}

fn method_rows(category: &'static str, methods: Vec<MethodDescription>) -> impl Iterator<Item = Vec<String>> {
    let compared = methods.into_iter().filter(|method| !method.beyond);
    compared
        .map(move |method| vec![category.to_owned(), method.label.to_owned(), method.name, method.source.to_owned()])
}

/// Lists the backbones in `experiments/backbones` (paper table A1).
///
/// # Errors
/// Fails if a folder or file cannot be read.
pub(super) fn list_checkpoints(experiments: &Path) -> Result<NameList> {
    let lock = Lock::read(&experiments.join(Lock::FILE))?;
    let hub = Hub::new(HubSettings::from_env()?);
    let rows =
        grid::backbone_files(experiments)?.into_iter().map(|BackboneFile { name, path, source, want, .. }| {
            let local = path.clone().filter(|path| path.join("config.json").is_file());
            let found = local.or_else(|| find_cached(&lock, &hub, want.as_ref()?));
            let state = if found.is_some() { "here" } else { "not here" };
            let folder = found.or(path).map_or(String::new(), |path| relative_path(&path, experiments));
            vec![backbone_label(&name).to_owned(), name, source.unwrap_or_default(), folder, state.to_owned()]
        });
    Ok(NameList {
        heads: ["Model", "Name in a grid", "Source", "Folder", "State"].map(str::to_owned).to_vec(),
        rows: rows.collect(),
        label: 0,
        kind: None,
        name: 1,
        source: 2,
        head: "Download link",
    })
}

/// Returns the snapshot folder of a repository in the hub cache, or `None` if the cache lacks one of its files.
fn find_cached(lock: &Lock, hub: &Hub, want: &RepoFiles) -> Option<PathBuf> {
    let repo = hub.resolve_offline(want, lock).ok()?;
    let is_complete = repo.files.iter().all(|file| file.cached.is_some());
    is_complete.then(|| hub.cache().snapshot(&want.source.repo, &repo.commit))
}

/// Returns `path` relative to the parent of the experiments folder. A path outside that folder is only normalized.
fn relative_path(path: &Path, experiments: &Path) -> String {
    let path = normalize_path(path);
    let root = normalize_path(&experiments.join(".."));
    path.strip_prefix(&root).unwrap_or(&path).display().to_string()
}

fn normalize_path(path: &Path) -> PathBuf {
    let mut normalized = PathBuf::new();
    for part in path.components() {
        match (part, normalized.components().next_back()) {
            (Component::ParentDir, Some(Component::Normal(_))) => drop(normalized.pop()),
            _ => normalized.push(part),
        }
    }
    normalized
}

impl NameList {
    /// Builds the table of the rows that the description names, or of all rows if it names none. Adjacent methods with
    /// the same category and URL share a row.
    ///
    /// # Errors
    /// Fails if a name matches no row. The error suggests the closest name.
    pub(super) fn printed(&self, description: &Description) -> Result<Table> {
        let Self { kind, name, source, head, .. } = *self;
        let chosen: Vec<&Vec<String>> = match description.in_paper.as_slice() {
            [] => self.rows.iter().collect(),
            names => names
                .iter()
                .map(|wanted| {
                    self.rows.iter().find(|row| row[name] == *wanted).ok_or_else(|| {
                        let known = self.rows.iter().map(|row| row[name].as_str());
                        let error = Error::bad_input("unknown name in `in_paper`")
                            .expected(format!("a name from the column `{}`", self.heads[name]));
                        error.found(format!("`{wanted}`")).suggest(wanted, known)
                    })
                })
                .collect::<Result<_>>()?,
        };
        let kinds = distinct(chosen.iter().filter_map(|row| Some(&row[kind?])));
        let rank = |row: &Vec<String>| kind.and_then(|at| kinds.iter().position(|known| *known == row[at]));
        let spanning = kind.map(|at| RowHeader::text(&self.heads[at]).kind(RowHeaderKind::Spanning));
        Ok(Table {
            title: description.title.clone(),
            caption: description.caption.clone().unwrap_or_default(),
            lead: spanning.into_iter().chain([RowHeader::text(&self.heads[self.label])]).collect(),
            tail: vec![RowHeader::text(head).kind(RowHeaderKind::Link)],
            rows: chosen
                .chunk_by(|a, b| a[source] == b[source] && rank(a) == rank(b))
                .map(|rows| {
                    let labels: Vec<&str> = rows.iter().map(|row| row[self.label].as_str()).collect();
                    let lead = kind.map(|at| rows[0][at].clone()).into_iter().chain([common_prefix(&labels)]).collect();
                    let backbone = rank(rows[0]).unwrap_or_default();
                    TableRow { lead, backbone, tail: vec![rows[0][source].clone()], ..TableRow::default() }
                })
                .collect(),
            ..Table::default()
        })
    }

    pub(super) fn full_table(&self) -> Table {
        let mut heads = self.heads.iter().map(RowHeader::text);
        Table {
            lead: heads.next().into_iter().collect(),
            tail: heads.collect(),
            rows: self
                .rows
                .iter()
                .map(|row| TableRow { lead: row[..1].to_vec(), tail: row[1..].to_vec(), ..TableRow::default() })
                .collect(),
            ..Table::default()
        }
    }
}

/// Returns the longest common prefix of several names, without trailing spaces and opening parentheses. Returns a
/// single name unchanged.
fn common_prefix(names: &[&str]) -> String {
    let (Some(first), true) = (names.first(), names.len() > 1) else { return names.concat() };
    let end = (0..=first.len())
        .rev()
        .filter(|end| first.is_char_boundary(*end))
        .find(|end| names.iter().all(|name| name.get(..*end) == first.get(..*end)))
        .unwrap_or(0);
    first[..end].trim_end_matches(['(', ' ']).to_owned()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn backbone_folder_is_shown_relative_to_the_checkout() {
        for (experiments, folder, expected) in [
            ("experiments", "experiments/backbones/../../models/a", "models/a"),
            ("/home/me/lab/experiments", "/home/me/lab/experiments/backbones/../../models/a", "models/a"),
            ("experiments", "/cache/models--a/snapshots/1", "/cache/models--a/snapshots/1"),
            ("../experiments", "../experiments/backbones/../../models/a", "models/a"),
        ] {
            assert_eq!(relative_path(Path::new(folder), Path::new(experiments)), expected, "{folder}");
        }
    }
}
