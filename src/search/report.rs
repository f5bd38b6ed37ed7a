//! A search's tables, as rows of texts, and what it cost in words.

use super::short_name::ShortNames;
use super::{Candidate, Fate, Found, Judged, Lead, Objective, Score};
use crate::quantity::counted;

impl Found {
    /// Formats the title: backbone, budget and data.
    pub fn title(&self) -> String {
        let on = |of: &Objective| format!("{} on {} ({} items, {} kept)", of.name, of.on.join(", "), of.items, of.kept);
        let on: Vec<String> = self.objectives.iter().map(on).collect();
        format!("{}, {}: {}", self.backbone, self.budget, on.join("; "))
    }

    /// Returns a row for every candidate: the winner, survivors, then those that left, the last to leave first.
    pub fn table(&self) -> Vec<Vec<String>> {
        let names = self.short_names();
        let mut head = ["candidate", "removed", "speedup", "weights"].map(str::to_owned).to_vec();
        let timed = self.candidates.iter().any(|of| of.milliseconds.is_some());
        head.extend(timed.then(|| "measured".to_owned()));
        head.extend(self.objectives.iter().flat_map(|of| [of.name.clone(), "less its rival's".to_owned()]));
        head.extend(["items", "fate"].map(str::to_owned));
        let mut rows = vec![head];
        let mut order: Vec<&Candidate> = self.candidates.iter().collect();
        order.sort_by_key(|of| self.rank(of));
        for of in order {
            let mut row = vec![
                names.of(&of.cell).to_owned(),
                ranges(&of.removed),
                format!("{:.3}×", of.costs.speedup),
                bytes(of.costs.bytes),
            ];
            row.extend(timed.then(|| of.milliseconds.map_or_else(String::new, |time| format!("{time:.2} ms"))));
            for (at, objective) in self.objectives.iter().enumerate() {
                row.push(of.scores.get(at).map_or_else(|| "—".to_owned(), |score| objective.said(score)));
                row.push(of.beyond.get(at).map_or_else(|| "—".to_owned(), |of| objective.difference(of)));
            }
            row.extend([of.items.to_string(), self.fate_text(of, &names)]);
            rows.push(row);
        }
        rows
    }

    /// Returns the place of a candidate in the table.
    fn rank(&self, candidate: &Candidate) -> (usize, usize) {
        match candidate.fate {
            Fate::Survived if self.winner.as_ref() == Some(&candidate.cell) => (0, 0),
            Fate::Survived => (1, 0),
            Fate::Slow { .. } => (2, 0),
            Fate::Out { round, .. } => (3, usize::MAX - round),
            Fate::Failed { .. } => (4, 0),
        }
    }

    fn short_names(&self) -> ShortNames {
        let copies = self.candidates.iter().flat_map(|of| of.same.iter());
        let cells = self.candidates.iter().map(|of| &of.cell).chain(self.judged.iter().map(|of| &of.cell));
        ShortNames::new(&self.backbone, cells.chain(copies))
    }

    /// Returns what became of a candidate, in words.
    fn fate_text(&self, candidate: &Candidate, names: &ShortNames) -> String {
        match &candidate.fate {
            Fate::Survived if self.winner.as_ref() == Some(&candidate.cell) => "winner".to_owned(),
            Fate::Survived => "not separated from the winner".to_owned(),
            Fate::Out { round, rival, p } => format!("out after round {round}, p {p:.1e} against {}", names.of(rival)),
            Fate::Failed { reason } => format!("failed: {}", reason.lines().next().unwrap_or_default()),
            Fate::Slow { reason } => reason.clone(),
        }
    }

    /// Tabulates the evaluation on held-out items.
    pub fn judgement(&self) -> Vec<Vec<String>> {
        let mut head = ["role", "variant"].map(str::to_owned).to_vec();
        head.extend(self.objectives.iter().flat_map(|of| [of.name.clone(), "beyond the winner".to_owned()]));
        let names = self.short_names();
        let row = |of: &Judged| {
            let mut row = vec![of.role.clone(), names.of(&of.cell).to_owned()];
            for (at, objective) in self.objectives.iter().enumerate() {
                row.push(of.scores.get(at).map_or_else(String::new, |score| objective.said(score)));
                row.push(of.beyond.get(at).map_or_else(|| "—".to_owned(), |of| objective.difference(of)));
            }
            row
        };
        std::iter::once(head).chain(self.judged.iter().map(row)).collect()
    }

    /// Formats certainty and cost, one per line.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let survivors = self.survivors().count();
        lines.extend((survivors > 1).then(|| {
            format!("{} are not significantly different (α = {}).", counted(survivors, "candidate"), self.alpha)
        }));
        if self.candidates.iter().any(|of| of.items != self.candidates[0].items) {
            lines.push(
                "Scores are means over the items that each candidate saw. Compare candidates by their differences to a rival, \
                 which are means over items that both saw."
                    .to_owned(),
            );
        }
        let names = self.short_names();
        for of in self.candidates.iter().filter(|of| !of.same.is_empty()) {
            let copies: Vec<&str> = of.same.iter().map(|name| names.of(name)).collect();
            lines.push(format!("Identical to {}: {}.", names.of(&of.cell), copies.join(", ")));
        }
        lines.extend(names.without_middle().map(|(short, full)| format!("{short} is {full}.")));
        lines.extend(self.objectives.iter().zip(&self.leads).map(|(objective, lead)| objective.said_lead(lead)));
        let of = &self.spent;
        let share = |part: f64, all: f64| if all > 0.0 { 100.0 * part / all } else { 0.0 };
        lines.push(format!(
            "The race scored {:.0} of {:.0} items ({:.0} %), {:.0} of {:.0} items × layers ({:.0} %); the judgement {:.0} items ({:.0} %), {:.0} items × layers ({:.0} %).",
            of.items,
            of.all_items,
            share(of.items, of.all_items),
            of.layers,
            of.all_layers,
            share(of.layers, of.all_layers),
            of.judged_items,
            share(of.judged_items, of.all_items),
            of.judged_layers,
            share(of.judged_layers, of.all_layers),
        ));
        lines
    }

    /// Formats the report in Markdown.
    pub fn markdown(&self) -> String {
        let mut text = format!("## {}\n\n{}\n\n{}\n", self.title(), self.sentence(), markdown(&self.table()));
        if !self.judged.is_empty() {
            text += &format!("\nJudged on items that the race never saw:\n\n{}\n", markdown(&self.judgement()));
        }
        self.lines().iter().for_each(|line| text += &format!("\n{line}\n"));
        if !self.left_out.is_empty() {
            text += "\nLeft out:\n\n";
            self.left_out.iter().for_each(|of| text += &format!("- {}: {}\n", of.cell, of.reason));
        }
        text
    }
}

impl Objective {
    /// The winner's lead, in one sentence.
    fn said_lead(&self, lead: &Lead) -> String {
        format!(
            "The winner's lead over plain removal ({}): {} on the race's items, which chose it, and {} on held-out items.",
            self.name,
            self.difference(&lead.raced),
            self.difference(&lead.held_out)
        )
    }

    /// Formats a difference with its unit and interval.
    fn difference(&self, of: &Score) -> String {
        let Score { mean, half } = *of;
        let half = |decimals: usize| half.map_or_else(String::new, |half| format!(" ± {half:.decimals$}"));
        match self.name.as_str() {
            "accuracy" => format!("{mean:+.2}{} points", half(2)),
            _ => format!("{mean:+.4}{} nats", half(4)),
        }
    }
}

/// Formats `4–7, 9`.
fn ranges(layers: &[usize]) -> String {
    let runs = layers.chunk_by(|a, b| a + 1 == *b);
    let run = |run: &[usize]| match run {
        [one] => one.to_string(),
        [first, .., last] => format!("{first}–{last}"),
        [] => String::new(),
    };
    runs.map(run).collect::<Vec<_>>().join(", ")
}

fn bytes(of: u64) -> String {
    let size = of as f64;
    if size < 1e9 { format!("{:.2} MB", size / 1e6) } else { format!("{:.2} GB", size / 1e9) }
}

/// Formats rows of texts as a Markdown table with a header.
pub fn markdown(rows: &[Vec<String>]) -> String {
    let line = |row: &Vec<String>| {
        format!("| {} |", row.iter().map(|of| of.replace('|', "\\|")).collect::<Vec<_>>().join(" | "))
    };
    let mut lines: Vec<String> = rows.iter().map(line).collect();
    if let Some(head) = rows.first() {
        lines.insert(1, format!("|{}", " --- |".repeat(head.len())));
    }
    lines.join("\n")
}
