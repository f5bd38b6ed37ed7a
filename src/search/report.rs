//! A search's tables, as rows of texts, and what it cost in words.

use super::{Candidate, Fate, Found, Judged, Objective, Score};

impl Found {
    /// What it is: backbone, budget, what it raced on.
    pub fn title(&self) -> String {
        let on = |of: &Objective| format!("{} on {} ({} items, {} kept)", of.name, of.on.join(", "), of.items, of.kept);
        let on: Vec<String> = self.objectives.iter().map(on).collect();
        format!("{}, {}: {}", self.backbone, self.budget, on.join("; "))
    }

    /// Every candidate: survivors, then those that left, the last to leave first.
    pub fn table(&self) -> Vec<Vec<String>> {
        let mut head = ["candidate", "removed", "speedup", "weights"].map(str::to_owned).to_vec();
        let timed = self.candidates.iter().any(|of| of.milliseconds.is_some());
        head.extend(timed.then(|| "measured".to_owned()));
        head.extend(self.objectives.iter().map(|of| of.name.clone()));
        head.extend(["items", "fate"].map(str::to_owned));
        let mut rows = vec![head];
        let mut order: Vec<&Candidate> = self.candidates.iter().collect();
        let left = |of: &Candidate| match of.fate {
            Fate::Survived => (0, 0),
            Fate::Slow { .. } => (1, 0),
            Fate::Out { round, .. } => (2, usize::MAX - round),
            Fate::Failed { .. } => (3, 0),
        };
        order.sort_by_key(|of| left(of));
        for of in order {
            let same = if of.same.is_empty() { String::new() } else { format!(" (= {})", of.same.join(", ")) };
            let mut row = vec![
                format!("{}{same}", of.cell),
                ranges(&of.removed),
                format!("{:.3}×", of.costs.speedup),
                bytes(of.costs.bytes),
            ];
            row.extend(timed.then(|| of.milliseconds.map_or_else(String::new, |time| format!("{time:.2} ms"))));
            let scored = self.objectives.iter().enumerate();
            row.extend(scored.map(|(at, objective)| {
                of.scores.get(at).map_or_else(|| "—".to_owned(), |score| objective.said(score))
            }));
            row.extend([of.items.to_string(), said(of)]);
            rows.push(row);
        }
        rows
    }

    /// The judgement, on items that the race never saw.
    pub fn judgement(&self) -> Vec<Vec<String>> {
        let mut head = ["role", "variant"].map(str::to_owned).to_vec();
        head.extend(self.objectives.iter().flat_map(|of| [of.name.clone(), "beyond the winner".to_owned()]));
        let row = |of: &Judged| {
            let mut row = vec![of.role.clone(), of.cell.clone()];
            for (at, objective) in self.objectives.iter().enumerate() {
                row.push(of.scores.get(at).map_or_else(String::new, |score| objective.said(score)));
                row.push(of.beyond.get(at).map_or_else(|| "—".to_owned(), |of| objective.difference(of)));
            }
            row
        };
        std::iter::once(head).chain(self.judged.iter().map(row)).collect()
    }

    /// How sure and how dear, a line each.
    pub fn lines(&self) -> Vec<String> {
        let mut lines = Vec::new();
        let survivors = self.survivors().count();
        lines
            .extend((survivors > 1).then(|| {
                format!("Not separated at {}: {survivors} candidates. Their order says nothing.", self.alpha)
            }));
        if self.candidates.iter().any(|of| of.items != self.candidates[0].items) {
            lines.push(
                "Scores are of the items that each saw: those of unlike numbers of items are told apart by p alone."
                    .to_owned(),
            );
        }
        for (objective, gap) in self.objectives.iter().zip(&self.winners_curse) {
            let gap =
                if objective.name == "accuracy" { format!("{gap:+.2} points") } else { format!("{gap:+.4} nats") };
            lines.push(format!("Winner's curse ({}): {gap} better in the race than in the judgement.", objective.name));
        }
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

    /// The whole report, in Markdown.
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
    /// A difference, with its unit and interval.
    fn difference(&self, of: &Score) -> String {
        let Score { mean, half } = *of;
        let half = |decimals: usize| half.map_or_else(String::new, |half| format!(" ± {half:.decimals$}"));
        match self.name.as_str() {
            "accuracy" => format!("{mean:+.2}{} points", half(2)),
            _ => format!("{mean:+.4}{} nats", half(4)),
        }
    }
}

/// What became of a candidate, in words.
fn said(of: &Candidate) -> String {
    match &of.fate {
        Fate::Survived => "not separated".to_owned(),
        Fate::Out { round, rival, p } => format!("out after round {round}, p {p:.1e} against {rival}"),
        Fate::Failed { reason } => format!("failed: {}", reason.lines().next().unwrap_or_default()),
        Fate::Slow { reason } => reason.clone(),
    }
}

/// `4–7, 9`
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

/// Rows of texts, the first of them heads, in Markdown.
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
