//! How a number came about, and in what that differs from the paper: only numbers of one protocol may be judged by each
//! other.

use std::collections::BTreeSet;

use super::ours::Number;
use crate::grid::{Calibration, Cell, Grid};
use crate::metric;
use crate::recovery;
use crate::report::{Protocol, stem};
use crate::tasks::Bos;

/// What a number depends on besides its condition.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Setup {
    /// What was scored; of an average, all its parts.
    pub scored: Vec<Protocol>,
    /// None for the dense backbone.
    pub calibration: Option<Calibrated>,
}

/// A calibration with what the grid says of its text.
#[derive(Debug, Clone, PartialEq)]
pub struct Calibrated {
    pub calibration: Calibration,
    pub rule: String,
    pub generated: bool,
    /// Whether something was computed for the cut.
    pub repaired: bool,
}

/// The paper's: section 4 and appendix C; windows and draws are those of its reference code.
const LENGTH: usize = 2048;
const SEQUENCES: usize = 128;
const OPERATOR_SEQUENCES: usize = 32;
/// The rule by which each of the paper's texts is cut is called like the text.
const RULES: [&str; 3] = ["wikitext2", "c4", "ptb"];

impl Calibrated {
    pub(super) fn of(grid: &Grid, cell: &Cell) -> Option<Self> {
        let calibration = cell.calibration.clone()?;
        let corpus = grid.corpora.get(&calibration.corpus);
        Some(Self {
            rule: corpus.map(|corpus| corpus.rule.clone()).unwrap_or_default(),
            generated: corpus.is_some_and(|corpus| corpus.generated),
            repaired: cell.recovery.as_ref().is_some_and(|recovery| recovery.name != recovery::NONE),
            calibration,
        })
    }

    /// `128 sequences of 2048 tokens of c4-train, operators from the first 32`
    fn line(&self) -> String {
        let Calibration { corpus, sequences, length, seed, operator_sequences } = &self.calibration;
        let generated = if self.generated { " (generated)" } else { "" };
        let seed = if *seed == 0 { String::new() } else { format!(", seed {seed}") };
        let operators = match operator_sequences == sequences {
            true => String::new(),
            false => format!(", operators from the first {operator_sequences}"),
        };
        format!("{sequences} sequences of {length} tokens of {corpus}{generated}{seed}{operators}")
    }

    /// `named` tells that the number's condition names the size, so that the paper's value has the same.
    fn other(&self, named: bool, found: &mut Vec<String>) {
        let Calibration { corpus, sequences, length, operator_sequences, .. } = &self.calibration;
        if self.generated {
            found.push(format!("calibrated on generated text ({corpus})"));
        }
        rule(corpus, &self.rule, found);
        if *sequences != SEQUENCES {
            found.push(format!("{sequences} calibration sequences, not {SEQUENCES}"));
        }
        if *length != LENGTH {
            found.push(format!("calibration sequences of {length} tokens, not {LENGTH}"));
        }
        if self.repaired && !named && *operator_sequences != OPERATOR_SEQUENCES {
            found.push(format!("operators from {operator_sequences} sequences, not {OPERATOR_SEQUENCES}"));
        }
    }
}

fn rule(corpus: &str, rule: &str, found: &mut Vec<String>) {
    let text = stem(corpus);
    if RULES.contains(&text) && rule != text {
        found.push(format!("{corpus} cut by the rule {rule}"));
    }
}

/// In what a protocol differs from the paper's.
fn other_protocol(protocol: &Protocol, found: &mut Vec<String>) {
    match protocol {
        Protocol::Windows { corpus, rule: by, length, windows, all, limit, generated } => {
            if *generated {
                found.push(format!("generated text ({corpus})"));
            }
            rule(corpus, by, found);
            if *length != LENGTH {
                found.push(format!("windows of {length} tokens, not {LENGTH}"));
            }
            match (windows.zip(*all), limit) {
                (Some((windows, all)), _) if windows == all => {}
                (Some((windows, all)), _) => found.push(format!("{windows} of {all} windows of {corpus}")),
                // Nothing was read, so that nobody knows whether the limit leaves any out.
                (None, Some(limit)) => found.push(format!("at most {limit} windows of {corpus}")),
                (None, None) => {}
            }
        }
        Protocol::MultipleChoice { label, documents, original, whole, generated, bos, max_length, .. } => {
            match (generated, whole) {
                (true, _) => found.push(format!("{label}: generated documents")),
                (_, false) if documents < original => {
                    found.push(format!("{label}: {documents} of {original} documents"));
                }
                (_, false) => found.push(format!("{label}: {documents} documents, not the published split")),
                _ => {}
            }
            if *bos != Bos::default().to_string() {
                found.push(format!("BOS {bos}"));
            }
            if let Some(length) = max_length {
                found.push(format!("inputs of at most {length} tokens"));
            }
        }
        Protocol::Average { .. } | Protocol::BitsPerByte { .. } => {}
    }
}

impl Number {
    /// In what its protocol differs from that of the paper's number; empty where it is the paper's.
    pub fn other_protocol(&self) -> Vec<String> {
        let mut found = Vec::new();
        for (average, parts, words) in
            [(&metric::ACCURACY, metric::tasks(), "tasks"), (&metric::PERPLEXITY, metric::texts(), "texts")]
        {
            let own: BTreeSet<String> = self.setup.scored.iter().map(|protocol| protocol.measures().id).collect();
            if self.metric.id == average.id && own != parts.iter().map(ToString::to_string).collect() {
                found.push(format!("a mean of {} {words}, not of the paper's {}", own.len(), parts.len()));
            }
        }
        self.setup.scored.iter().for_each(|protocol| other_protocol(protocol, &mut found));
        if let Some(calibrated) = &self.setup.calibration {
            calibrated.other(self.record.condition.calibration.contains(':'), &mut found);
        }
        let mut seen = BTreeSet::new();
        found.retain(|text| seen.insert(text.clone()));
        found
    }
}

/// How the numbers of a table were made, in one line: profile, what was scored and how much of it, calibration.
pub fn protocol_line<'a>(profile: &str, numbers: impl IntoIterator<Item = &'a Number>) -> String {
    let numbers: Vec<&Number> = numbers.into_iter().collect();
    let mut parts = Vec::new();
    if !profile.is_empty() {
        parts.push(format!("profile {profile}"));
    }
    let protocols = || numbers.iter().flat_map(|number| &number.setup.scored);
    let texts = protocols().filter(|protocol| matches!(protocol, Protocol::Windows { .. }));
    parts.extend(grouped("perplexity", texts));
    let tasks = protocols().filter(|protocol| matches!(protocol, Protocol::MultipleChoice { .. }));
    parts.extend(grouped("accuracy", tasks));
    let mut calibrations: Vec<String> = Vec::new();
    for line in numbers.iter().filter_map(|number| number.setup.calibration.as_ref()).map(Calibrated::line) {
        if !calibrations.contains(&line) {
            calibrations.push(line);
        }
    }
    if !calibrations.is_empty() {
        parts.push(format!("calibration: {}", calibrations.join(", or ")));
    }
    parts.join("; ")
}

/// What is made in the same way is said once: `perplexity: wikitext2, c4: all windows of 2048 tokens`.
fn grouped<'a>(what: &str, protocols: impl Iterator<Item = &'a Protocol>) -> Option<String> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for protocol in protocols {
        let (name, how) = (protocol.name().to_owned(), protocol.short());
        match groups.iter_mut().find(|(known, _)| *known == how) {
            Some((_, names)) if names.contains(&name) => {}
            Some((_, names)) => names.push(name),
            None => groups.push((how, vec![name])),
        }
    }
    let line = |(how, names): &(String, Vec<String>)| format!("{}: {how}", names.join(", "));
    (!groups.is_empty()).then(|| format!("{what} on {}", groups.iter().map(line).collect::<Vec<_>>().join("; ")))
}
