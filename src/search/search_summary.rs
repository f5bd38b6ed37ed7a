//! Tables and text that summarize a search.

use super::short_name::ShortNames;
use super::{Candidate, CandidateOutcome, Lead, Objective, Score, SearchOutcome};
use crate::model::Cut;
use crate::quantity::pluralize;
use crate::results::{ranges, removed_text};

impl SearchOutcome {
    /// Formats a title that names the backbone, the budget and the data.
    pub fn title(&self) -> String {
        let on: Vec<String> = self
            .objectives
            .iter()
            .map(|objective| {
                format!(
                    "{} on {} ({} items, {} kept)",
                    objective.name,
                    objective.on.join(", "),
                    objective.items,
                    objective.kept
                )
            })
            .collect();
        format!("{}, {}: {}", self.backbone, self.budget, on.join("; "))
    }

    /// Returns the table of candidates: the winner, the other survivors, candidates that were too slow, eliminated
    /// candidates (latest first), and failed candidates.
    pub fn table(&self) -> Vec<Vec<String>> {
        let names = self.short_names();
        let mut head = ["candidate", "removed", "speedup", "weights"].map(str::to_owned).to_vec();
        let has_params = self.candidates.iter().any(|candidate| candidate.costs.params.is_some());
        let has_cache = self.candidates.iter().any(|candidate| candidate.costs.kv_cache.is_some());
        head.extend(has_params.then(|| "parameters".to_owned()));
        head.extend(has_cache.then(|| "KV cache".to_owned()));
        let timed = self.candidates.iter().any(|candidate| candidate.milliseconds.is_some());
        head.extend(timed.then(|| "measured".to_owned()));
        head.extend(self.score_heads("difference from rival"));
        head.extend(["items", "outcome"].map(str::to_owned));
        let mut rows = vec![head];
        let mut order: Vec<&Candidate> = self.candidates.iter().collect();
        order.sort_by_key(|candidate| self.rank(candidate));
        for candidate in order {
            let mut row = vec![
                names.shorten(&candidate.cell).to_owned(),
                format_removed(&candidate.removed),
                format!("{:.3}×", candidate.costs.speedup),
                format_size(candidate.costs.bytes),
            ];
            row.extend(candidate.costs.params.map(format_percent));
            row.extend(candidate.costs.kv_cache.map(format_percent));
            row.extend(timed.then(|| candidate.milliseconds.map_or_else(String::new, |time| format!("{time:.2} ms"))));
            row.extend(self.score_cells(&candidate.scores, &candidate.differences));
            row.extend([candidate.items.to_string(), self.format_outcome(candidate, &names)]);
            rows.push(row);
        }
        rows
    }

    /// Returns the headings of two columns for each objective: the score and a difference.
    fn score_heads(&self, difference: &str) -> impl Iterator<Item = String> {
        self.objectives.iter().flat_map(move |objective| [objective.name.clone(), difference.to_owned()])
    }

    /// Formats the score and the difference for each objective.
    fn score_cells(&self, scores: &[Score], differences: &[Score]) -> impl Iterator<Item = String> {
        self.objectives.iter().enumerate().flat_map(move |(at, objective)| {
            let score = scores.get(at).map(|score| objective.score_text(score));
            let difference = differences.get(at).map(|difference| objective.format_difference(difference));
            [score, difference].map(|text| text.unwrap_or_else(|| "—".to_owned()))
        })
    }

    /// Returns the key by which candidates are sorted in the table.
    fn rank(&self, candidate: &Candidate) -> (usize, usize) {
        match candidate.outcome {
            CandidateOutcome::Survived if self.winner.as_ref() == Some(&candidate.cell) => (0, 0),
            CandidateOutcome::Survived => (1, 0),
            CandidateOutcome::Slow { .. } => (2, 0),
            CandidateOutcome::Out { round, .. } => (3, usize::MAX - round),
            CandidateOutcome::Failed { .. } => (4, 0),
        }
    }

    fn short_names(&self) -> ShortNames {
        let copies = self.candidates.iter().flat_map(|candidate| candidate.duplicates.iter());
        let cells = self
            .candidates
            .iter()
            .map(|candidate| &candidate.cell)
            .chain(self.held_out_scores.iter().map(|judged| &judged.cell));
        ShortNames::new(&self.backbone, cells.chain(copies))
    }

    fn format_outcome(&self, candidate: &Candidate, names: &ShortNames) -> String {
        match &candidate.outcome {
            CandidateOutcome::Survived if self.winner.as_ref() == Some(&candidate.cell) => "winner".to_owned(),
            CandidateOutcome::Survived => "not separated from the winner".to_owned(),
            CandidateOutcome::Out { round, rival, p } => {
                format!("out after round {round}, p {p:.1e} against {}", names.shorten(rival))
            }
            CandidateOutcome::Failed { reason } => format!("failed: {}", reason.lines().next().unwrap_or_default()),
            CandidateOutcome::Slow { reason } => reason.clone(),
        }
    }

    /// Returns the table of scores on the held-out items.
    pub fn judgement(&self) -> Vec<Vec<String>> {
        let mut head = ["role", "variant"].map(str::to_owned).to_vec();
        head.extend(self.score_heads("difference from winner"));
        let names = self.short_names();
        std::iter::once(head)
            .chain(self.held_out_scores.iter().map(|judged| {
                let mut row = vec![judged.role.clone(), names.shorten(&judged.cell).to_owned()];
                row.extend(self.score_cells(&judged.scores, &judged.differences));
                row
            }))
            .collect()
    }

    /// Formats notes on significance, identical candidates, shortened names, the winner's lead and the cost of the
    /// search, one per line.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let survivors = self.survivors().count();
        lines.extend((survivors > 1).then(|| {
            format!("{} are not significantly different (α = {}).", pluralize(survivors, "candidate"), self.alpha)
        }));
        if self.candidates.iter().any(|candidate| candidate.items != self.candidates[0].items) {
            lines.push(
                "Scores are means over the items that each candidate saw. Compare candidates by their difference from a rival, \
                 which is a mean over items that both saw. The rival of a survivor is the winner."
                    .to_owned(),
            );
        }
        let names = self.short_names();
        for candidate in self.candidates.iter().filter(|candidate| !candidate.duplicates.is_empty()) {
            let copies: Vec<&str> = candidate.duplicates.iter().map(|name| names.shorten(name)).collect();
            lines.push(format!("Identical to {}: {}.", names.shorten(&candidate.cell), copies.join(", ")));
        }
        lines.extend(names.truncated_names().map(|(short, full)| format!("{short} is {full}.")));
        lines.extend(self.objectives.iter().zip(&self.leads).map(|(objective, lead)| objective.lead_sentence(lead)));
        let spent = &self.spent;
        lines.push(format!(
            "The race scored {:.0} of {:.0} items ({:.0} %), {:.0} of {:.0} items × layers ({:.0} %); the held-out evaluation {:.0} items ({:.0} %), {:.0} items × layers ({:.0} %).",
            spent.items,
            spent.all_items,
            compute_percentage(spent.items, spent.all_items),
            spent.layers,
            spent.all_layers,
            compute_percentage(spent.layers, spent.all_layers),
            spent.judged_items,
            compute_percentage(spent.judged_items, spent.all_items),
            spent.judged_layers,
            compute_percentage(spent.judged_layers, spent.all_layers),
        ));
        lines
    }

    /// Formats the report as Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n{}\n\n{}\n", self.title(), self.sentence(), markdown(&self.table()));
        if !self.held_out_scores.is_empty() {
            text += &format!("\nScores on held-out items:\n\n{}\n", markdown(&self.judgement()));
        }
        self.lines().iter().for_each(|line| text += &format!("\n{line}\n"));
        if !self.left_out.is_empty() {
            text += "\nSkipped:\n\n";
            self.left_out.iter().for_each(|entry| text += &format!("- {}: {}\n", entry.cell, entry.reason));
        }
        text
    }
}

/// Formats the removed layers, or the removed sublayers of each kind.
fn format_removed(cut: &Cut) -> String {
    match cut.has_only_whole_layers() {
        true => ranges(&cut.whole_layers(), "–", ", "),
        false => removed_text(cut),
    }
}

fn format_percent(fraction: f64) -> String {
    format!("{:.1} %", 100.0 * fraction)
}

/// Returns `part` as a percentage of `all`, or 0 if `all` is 0.
fn compute_percentage(part: f64, all: f64) -> f64 {
    if all > 0.0 { 100.0 * part / all } else { 0.0 }
}

impl Objective {
    /// Formats the winner's lead over plain removal as one sentence.
    fn lead_sentence(&self, lead: &Lead) -> String {
        format!(
            "The winner's lead over plain removal ({}): {} on the race's items, which selected it, and {} on held-out items.",
            self.name,
            self.format_difference(&lead.raced),
            self.format_difference(&lead.held_out)
        )
    }

    /// Formats a score difference with its confidence interval and unit.
    fn format_difference(&self, score: &Score) -> String {
        let Score { mean, half } = *score;
        match self.name.as_str() {
            "accuracy" => format!("{mean:+.2}{} points", format_half_width(half, 2)),
            _ => format!("{mean:+.4}{} nats", format_half_width(half, 4)),
        }
    }
}

fn format_half_width(half: Option<f64>, decimals: usize) -> String {
    half.map_or_else(String::new, |half| format!(" ± {half:.decimals$}"))
}

fn format_size(bytes: u64) -> String {
    let size = bytes as f64;
    if size < 1e9 { format!("{:.2} MB", size / 1e6) } else { format!("{:.2} GB", size / 1e9) }
}

/// Formats rows as a Markdown table with a header.
pub fn markdown(rows: &[Vec<String>]) -> String {
    let mut lines: Vec<String> = rows
        .iter()
        .map(|row| format!("| {} |", row.iter().map(|cell| cell.replace('|', "\\|")).collect::<Vec<_>>().join(" | ")))
        .collect();
    if let Some(head) = rows.first() {
        lines.insert(1, format!("|{}", " --- |".repeat(head.len())));
    }
    lines.join("\n")
}
