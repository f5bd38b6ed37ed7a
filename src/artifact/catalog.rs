//! Tables and figures described by the files in an experiments directory.

use std::path::Path;

use crate::artifact::paper;
use crate::error::{Error, Result};
use crate::files;
use crate::grid::{AxisChoice, Cell, Description, EntryKind, Grid, GridFile, InputList};
use crate::metric::{Metric, MetricSource};
use crate::results::stem;

/// A table or figure with its description.
#[derive(Debug, Clone)]
pub struct Artifact {
    pub name: String,
    pub file: GridFile,
    pub description: Description,
}

impl Artifact {
    /// Reads the artifact described by a file, or `None` if the file contains only a grid.
    ///
    /// # Errors
    /// Fails if the file cannot be read or its description is invalid.
    pub fn read(file: &Path) -> Result<Option<Self>> {
        Self::from_file(&GridFile::read(file)?)
    }

    /// Returns the artifact described by a parsed file, or `None` if the file contains only a grid.
    ///
    /// # Errors
    /// Fails if the description is invalid.
    pub fn from_file(file: &GridFile) -> Result<Option<Self>> {
        let name = file.path().file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        Ok(file.description()?.map(|description| Self { name, file: file.clone(), description }))
    }

    /// Returns the artifact's name and aliases.
    pub fn names(&self) -> Vec<&str> {
        Some(self.name.as_str()).into_iter().chain(self.description.also.as_deref()).collect()
    }

    pub fn has_profile(&self, profile: &str) -> bool {
        self.file.profiles().iter().any(|name| name == profile)
    }

    /// Builds the artifact's grid. Omits scores that the artifact does not show, so that their data need not exist.
    /// Omits the dense cells if the grid measures neither scores nor latency.
    ///
    /// # Errors
    /// Fails if the grid is invalid or an input does not exist.
    pub fn grid(&self, profile: Option<&str>, overrides: &[String]) -> Result<Grid> {
        let mut grid = self.with_axis_choice(|choice| self.file.grid_with(profile, overrides, choice))?;
        if !has_scores(&grid) && grid.evaluate.latency.is_empty() {
            grid.cells.retain(|cell| !cell.is_dense());
        }
        Ok(grid)
    }

    /// Calls `load` with an [`AxisChoice`] that selects the texts, tasks and latencies that the artifact shows.
    fn with_axis_choice<T>(&self, load: impl FnOnce(&AxisChoice<'_>) -> T) -> T {
        let costs = self.description.figure.iter().flat_map(|figure| &figure.costs);
        let metrics = self.description.metrics().iter().chain(costs);
        let shown: Vec<Metric> = metrics.map(|id| Metric::find_or_task(id)).collect();
        load(&AxisChoice {
            text: &|corpus| {
                shown.iter().any(|metric| {
                    metric.text() == Some(stem(corpus)) || matches!(metric.source, MetricSource::Texts(_))
                })
            },
            task: &|task| {
                shown.iter().any(|metric| {
                    metric.task_name() == Some(task)
                        || belongs_to_definition(metric, task)
                        || matches!(metric.source, MetricSource::Tasks(_))
                })
            },
            latency: shown.iter().any(|metric| metric.is_latency()),
        })
    }

    /// Lists the inputs that [`make`](super::make) needs, including those of the gate. Lists of methods or checkpoints
    /// need none.
    ///
    /// # Errors
    /// Fails if the grid is invalid.
    pub fn needs(&self, profile: Option<&str>, overrides: &[String]) -> Result<Vec<InputList>> {
        if self.description.list.is_some() {
            return Ok(Vec::new());
        }
        let subset = self.with_axis_choice(|choice| self.file.needs(profile, overrides, choice))?;
        let paper_layers = paper::layers_by_backbone()?;
        let mut backbones = subset.needs.iter().filter(|need| need.kind == EntryKind::Backbone);
        let gate = match !subset.scored && backbones.any(|need| paper_layers.contains_key(&need.name)) {
            true => Some(self.file.needs(profile, overrides, &TEXTS_ONLY)?),
            false => None,
        };
        Ok(std::iter::once(subset).chain(gate).collect())
    }

    /// Builds the gate: a grid of dense backbones whose scores must match the paper before pruning. Returns `None` if
    /// the paper has none of the backbones. If the artifact shows no scores, the gate uses the grid's perplexity texts.
    ///
    /// # Errors
    /// Fails in the same cases as [`grid`](Self::grid).
    pub fn gate(&self, grid: &Grid, profile: Option<&str>, overrides: &[String]) -> Result<Option<Grid>> {
        let paper_layers = paper::layers_by_backbone()?;
        if !grid.backbones.keys().any(|backbone| paper_layers.contains_key(backbone)) {
            return Ok(None);
        }
        let mut dense = match has_scores(grid) {
            true => grid.clone(),
            false => {
                let texts = self.file.grid_with(profile, overrides, &TEXTS_ONLY);
                texts.map_err(|error| error.hint(GATE_TEXTS_HINT))?
            }
        };
        dense.cells.retain(Cell::is_dense);
        // The gate compares scores only. Latencies depend on the machine.
        dense.evaluate.latency.clear();
        Ok(Some(dense))
    }

    /// Returns the grids that [`make`](super::make) runs: the artifact's grid, preceded by the gate unless the artifact
    /// scores the dense backbones itself.
    ///
    /// # Errors
    /// Fails in the same cases as [`grid`](Self::grid).
    pub fn grids_to_run(&self, profile: Option<&str>, overrides: &[String]) -> Result<Vec<Grid>> {
        let grid = self.grid(profile, overrides)?;
        let gate = if has_scores(&grid) { None } else { self.gate(&grid, profile, overrides)? };
        Ok(gate.into_iter().chain([grid]).collect())
    }
}

/// Returns whether a metric belongs to the given task definition. For example,
/// `short_answers(shots=5)/exact_match,none` belongs to `short_answers`.
fn belongs_to_definition(metric: &Metric, task: &str) -> bool {
    let task_label = metric.id.split_once('/').filter(|_| metric.is_defined()).map_or("", |(task_label, _)| task_label);
    task_label.split('(').next() == Some(task)
}

fn has_scores(grid: &Grid) -> bool {
    !grid.evaluate.perplexity.is_empty() || grid.evaluate.builtin().next().is_some()
}

/// Choice of the scores with which the gate checks dense backbones if the artifact shows none.
const TEXTS_ONLY: AxisChoice<'static> = AxisChoice { text: &|_| true, task: &|_| false, latency: false };

/// Hint shown when an artifact without scores needs evaluation texts for the gate.
const GATE_TEXTS_HINT: &str =
    "provide the texts with which the gate checks the dense backbone against the paper, or pass --no-gate";

/// Lists all artifacts in a directory, tables first, in paper order.
///
/// # Errors
/// Fails if the directory cannot be read or a description is invalid.
pub fn all(folder: &Path) -> Result<Vec<Artifact>> {
    all_for(folder, &[]).map(|(all, _)| all)
}

/// Lists the valid artifacts in a directory in the order of [`all`], for a command about the named ones. Also returns
/// the errors of invalid files with other names, which the command can ignore.
///
/// # Errors
/// Fails if the directory cannot be read or the description of a named artifact is invalid. Without names, or with the
/// name `all`, any invalid description is an error.
pub fn all_for(folder: &Path, names: &[String]) -> Result<(Vec<Artifact>, Vec<Error>)> {
    let mut files = files::entries(folder).map_err(|error| {
        Error::folder_io("read", folder, &error)
            .hint("run the command in a checkout, or set the folder with --experiments or GHOSTLAB_EXPERIMENTS")
    })?;
    files.retain(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    let mut all = Vec::new();
    let mut ignored = Vec::new();
    for file in files {
        match Artifact::read(&file) {
            Ok(artifact) => all.extend(artifact),
            Err(error) if names.is_empty() || names.iter().any(|name| selects(name, &file)) => return Err(error),
            Err(error) => ignored.push(error),
        }
    }
    all.sort_by_key(|artifact| sort_key(&artifact.name));
    Ok((all, ignored))
}

/// Returns whether a name on the command line selects the artifact that a file is named after.
fn selects(name: &str, file: &Path) -> bool {
    name == "all" || file.file_stem().is_some_and(|stem| stem.eq_ignore_ascii_case(name))
}

/// Selects artifacts by name. The name `all` selects every artifact.
///
/// # Errors
/// Fails if a name is unknown, and suggests the closest one.
pub fn select<'a>(all: &'a [Artifact], names: &[String]) -> Result<Vec<&'a Artifact>> {
    if names.iter().any(|name| name == "all") {
        return Ok(all.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            all.iter()
                .find(|artifact| artifact.names().into_iter().any(|known| known.eq_ignore_ascii_case(name)))
                .ok_or_else(|| {
                    let known = all.iter().map(|artifact| artifact.name.as_str()).chain(["all"]);
                    let error = Error::bad_input(format!("unknown artifact `{name}`"));
                    error.hint("run `ghostlab reproduce` without arguments to list them").none_of(name, known)
                })
        })
        .collect()
}

/// Splits artifacts into those whose grid has the profile (such as `tiny`) and those whose grid does not.
///
/// Artifacts are only filtered if `names` contains `all`. Lists have no profile and are always kept. If no artifact has
/// the profile, all artifacts are kept so that the first one reports the error.
pub fn partition_by_profile<'a>(
    chosen: Vec<&'a Artifact>,
    names: &[String],
    profile: Option<&str>,
) -> (Vec<&'a Artifact>, Vec<&'a Artifact>) {
    match profile.filter(|_| names.iter().any(|name| name == "all")) {
        Some(profile) if chosen.iter().any(|artifact| artifact.has_profile(profile)) => chosen
            .into_iter()
            .partition(|artifact| artifact.description.list.is_some() || artifact.has_profile(profile)),
        _ => (chosen, Vec::new()),
    }
}

/// Returns an artifact's name as printed in the paper: `Table 2`, `Figure 1`, `Table A8`.
pub fn printed(name: &str) -> String {
    for (kind, word) in [("table", "Table"), ("figure", "Figure")] {
        if let Some(number) = name.strip_prefix(kind)
            && number.strip_prefix('A').unwrap_or(number).bytes().all(|byte| byte.is_ascii_digit())
            && number.ends_with(|c: char| c.is_ascii_digit())
        {
            return format!("{word} {number}");
        }
    }
    name.to_owned()
}

/// Position of an artifact in the paper.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PaperPlace {
    /// Index among the tables and figures of the main text.
    Main(usize),
    /// Number of an appendix table.
    Appendix(usize),
    /// Artifact that is not in the paper.
    Beyond,
}

impl PaperPlace {
    /// Tables and figures of the main text, in paper order.
    const MAIN_TEXT: [&str; 10] =
        ["figure1", "figure2", "figure3", "figure4", "table1", "table2", "table3", "table4", "table5", "figure5"];

    pub fn from_name(name: &str) -> Self {
        if let Some(index) = Self::MAIN_TEXT.iter().position(|known| *known == name) {
            return Self::Main(index);
        }
        name.strip_prefix("tableA").and_then(|number| number.parse().ok()).map_or(Self::Beyond, Self::Appendix)
    }
}

/// Returns a sort key that puts tables before figures, in paper order.
fn sort_key(name: &str) -> (bool, bool, usize, String) {
    let digits: String = name.chars().filter(char::is_ascii_digit).collect();
    (name.starts_with("figure"), name.contains('A'), digits.parse().unwrap_or(usize::MAX), name.to_owned())
}

#[cfg(test)]
mod place_tests {
    use super::*;

    #[test]
    fn artifacts_are_sorted_as_in_the_paper() {
        let names = ["beyond", "tableA10", "figure5", "tableA4", "table2", "figure1", "table1", "tableAx"];
        let mut sorted = names;
        sorted.sort_by_key(|name| PaperPlace::from_name(name));
        let expected = ["figure1", "table1", "table2", "figure5", "tableA4", "tableA10", "beyond", "tableAx"];
        assert_eq!(sorted, expected);
    }
}
