//! The artifacts that a folder of experiments describes.

use std::path::{Path, PathBuf};

use crate::artifact::paper;
use crate::error::{Error, Result};
use crate::grid::{AxisChoice, Cell, Description, EntryKind, Grid, InputList};
use crate::metric::{Metric, Of};
use crate::results::stem;

/// A table or figure, as its file describes it.
#[derive(Debug, Clone)]
pub struct Artifact {
    pub name: String,
    pub file: PathBuf,
    pub description: Description,
}

impl Artifact {
    /// Reads the artifact of a file. `None` if the file describes only a grid.
    ///
    /// # Errors
    /// A file that cannot be read, or a mistake in its description, with its line.
    pub fn read(file: &Path) -> Result<Option<Self>> {
        let name = file.file_stem().map(|stem| stem.to_string_lossy().into_owned()).unwrap_or_default();
        let described = Description::read(file)?;
        Ok(described.map(|(description, _)| Self { name, file: file.to_owned(), description }))
    }

    /// Returns its name and its other names in the paper.
    pub fn called(&self) -> Vec<&str> {
        Some(self.name.as_str()).into_iter().chain(self.description.also.as_deref()).collect()
    }

    /// Whether its grid has a profile of that name.
    pub fn has_profile(&self, profile: &str) -> bool {
        Grid::profiles(&self.file).is_ok_and(|names| names.iter().any(|name| name == profile))
    }

    /// Builds its grid. Hidden scores are not computed and their data need not exist; without any score there is no dense
    /// work.
    ///
    /// # Errors
    /// A mistake in the grid, or something that it names and that is not there.
    pub fn grid(&self, profile: Option<&str>, overrides: &[String]) -> Result<Grid> {
        let mut grid = self.shown(|shown| Grid::load_shown(&self.file, profile, overrides, shown))?;
        if !scores(&grid) && grid.evaluate.latency.is_empty() {
            grid.cells.retain(|cell| !cell.is_dense());
        }
        Ok(grid)
    }

    fn shown<T>(&self, load: impl FnOnce(&AxisChoice<'_>) -> T) -> T {
        let metrics = self.description.metrics();
        let known: Vec<Metric> =
            metrics.iter().map(|id| Metric::find(id).unwrap_or_else(|_| Metric::task(id))).collect();
        load(&AxisChoice {
            text: &|corpus| {
                known.iter().any(|metric| metric.text() == Some(stem(corpus)) || matches!(metric.of, Of::Texts(_)))
            },
            task: &|task| {
                known.iter().any(|metric| {
                    metric.task_name() == Some(task)
                        || is_of_definition(metric, task)
                        || matches!(metric.of, Of::Tasks(_))
                })
            },
            latency: known.iter().any(|metric| metric.is_latency()),
        })
    }

    /// Returns the inputs that [`make`](super::make) needs, for the artifact's grid and the gate's.
    ///
    /// # Errors
    /// A mistake in the grid.
    pub fn needs(&self, profile: Option<&str>, overrides: &[String]) -> Result<Vec<InputList>> {
        if self.description.list.is_some() {
            return Ok(Vec::new());
        }
        let subset = self.shown(|shown| Grid::needs(&self.file, profile, overrides, shown))?;
        let paper = paper::all()?;
        let mut backbones = subset.needs.iter().filter(|need| need.kind == EntryKind::Backbone);
        let gate = match !subset.scored
            && backbones.any(|need| paper.iter().any(|entry| entry.record.condition.backbone == need.name))
        {
            true => {
                let texts_only = AxisChoice { text: &|_| true, task: &|_| false, latency: false };
                Some(Grid::needs(&self.file, profile, overrides, &texts_only)?)
            }
            false => None,
        };
        Ok(std::iter::once(subset).chain(gate).collect())
    }

    /// Builds the gate: the grid of dense backbones whose paper numbers are checked before pruning. `None` without a paper
    /// backbone. For a figure without scores, backbones are scored on the grid's texts.
    ///
    /// # Errors
    /// As [`grid`](Self::grid).
    pub fn gate(&self, grid: &Grid, profile: Option<&str>, overrides: &[String]) -> Result<Option<Grid>> {
        let paper = paper::all()?;
        if !grid.backbones.keys().any(|backbone| paper.iter().any(|entry| entry.record.condition.backbone == *backbone))
        {
            return Ok(None);
        }
        let mut dense = match scores(grid) {
            true => grid.clone(),
            false => {
                let shown = AxisChoice { text: &|_| true, task: &|_| false, latency: false };
                let texts = Grid::load_shown(&self.file, profile, overrides, &shown);
                texts.map_err(|error| error.hint(NEEDED))?
            }
        };
        dense.cells.retain(Cell::is_dense);
        // A dense backbone alone is no comparison, and what the paper's machine took says nothing of a backbone.
        dense.evaluate.latency.clear();
        Ok(Some(dense))
    }

    /// Returns the grids that [`make`](super::make) runs in order: the gate's dense backbones, unless the artifact scores
    /// them itself, and the artifact's grid.
    ///
    /// # Errors
    /// As [`grid`](Self::grid).
    pub fn runs(&self, profile: Option<&str>, overrides: &[String]) -> Result<Vec<Grid>> {
        let grid = self.grid(profile, overrides)?;
        let gate = if scores(&grid) { None } else { self.gate(&grid, profile, overrides)? };
        Ok(gate.into_iter().chain([grid]).collect())
    }
}

/// `short_answers(shots=5)/exact_match,none` is of the task `short_answers`.
fn is_of_definition(metric: &Metric, task: &str) -> bool {
    let asked = metric.id.split_once('/').filter(|_| metric.is_defined()).map_or("", |(asked, _)| asked);
    asked.split('(').next() == Some(task)
}

fn scores(grid: &Grid) -> bool {
    !grid.evaluate.perplexity.is_empty() || !grid.evaluate.tasks.is_empty()
}

/// Why a figure without scores reads texts.
const NEEDED: &str =
    "the dense backbone has to show the paper's perplexities before it is pruned; --no-gate goes without";

/// Lists all artifact files of a folder, tables before figures, in the paper's order.
///
/// # Errors
/// A folder that cannot be read, or a mistake in a description.
pub fn all(folder: &Path) -> Result<Vec<Artifact>> {
    let listing = std::fs::read_dir(folder).map_err(|error| {
        Error::io("read", folder, &error)
            .hint("run it in a checkout, or name the folder with --experiments or GHOSTLAB_EXPERIMENTS")
    })?;
    let mut files: Vec<PathBuf> = listing.filter_map(|item| Some(item.ok()?.path())).collect();
    files.retain(|path| path.extension().is_some_and(|ending| ending == "yaml"));
    let described = files.iter().filter_map(|file| Artifact::read(file).transpose());
    let mut all = described.collect::<Result<Vec<_>>>()?;
    all.sort_by_key(|artifact| order(&artifact.name));
    Ok(all)
}

/// Selects artifacts by name; `all` selects all.
///
/// # Errors
/// An unknown name, with the nearest one.
pub fn chosen<'a>(all: &'a [Artifact], names: &[String]) -> Result<Vec<&'a Artifact>> {
    if names.iter().any(|name| name == "all") {
        return Ok(all.iter().collect());
    }
    names
        .iter()
        .map(|name| {
            all.iter()
                .find(|artifact| {
                    let names = [Some(artifact.name.as_str()), artifact.description.also.as_deref()];
                    names.into_iter().flatten().any(|known| known.eq_ignore_ascii_case(name))
                })
                .ok_or_else(|| {
                    let known = all.iter().map(|artifact| artifact.name.as_str()).chain(["all"]);
                    let error = Error::bad_input(format!("unknown artifact `{name}`"));
                    error.hint("`ghostlab reproduce` without arguments lists them").none_of(name, known)
                })
        })
        .collect()
}

/// Splits artifacts, selected by `names`, into those that a profile makes and those that have no such profile. `all` means those
/// that have it; an artifact that is named is never left out. Lists have no profiles. Where no artifact has the profile, all
/// are kept, because the error of the first one says so.
pub fn of_profile<'a>(
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

/// Returns an artifact's name as the paper prints it: `Table 2`, `Figure 1`, `Table A8`.
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

/// Where the paper shows a table or figure.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum PaperPlace {
    /// Among the tables and figures before the appendix, counted from 0.
    Main(usize),
    /// Table of the appendix, by its number.
    Appendix(usize),
    /// Not in the paper.
    Beyond,
}

impl PaperPlace {
    /// Tables and figures of the paper before its appendix, in its order.
    const MAIN: [&str; 10] =
        ["figure1", "figure2", "figure3", "figure4", "table1", "table2", "table3", "table4", "table5", "figure5"];

    /// Returns the place of an artifact, by its name.
    pub fn of(name: &str) -> Self {
        if let Some(index) = Self::MAIN.iter().position(|known| *known == name) {
            return Self::Main(index);
        }
        name.strip_prefix("tableA").and_then(|number| number.parse().ok()).map_or(Self::Beyond, Self::Appendix)
    }
}

/// Tables before figures, in the paper's order.
fn order(name: &str) -> (bool, bool, usize, String) {
    let digits: String = name.chars().filter(char::is_ascii_digit).collect();
    (name.starts_with("figure"), name.contains('A'), digits.parse().unwrap_or(usize::MAX), name.to_owned())
}

#[cfg(test)]
mod place_tests {
    use super::*;

    #[test]
    fn artifacts_have_the_papers_order() {
        let names = ["beyond", "tableA10", "figure5", "tableA4", "table2", "figure1", "table1", "tableAx"];
        let mut sorted = names;
        sorted.sort_by_key(|name| PaperPlace::of(name));
        let expected = ["figure1", "table1", "table2", "figure5", "tableA4", "tableA10", "beyond", "tableAx"];
        assert_eq!(sorted, expected);
    }
}
