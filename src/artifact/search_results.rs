//! Search reports in Markdown and JSON, and tables that compare each search with an artifact that scores all candidates
//! on all items.

use std::path::PathBuf;
use std::time::SystemTime;

use serde_json::json;

use super::Artifact;
use super::catalog::printed;
use super::files::FinishedRun;
use super::layout::variant_label;
use super::page_part::{PagePart, build_search_page_part};
use super::paper::backbone_label;
use super::pipeline::provenance_lines;
use super::results_folder::{PublishedFiles, ResultsFolder};
use crate::error::{Error, Result};
use crate::grid::{Cell, Grid, RacesEntry};
use crate::pipeline::exec::GridOutcome;
use crate::recovery;
use crate::results::number_record::DENSE;
use crate::results::{Provenance, ResultRow, StoredResults, csv_text, put};
use crate::search::{Candidate, CandidateOutcome, SearchOutcome, markdown};

/// Best score in the artifact that scores all cells, and the candidate that has it.
type BestCandidate<'a> = (&'a ResultRow, &'a Candidate);

/// Results of an artifact's searches (races), compared with the table in which every cell was scored on all items.
pub struct SearchResults<'a> {
    grid: &'a Grid,
    races: &'a RacesEntry,
    found: &'a [SearchOutcome],
    /// Best candidate of each search, or `None` if the table has no score of any candidate.
    best: Vec<Option<BestCandidate<'a>>>,
}

impl<'a> SearchResults<'a> {
    /// Finds the best candidate of each search in `results`, the results of the artifact that scores all cells on all
    /// items.
    pub fn new(
        grid: &'a Grid,
        races: &'a RacesEntry,
        found: &'a [SearchOutcome],
        results: Option<&'a StoredResults>,
    ) -> Self {
        let metric = races.metrics.last().map_or("", String::as_str);
        let numbers = results.map_or(&[][..], |results| &results.numbers);
        Self { grid, races, found, best: found.iter().map(|found| best_candidate(found, numbers, metric)).collect() }
    }

    pub fn table(&self) -> Vec<Vec<String>> {
        let table_title = printed(&self.races.table);
        let heads = [
            "Backbone",
            "Removed",
            &format!("Best in {table_title}"),
            "Its outcome in the race",
            "Winner of the race",
            "Winner on held-out items",
            "Dense on held-out items",
            "Not separated",
            "Items scored, %",
            "Items × layers, %",
        ];
        let rows = self.found.iter().zip(&self.best).map(|(found, best)| self.build_row(found, *best));
        std::iter::once(heads.map(str::to_owned).to_vec()).chain(rows).collect()
    }

    fn build_row(&self, found: &SearchOutcome, best: Option<BestCandidate<'_>>) -> Vec<String> {
        let won = found.candidates.iter().find(|one| found.winner.as_ref() == Some(&one.cell));
        let spent = &found.spent;
        vec![
            backbone_label(&found.backbone).to_owned(),
            self.format_removed(found),
            best.map_or_else(empty_cell, |(best, candidate)| {
                let half = best.record.error.map(|error| 1.96 * error);
                let is_accuracy = found.objectives.first().is_some_and(|objective| objective.name == "accuracy");
                let unit = if is_accuracy { " %" } else { "" };
                let value = best.record.value.unwrap_or(f64::NAN);
                let half = half.map_or_else(String::new, |half| format!(" ± {half:.2}"));
                format!("{}: {value:.2}{half}{unit}", self.candidate_label(candidate))
            }),
            best.map_or_else(empty_cell, |(_, candidate)| outcome_text(found, candidate)),
            won.map_or_else(empty_cell, |won| self.candidate_label(won)),
            format_held_out_score(found, "winner"),
            format_held_out_score(found, "dense"),
            format!("{} of {}", found.survivors().count(), found.candidates.len()),
            format_costs(spent.items, spent.judged_items, spent.all_items),
            format_costs(spent.layers, spent.judged_layers, spent.all_layers),
        ]
    }

    pub fn notes(&self) -> Vec<String> {
        let table_title = printed(&self.races.table);
        let known: Vec<String> = self
            .found
            .iter()
            .zip(&self.best)
            .filter_map(|(found, best)| Some(outcome_text(found, (*best)?.1)))
            .collect();
        let all_items = self.sum_over_races(|found| found.spent.all_items).max(1.0);
        let all_layers = self.sum_over_races(|found| found.spent.all_layers).max(1.0);
        let items = 100.0 * self.sum_over_races(|found| found.spent.items) / all_items;
        let layers = 100.0 * self.sum_over_races(|found| found.spent.layers) / all_layers;
        let judged = 100.0 * self.sum_over_races(|found| found.spent.judged_items) / all_items;
        let judged_layers = 100.0 * self.sum_over_races(|found| found.spent.judged_layers) / all_layers;
        let lost = known.len()
            - count_starting_with(&known, WON_ALONE)
            - count_starting_with(&known, LEADING)
            - count_starting_with(&known, NOT_SEPARATED);
        let best = match known.len() {
            0 => format!("{table_title} is not computed here. Run `reproduce {}` to compute it.", self.races.table),
            all => format!(
                "The best row of {table_title} is the only survivor of {} of {all} races, leads the survivors in {}, survives without leading in {}, and is eliminated in {lost}.",
                count_starting_with(&known, WON_ALONE),
                count_starting_with(&known, LEADING),
                count_starting_with(&known, NOT_SEPARATED)
            ),
        };
        let spent = format!(
            "All races together scored {items:.0} % of the items of an exhaustive grid ({layers:.0} % of items × layers). The evaluation on held-out items scored another {judged:.0} % ({judged_layers:.0} %)."
        );
        let marks = "± is half of a 95 % interval. Not separated: candidates that no test distinguishes from the leader, including the leader; their order is arbitrary. Costs: the race + the evaluation on held-out items, in percent of the exhaustive grid.";
        vec![best, spent, marks.to_owned()]
    }

    /// Sums a cost over all races.
    fn sum_over_races(&self, part: fn(&SearchOutcome) -> f64) -> f64 {
        self.found.iter().map(part).sum()
    }

    /// Formats the number of removed layers, such as `4 of 16`, or the budget itself if it does not count layers.
    fn format_removed(&self, found: &SearchOutcome) -> String {
        match found.budget.strip_prefix("layers=").filter(|layers| !layers.contains(',')) {
            Some(layers) => format!("{layers} of {}", found.layers),
            None => found.budget.clone(),
        }
    }

    /// Labels a candidate and its duplicates like the rows of the paper's tables.
    fn candidate_label(&self, candidate: &Candidate) -> String {
        let copies: Vec<String> = candidate.duplicates.iter().map(|name| self.cell_label(name)).collect();
        let name = self.cell_label(&candidate.cell);
        if copies.is_empty() { name } else { format!("{name} (= {})", copies.join(", ")) }
    }

    fn cell_label(&self, name: &str) -> String {
        let cell = self.grid.cells.iter().find(|cell| cell.name == name);
        cell.map_or_else(|| name.to_owned(), row_label)
    }

    pub fn files(artifact: &Artifact) -> Vec<String> {
        let outputs = [format!("{}.csv", artifact.name), PagePart::FILE.to_owned(), Provenance::FILE.to_owned()];
        search_file_names(&artifact.name).into_iter().chain(outputs).collect()
    }

    /// Writes the report, the table and the provenance record. `dense` is the run of the unpruned backbones, which
    /// supplies the recorded inputs and engines.
    ///
    /// # Errors
    /// Fails if the folder is not writable.
    pub fn publish(
        &self,
        artifact: &Artifact,
        dense: &GridOutcome,
        target: &ResultsFolder,
        started: SystemTime,
    ) -> Result<PublishedFiles> {
        let table = self.table();
        let staging = target.output().stage()?;
        let mut files: Vec<PathBuf> = Vec::new();
        let caption = artifact.description.caption.clone().unwrap_or_default();
        let notes: String = self.notes().iter().map(|note| format!("{note}\n\n")).collect();
        let head = format!("# {}\n\n{caption}\n\n{}\n\n{notes}", artifact.description.title, markdown(&table));
        for (name, bytes) in search_files(&artifact.name, self.found)? {
            let is_report = name == format!("{}.md", artifact.name);
            let bytes = if is_report { [head.as_bytes(), &bytes].concat() } else { bytes };
            files.push(put(&staging.path().join(name), &bytes)?);
        }
        files.push(put(&staging.path().join(format!("{}.csv", artifact.name)), csv_text(&table)?.as_bytes())?);
        // Record no cells, because the search report contains their provenance.
        let run = FinishedRun { target, grid: self.grid, outcome: dense, started };
        let record = run.record(Vec::new(), json!([]), &mut files, staging.path())?;
        if target.as_described() {
            let profile = self.grid.profile.as_deref().unwrap_or_default();
            let provenance = provenance_lines(&record, self.grid.cells.len());
            build_search_page_part(artifact, profile, &table, self.notes(), dense, provenance).write(staging.path())?;
        }
        target.publish(staging, &files)
    }
}

/// Returns the candidate with the best score among `numbers`.
fn best_candidate<'a>(found: &'a SearchOutcome, numbers: &'a [ResultRow], metric: &str) -> Option<BestCandidate<'a>> {
    let scored = numbers.iter().filter(|number| number.record.metric == metric);
    let raced =
        scored.filter_map(|number| Some((number.record.value?, (number, find_candidate(found, &number.cell)?))));
    let best = raced.reduce(|best, other| if best.1.0.metric.is_better(other.0, best.0) { other } else { best });
    best.map(|(_, best)| best)
}

fn find_candidate<'a>(found: &'a SearchOutcome, cell: &str) -> Option<&'a Candidate> {
    found.candidates.iter().find(|one| one.cell == cell || one.duplicates.iter().any(|same| same == cell))
}

fn empty_cell() -> String {
    "—".to_owned()
}

fn format_held_out_score(found: &SearchOutcome, role: &str) -> String {
    let score = found.held_out_scores.iter().find(|entry| entry.role == role).and_then(|judged| judged.scores.first());
    score.zip(found.objectives.first()).map_or_else(empty_cell, |(score, objective)| objective.score_text(score))
}

/// Formats the costs of a race and of the evaluation on held-out items, in percent of an exhaustive grid.
fn format_costs(race: f64, judged: f64, all: f64) -> String {
    format!("{:.0} + {:.0}", 100.0 * race / all.max(1.0), 100.0 * judged / all.max(1.0))
}

fn count_starting_with(known: &[String], word: &str) -> usize {
    known.iter().filter(|known_word| known_word.starts_with(word)).count()
}

const WON_ALONE: &str = "won alone";
const LEADING: &str = "leads";
const NOT_SEPARATED: &str = "not separated";

fn outcome_text(found: &SearchOutcome, candidate: &Candidate) -> String {
    match &candidate.outcome {
        _ if found.winner.as_ref() == Some(&candidate.cell) => match found.survivors().count() - 1 {
            0 => WON_ALONE.to_owned(),
            others => format!("{LEADING}, not separated from {others}"),
        },
        CandidateOutcome::Survived => format!("{NOT_SEPARATED} from the winner"),
        CandidateOutcome::Out { round, p, .. } => {
            format!("out after round {round} of {}, p {p:.1e}", found.rounds.len())
        }
        CandidateOutcome::Failed { reason } => format!("failed: {}", reason.lines().next().unwrap_or_default()),
        CandidateOutcome::Slow { reason } => reason.clone(),
    }
}

fn row_label(cell: &Cell) -> String {
    let criterion = cell.criterion.as_ref().map_or(DENSE, |criterion| criterion.name.as_str());
    let recovery = cell.recovery.as_ref().map_or(recovery::NONE, |recovery| recovery.name.as_str());
    variant_label(criterion, recovery)
}

/// Formats searches as a JSON and a Markdown file. Returns the names and contents of the files.
///
/// # Errors
/// Fails if a search cannot be serialized.
pub fn search_files(name: &str, found: &[SearchOutcome]) -> Result<Vec<(String, Vec<u8>)>> {
    let json = serde_json::to_string_pretty(found)
        .map_err(|error| Error::job("cannot write the search as JSON").found(error.to_string()))?;
    let report: Vec<String> = found.iter().map(SearchOutcome::markdown).collect();
    Ok(vec![
        (format!("{name}.json"), (json + "\n").into_bytes()),
        (format!("{name}.md"), report.join("\n").into_bytes()),
    ])
}

/// Returns the names of the files that [`search_files`] formats.
pub fn search_file_names(name: &str) -> Vec<String> {
    ["json", "md"].map(|ending| format!("{name}.{ending}")).to_vec()
}
