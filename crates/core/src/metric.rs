//! The registry of metrics: what each kind of number is called, in what unit, which way is better, how it is printed and
//! how near another value has to be. Nothing else of the program knows a metric by its name.
//!
//! An id is a word (`acc_average`), the name of a task (`race_v2`), or a family with its member (`ppl_c4`,
//! `prefill_ms:seq=512:batch=1`). A task that a grid calls by a name of its own is an accuracy too ([`Metric::task`]).

use crate::error::{Error, Result, nearest};
use crate::style::{Dash, Hue, Marker, Style};
use crate::tasks::TASKS;

/// Which way a metric is better.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Direction {
    Higher,
    Lower,
    /// A share of something of which neither much nor little is good.
    Neither,
}

/// What one of it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Unit {
    Percent,
    /// A share of one.
    Share,
    Milliseconds,
    /// Millions of bytes.
    Megabytes,
    /// How many times as fast.
    Times,
    Bits,
    /// A bare number: perplexities, errors, ratios.
    One,
}

/// How it is measured whether two values are near each other.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Nearness {
    /// By their difference.
    Difference,
    /// By their difference as a part of the reference.
    Relative,
}

/// One kind of number.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Metric {
    pub id: String,
    /// A column's head.
    pub label: String,
    pub unit: Unit,
    pub direction: Direction,
    /// Digits after the point, where a table does not say otherwise.
    pub decimals: usize,
    pub nearness: Nearness,
}

/// What an entry says besides its id.
#[derive(Debug, Clone, Copy)]
struct Kind {
    unit: Unit,
    direction: Direction,
    decimals: usize,
    nearness: Nearness,
}

const PERCENT: Kind =
    Kind { unit: Unit::Percent, direction: Direction::Higher, decimals: 2, nearness: Nearness::Difference };
const PER_TOKEN: Kind =
    Kind { unit: Unit::One, direction: Direction::Lower, decimals: 2, nearness: Nearness::Relative };
const PER_BYTE: Kind = Kind { unit: Unit::Bits, decimals: 4, ..PER_TOKEN };
const ERROR: Kind = Kind { decimals: 4, ..PER_TOKEN };
const SHARE: Kind =
    Kind { unit: Unit::Share, direction: Direction::Neither, decimals: 4, nearness: Nearness::Difference };
const TIME: Kind = Kind { unit: Unit::Milliseconds, decimals: 1, ..PER_TOKEN };
const TIMES: Kind = Kind { unit: Unit::Times, direction: Direction::Higher, ..PER_TOKEN };
const MEMORY_SHARE: Kind = Kind { direction: Direction::Lower, decimals: 1, ..PERCENT };
const SIZE: Kind = Kind { unit: Unit::Megabytes, decimals: 1, ..PER_TOKEN };

/// A metric that is one word and no task.
#[derive(Debug)]
pub struct MetricEntry {
    pub id: &'static str,
    label: &'static str,
    kind: Kind,
    style: Option<Style>,
}

impl MetricEntry {
    const fn new(id: &'static str, label: &'static str, kind: Kind) -> Self {
        Self { id, label, kind, style: None }
    }

    /// The same with a look of its own, where figures draw metrics side by side.
    const fn style(mut self, hue: Hue, marker: Marker, dash: Dash) -> Self {
        self.style = Some(Style::new(hue, marker, dash));
        self
    }

    pub fn metric(&self) -> Metric {
        Metric::new(self.id, self.label, self.kind)
    }
}

/// The mean of the tasks.
pub static ACCURACY: MetricEntry = MetricEntry::new("acc_average", "ACC AVG", PERCENT);
/// The mean of the texts.
pub static PERPLEXITY: MetricEntry = MetricEntry::new("ppl_average", "PPL AVG", PER_TOKEN);
pub static BOUNDARY_ERROR: MetricEntry = MetricEntry::new("boundary_mae", "Boundary MAE", ERROR);
pub static CHANNEL_ERROR: MetricEntry = MetricEntry::new("channel_mae_median", "Channel MAE, median", ERROR);
/// Channels with less error than without a repair, of all.
pub static CHANNELS_REDUCED: MetricEntry = MetricEntry::new(
    "channels_reduced_share",
    "Channels with less error",
    Kind { direction: Direction::Higher, ..SHARE },
);
pub static SYMMETRIC: MetricEntry =
    MetricEntry::new("m_symmetric_share", "Symmetric part", SHARE).style(Hue::Teal, Marker::Square, Dash::Solid);
pub static ANTISYMMETRIC: MetricEntry = MetricEntry::new("m_antisymmetric_share", "Anti-symmetric part", SHARE).style(
    Hue::Plum,
    Marker::Diamond,
    Dash::Dashed,
);
/// The high-water mark of tensors in a pass over a prompt, of the dense backbone's.
pub static MEMORY: MetricEntry = MetricEntry::new("peak_memory_percent", "Memory (%)", MEMORY_SHARE);
/// The same in bytes.
pub static MEMORY_SIZE: MetricEntry = MetricEntry::new("peak_memory_mb", "Memory (MB)", SIZE);
/// The time of a pass over a prompt.
pub static PREFILL: MetricEntry = MetricEntry::new("prefill_ms", "Prefill (ms)", TIME);
/// The dense backbone's time over the own.
pub static SPEEDUP: MetricEntry = MetricEntry::new("speedup", "Speedup (×)", TIMES);
/// What is known of one timed prompt.
static OF_PROMPTS: [&MetricEntry; 4] = [&MEMORY, &MEMORY_SIZE, &PREFILL, &SPEEDUP];
/// The texts of the paper's tables, in the order of its columns.
static TEXTS: [MetricEntry; 3] = [
    MetricEntry::new("ppl_wikitext2", "WIKI", PER_TOKEN),
    MetricEntry::new("ppl_c4", "C4", PER_TOKEN),
    MetricEntry::new("ppl_ptb", "PTB", PER_TOKEN),
];

fn all() -> impl Iterator<Item = &'static MetricEntry> {
    let others =
        [&ACCURACY, &PERPLEXITY, &BOUNDARY_ERROR, &CHANNEL_ERROR, &CHANNELS_REDUCED, &SYMMETRIC, &ANTISYMMETRIC];
    TEXTS.iter().chain(others).chain(OF_PROMPTS.iter().copied())
}

/// The families of metrics, with what stands between the family and the member.
static FAMILIES: &[(&str, char, Kind)] = &[("ppl", '_', PER_TOKEN), ("bpb", '_', PER_BYTE)];

impl Metric {
    fn new(id: &str, label: &str, kind: Kind) -> Self {
        let Kind { unit, direction, decimals, nearness } = kind;
        Self { id: id.to_owned(), label: label.to_owned(), unit, direction, decimals, nearness }
    }

    /// The metric of an id.
    ///
    /// # Errors
    /// An unknown id, with the known ones and the nearest.
    pub fn find(id: &str) -> Result<Self> {
        if let Some(word) = all().find(|word| word.id == id) {
            return Ok(word.metric());
        }
        if TASKS.iter().any(|task| task.name == id) {
            return Ok(Self::task(id));
        }
        if let Some(metric) = Self::of_prompt(id) {
            return Ok(metric);
        }
        let member = |(family, sign, kind): &(&str, char, Kind)| {
            let member = id.strip_prefix(family)?.strip_prefix(*sign).filter(|member| !member.is_empty())?;
            // One text has one head, whatever is measured on it.
            Some(Self::new(id, member, *kind))
        };
        FAMILIES.iter().find_map(member).ok_or_else(|| {
            let known = Self::words();
            let error = Error::bad_input(format!("unknown metric `{id}`"))
                .expected(format!("one of {}, or `ppl_` and the name of a text", known.join(", ")))
                .found(format!("`{id}`"));
            match nearest(id, known) {
                Some(near) => error.hint(format!("did you mean `{near}`?")),
                None => error,
            }
        })
    }

    /// `prefill_ms:seq=512:batch=1` and its like, headed `512×1`.
    fn of_prompt(id: &str) -> Option<Self> {
        let (family, member) = id.split_once(':')?;
        let word = OF_PROMPTS.iter().find(|word| word.id == family)?;
        let (length, batch) = member.strip_prefix("seq=")?.split_once(":batch=")?;
        let counts = [length, batch].iter().all(|count| count.parse::<usize>().is_ok());
        counts.then(|| Self::new(id, &format!("{length}×{batch}"), word.kind))
    }

    /// The tokens of a sequence and the sequences of the prompt that it is measured on, where the id names them.
    pub fn prompt(&self) -> Option<(usize, usize)> {
        let (_, member) = self.id.split_once(':')?;
        let (length, batch) = member.strip_prefix("seq=")?.split_once(":batch=")?;
        Some((length.parse().ok()?, batch.parse().ok()?))
    }

    /// The metric of an id whatever the prompt; of one that names none it is the metric itself.
    pub fn whatever_prompt(&self) -> Self {
        OF_PROMPTS.iter().find(|word| word.id == self.family()).map_or_else(|| self.clone(), |word| word.metric())
    }

    /// The same metric of one of several prompts, each of `batch` sequences of `length` tokens.
    pub fn at_prompt(&self, length: usize, batch: usize) -> Self {
        let id = format!("{}:seq={length}:batch={batch}", self.id);
        Self { id, label: format!("{length}×{batch}"), ..self.clone() }
    }

    /// Whether it tells of a pass over a prompt: what such a number is depends on the machine.
    pub fn is_latency(&self) -> bool {
        OF_PROMPTS.iter().any(|word| self.family() == word.id)
    }

    /// The id without its prompt.
    pub fn family(&self) -> &str {
        self.id.split_once(':').map_or(&self.id, |(family, _)| family)
    }

    /// The ids that are one word.
    pub fn words() -> Vec<&'static str> {
        TASKS.iter().map(|task| task.name).chain(all().map(|word| word.id)).collect()
    }

    /// The accuracy on a task that a grid calls `name`, be it a known one or the grid's own name for one.
    pub fn task(name: &str) -> Self {
        let known = TASKS.iter().find(|task| task.name == name);
        Self::new(name, known.map_or(name, |task| task.label), PERCENT)
    }

    /// What a perplexity of this id is taken over: a text, or the average of all. None of another metric's id.
    pub fn text_of(id: &str) -> Option<&str> {
        id.strip_prefix("ppl_")
    }

    /// The perplexity on a text that a grid calls `name`.
    pub fn perplexity(name: &str) -> Self {
        let id = format!("ppl_{name}");
        match Self::find(&id) {
            Ok(metric) => metric,
            Err(_) => Self::new(&id, name, PER_TOKEN),
        }
    }

    /// The bits per byte of a text: a perplexity that backbones with unlike vocabularies can be compared by.
    pub fn bits_per_byte(name: &str) -> Self {
        Self::new(&format!("bpb_{name}"), &format!("{} (bits/byte)", Self::perplexity(name).label), PER_BYTE)
    }

    /// A value as a table prints it, with so many digits after the point.
    pub fn print(value: f64, decimals: usize) -> String {
        // A variant that collapsed may have a perplexity of twenty digits, which nobody counts.
        if value.is_finite() && value.abs() >= 1e7 { format!("{value:.2e}") } else { format!("{value:.decimals$}") }
    }

    /// What a reader sees of a value: two that print alike are alike.
    pub fn printed(value: f64, decimals: usize) -> f64 {
        Self::print(value, decimals).parse().unwrap_or(value)
    }

    /// Whether `one` is better than `other`, as far as both are better or worse at all.
    pub fn better(&self, one: f64, other: f64) -> bool {
        match self.direction {
            Direction::Higher => one > other,
            Direction::Lower => one < other,
            Direction::Neither => false,
        }
    }

    /// The value signed so that less is better; none where neither direction is.
    pub fn cost(&self, value: f64) -> Option<f64> {
        match self.direction {
            Direction::Higher => Some(-value),
            Direction::Lower => Some(value),
            Direction::Neither => None,
        }
    }
}

/// How a metric looks that figures draw beside others.
pub fn style(id: &str) -> Option<Style> {
    all().find(|word| word.id == id)?.style
}

/// The tasks behind the paper's average, in the order of its columns.
pub fn tasks() -> Vec<&'static str> {
    TASKS.iter().filter(|task| task.in_paper).map(|task| task.name).collect()
}

/// The texts behind the paper's average, in the order of its columns.
pub fn texts() -> Vec<&'static str> {
    TEXTS.iter().map(|word| word.id).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_metric_knows_which_way_is_better() {
        let direction = |id| Metric::find(id).unwrap().direction;
        for task in TASKS {
            assert_eq!(direction(task.name), Direction::Higher, "{}", task.name);
        }
        for id in [ACCURACY.id, "race_v2", "speedup", "channels_reduced_share"] {
            assert_eq!(direction(id), Direction::Higher, "{id}");
        }
        for id in
            ["ppl_c4", "ppl_of-mine", "bpb_c4", "boundary_mae", "prefill_ms:seq=512:batch=1", "peak_memory_percent"]
        {
            assert_eq!(direction(id), Direction::Lower, "{id}");
        }
        assert_eq!(direction("m_symmetric_share"), Direction::Neither);
    }

    #[test]
    fn a_task_of_any_name_is_an_accuracy() {
        let mine = Metric::task("my-questions");
        assert_eq!(
            (mine.label.as_str(), mine.direction, mine.unit),
            ("my-questions", Direction::Higher, Unit::Percent)
        );
        assert_eq!(Metric::task("hellaswag").label, "HellaS");
    }

    #[test]
    fn a_misspelt_metric_is_refused_with_the_nearest() {
        let message = Metric::find("acc_avarage").unwrap_err().to_string();
        assert!(message.contains("did you mean `acc_average`?"), "{message}");
        assert!(Metric::find("arc_easy:seq=1:batch=1").is_err(), "only latencies have parts after a colon");
        assert!(Metric::find("speedup:seq=many:batch=1").is_err());
        assert!(Metric::find("ppl_").is_err());
    }

    #[test]
    fn a_metric_of_one_prompt_is_the_metric_under_the_prompts_name() {
        let found = Metric::find("speedup:seq=512:batch=16").unwrap();
        assert_eq!(found, SPEEDUP.metric().at_prompt(512, 16));
        assert_eq!((found.label.as_str(), found.unit, found.family()), ("512×16", Unit::Times, "speedup"));
        assert_eq!((found.prompt(), SPEEDUP.metric().prompt()), (Some((512, 16)), None));
        assert_eq!(found.whatever_prompt(), SPEEDUP.metric());
        assert!(found.is_latency() && MEMORY_SIZE.metric().is_latency() && !ACCURACY.metric().is_latency());
    }

    #[test]
    fn the_papers_columns_stand_in_its_order() {
        assert_eq!(tasks().len(), 9);
        assert_eq!((tasks()[0], tasks()[8]), ("arc_easy", "race"));
        assert_eq!(texts(), ["ppl_wikitext2", "ppl_c4", "ppl_ptb"]);
    }

    #[test]
    fn what_prints_alike_is_alike() {
        assert_eq!(Metric::printed(73.333_333_333_333_33, 2), Metric::printed(73.333_333_333_333_31, 2));
        assert_eq!(Metric::printed(2.9, 2), Metric::printed(2.900_000_015, 2));
        assert!(Metric::printed(2.90, 2) < Metric::printed(2.91, 2));
        assert_eq!(Metric::printed(2.51e7, 2), 2.51e7);
    }
}
