//! Layer 3: selects the cells of a grid to score next under a budget, and when to stop (design §21). It neither runs
//! cells itself nor reads the paper's values, and prints nothing.
//!
//! | file | noun |
//! | --- | --- |
//! | `candidates` | which cells meet the budget; one of them on its way |
//! | `laboratory` | what a search works with: who runs grids, the grids that measure times, what is raced on and how many items a round sees |
//! | `race` | who leaves after a round |
//! | `program_path` | what candidates share, and so what a round costs |
//! | `course` | a search from its candidates to its end; what is scored on items that the race never saw |
//! | `lead` | differences on items that two variants both saw: of a candidate to its rival, of the winner to plain removal |
//! | `short_name` | candidates' names as its tables print them |
//! | `report` | its tables as rows of texts, and what it cost in words |
//!
//! Cost of a variant by the cost model, and the result of a search: plain data for the screen, its files and a model
//! card.

mod candidates;
mod course;
mod laboratory;
mod lead;
mod program_path;
mod race;
mod report;
mod short_name;

pub use candidates::{depths, parts};
pub use course::search;
pub use laboratory::{FIRST_DOCUMENTS, FIRST_WINDOWS, JUDGED, Laboratory, Schedule, judged, took};
pub use program_path::{layers, path};
pub use race::{Exit, Verdict, front, judge, mean_of_means};
pub use report::markdown;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::criterion::{Depth, DepthUnit};
use crate::error::Result;
use crate::grid::{Budget, Cell, Latency};
use crate::latency::{Prompt, decode_work};
use crate::model::{Config, Cut, EngineChoice, Load, Operator, Program, Repairs, Trie};
use crate::quantity::counted;

/// A search and its judgement.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Found {
    /// The backbone's name.
    pub backbone: String,
    /// Its layers.
    pub layers: usize,
    /// The budget, as `--budget` has it.
    pub budget: String,
    /// The chance of any false exit that was asked for.
    pub alpha: f64,
    /// Seed for the order of items.
    pub seed: u64,
    /// The prompt that speed is counted over: `512×1`.
    pub prompt: String,
    /// Objectives; with two, a candidate is eliminated only if one rival is better in both.
    pub objectives: Vec<Objective>,
    /// Round by round.
    pub rounds: Vec<Round>,
    /// The candidates, survivors first, each group in grid order.
    pub candidates: Vec<Candidate>,
    /// Cells that did not race, and why.
    pub left_out: Vec<LeftOut>,
    /// The candidate that led at the end; null where none meets the budget.
    pub winner: Option<String>,
    /// Scores on items that the elimination rounds never used.
    pub judged: Vec<Judged>,
    /// Indexed by objective: how much better the winner is than plain removal of its layers; empty where it is plain removal.
    pub leads: Vec<Lead>,
    /// Its cost.
    pub spent: Spent,
}

/// An objective of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Objective {
    /// `accuracy` in percent, or `loss` in nats per token.
    pub name: String,
    /// Its tasks or texts, which weigh the same.
    pub on: Vec<String>,
    /// Items that the race could use.
    pub items: usize,
    /// Items that were kept for the judgement.
    pub kept: usize,
}

/// A round.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Round {
    /// Items that a survivor had seen at its end.
    pub items: usize,
    /// Candidates that raced in it.
    pub alive: usize,
    /// Candidates that left after it.
    pub left: usize,
}

/// A candidate and what became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Candidate {
    /// Its cell's name.
    pub cell: String,
    /// The criterion that chose its layers.
    pub criterion: String,
    /// The recovery at the cut.
    pub recovery: String,
    /// The text that both are computed from.
    pub calibration: String,
    /// The removed layers by number, counted from 0, and the removed sublayers by name.
    pub removed: Cut,
    /// Cells that are the same, number for number.
    pub same: Vec<String>,
    /// Estimated by the cost model.
    #[serde(flatten)]
    pub costs: Costs,
    /// Measured milliseconds over the prompt; null if not measured.
    pub milliseconds: Option<f64>,
    /// Its scores in the race, by objective.
    pub scores: Vec<Score>,
    /// Less the scores of the rival that beat it, of a survivor those of the winner, on the items that both saw, by objective;
    /// empty of the winner.
    pub beyond: Vec<Score>,
    /// Items that it saw.
    pub items: usize,
    /// Result for this candidate.
    pub fate: Fate,
}

/// A mean of means with its interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Score {
    /// Percent, or nats per token.
    pub mean: f64,
    /// Half of the 95 % interval; null of too few items.
    pub half: Option<f64>,
}

/// The winner's score less plain removal's, signed so that more is better, in the objective's unit.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lead {
    /// On the items of the race. They chose the winner, so this lead is too large in the mean.
    pub raced: Score,
    /// On held-out items.
    pub held_out: Score,
}

/// Result for a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum Fate {
    /// This is not distinguishable from the other survivors.
    Survived,
    /// A rival is better.
    Out {
        /// After which round, from 1.
        round: usize,
        /// The rival's cell.
        rival: String,
        /// Two-sided, before Holm's correction.
        p: f64,
    },
    /// This has no scores.
    Failed {
        /// Why.
        reason: String,
    },
    /// This survived, but its measured time exceeds the budget.
    Slow {
        /// The measured time.
        reason: String,
    },
}

/// A cell that did not race.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct LeftOut {
    /// Its name.
    pub cell: String,
    /// Why.
    pub reason: String,
}

impl LeftOut {
    fn new(cell: &Cell, reason: String) -> Self {
        Self { cell: cell.name.clone(), reason }
    }
}

/// A variant on items that the race never saw.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Judged {
    /// `winner`, `runner-up`, `plain` (the winner's layers removed and nothing else) or `dense`.
    pub role: String,
    /// Its cell.
    pub cell: String,
    /// Indexed by objective.
    pub scores: Vec<Score>,
    /// Less the winner's on the same items, by objective; empty of the winner.
    pub beyond: Vec<Score>,
}

/// Cost of a search, and of scoring all candidates on all items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Spent {
    /// Items that were scored, counted for each candidate.
    pub items: f64,
    /// For the exhaustive grid.
    pub all_items: f64,
    /// Items × layers, what candidates share counted once.
    pub layers: f64,
    /// For the exhaustive grid.
    pub all_layers: f64,
    /// Same as above for the final judgement, which the other two exclude.
    pub judged_items: f64,
    /// Items × layers.
    pub judged_layers: f64,
}

impl Found {
    pub fn survivors(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter().filter(|candidate| candidate.fate == Fate::Survived)
    }

    /// Formats the result in one sentence.
    pub fn sentence(&self) -> String {
        let Some(winner) = &self.winner else {
            let slow = self.candidates.iter().find_map(|candidate| match &candidate.fate {
                Fate::Slow { reason } => Some((candidate, reason)),
                _ => None,
            });
            // Eliminated candidates are not timed, so a deeper cut is the remaining option.
            let nearest = slow.map_or_else(String::new, |(candidate, reason)| {
                let hint = match candidate.removed.is_whole_layers() {
                    true => {
                        let more = candidate.removed.whole_layers().len() + 1;
                        format!("; `layers={more}` in the budget instead removes one layer more")
                    }
                    false => String::new(),
                };
                format!(": {} {reason}{hint}", candidate.cell)
            });
            return format!("No candidate meets {} when it is measured{nearest}.", self.budget);
        };
        let survivors = self.survivors().count();
        let judged = self
            .judged("winner")
            .map_or_else(String::new, |role| format!(": {} on items it never saw", self.scores_text(role)));
        let references = [("dense", "dense"), ("plain", "plain removal")].into_iter();
        let references = references
            .filter_map(|(role_name, label)| Some(format!("{label} {}", self.scores_text(self.judged(role_name)?))));
        let references: Vec<String> = references.collect();
        let references = if references.is_empty() { String::new() } else { format!(" ({})", references.join(", ")) };
        let sure = match survivors {
            1 => format!("alone of {}", counted(self.candidates.len(), "candidate")),
            _ => format!("not separated from {} other{}", survivors - 1, if survivors == 2 { "" } else { "s" }),
        };
        format!("{winner}, {sure}{judged}{references}.")
    }

    fn judged(&self, role: &str) -> Option<&Judged> {
        self.judged.iter().find(|entry| entry.role == role)
    }

    fn scores_text(&self, judged: &Judged) -> String {
        let each = judged.scores.iter().zip(&self.objectives).map(|(score, objective)| objective.said(score));
        each.collect::<Vec<_>>().join(" and ")
    }
}

impl Objective {
    /// Formats a score with its unit: `71.2 ± 1.4 %`, `perplexity 12.3 (12.1 to 12.5)`.
    pub fn said(&self, score: &Score) -> String {
        let Score { mean, half } = *score;
        match (self.name.as_str(), half) {
            ("accuracy", Some(half)) => format!("{mean:.2} ± {half:.2} %"),
            ("accuracy", None) => format!("{mean:.2} %"),
            (_, Some(half)) => {
                format!("perplexity {:.2} ({:.2} to {:.2})", mean.exp(), (mean - half).exp(), (mean + half).exp())
            }
            (_, None) => format!("perplexity {:.2}", mean.exp()),
        }
    }
}

/// Costs of a variant by the cost model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Costs {
    /// Operations of the dense backbone over the prompt, and for what is decoded behind it, divided by the variant's.
    pub speedup: f64,
    /// Bytes of the weights that it needs, its operators among them.
    pub bytes: u64,
    /// Share of the dense backbone's parameters that it stores, its operators among them; only where the budget bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<f64>,
    /// Share of the dense backbone's KV cache that it needs; only where the budget bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<f64>,
}

impl Costs {
    /// Measures a program as it is deployed.
    pub fn of(program: &Program, config: &Config, engine: EngineChoice, prompt: Latency) -> Self {
        let load = Load::windows(prompt.length * prompt.batch, prompt.length);
        let new = prompt.decode;
        let read = Prompt { length: prompt.length, batch: prompt.batch };
        let flops = |program: &Program| {
            let flops = Trie::new(std::slice::from_ref(program)).flops(config, &load).separate;
            flops + new.map_or(0.0, |new| decode_work(config, program, read, new))
        };
        let dense = Program::dense(config.layers);
        Self {
            speedup: flops(&dense) / flops(program),
            bytes: engine.needed_bytes(config, program),
            params: Some(config.parameters(program) as f64 / config.parameters(&dense) as f64),
            kv_cache: Some(config.cache_bytes(program) as f64 / config.cache_bytes(&dense) as f64),
        }
    }

    /// Returns the costs with those shares that a budget bounds.
    pub(crate) fn bounded_by(self, budget: &Budget) -> Self {
        Self {
            params: self.params.filter(|_| budget.params.is_some()),
            kv_cache: self.kv_cache.filter(|_| budget.kv_cache.is_some()),
            ..self
        }
    }

    /// Describes what a program misses of a budget; `dense` are the dense backbone's milliseconds, if known.
    pub fn misses(&self, budget: &Budget, dense: Option<f64>) -> Option<String> {
        let slow = budget.speedup.filter(|wanted| self.speedup < *wanted);
        let slow = slow.map(|wanted| format!("{:.3} times as fast by the cost model, not {wanted}", self.speedup));
        let late = budget.latency.zip(dense).map(|(most, dense)| (most, dense / self.speedup));
        let late = late.filter(|(most, time)| time > most);
        let late = late.map(|(most, time)| format!("{time:.2} ms by the cost model, not {most}"));
        let large = budget.memory.filter(|most| self.bytes > *most);
        let large =
            large.map(|most| format!("{:.2} MB of weights, not {:.2}", in_megabytes(self.bytes), in_megabytes(most)));
        let shares =
            [(self.params, budget.params, "of the parameters"), (self.kv_cache, budget.kv_cache, "of the KV cache")];
        let over = shares.into_iter().find_map(|(share, most, what)| {
            let (share, most) = share.zip(most).filter(|(share, most)| share > most)?;
            Some(format!("{share:.3} {what}, not {most}"))
        });
        slow.or(late).or(large).or(over)
    }
}

/// Estimates costs of depths, before a criterion selects.
pub(crate) struct CostModel<'a> {
    config: &'a Config,
    engine: EngineChoice,
    prompt: Latency,
    /// An affine map of the stream, whose numbers do not matter.
    map: Arc<Operator>,
}

impl<'a> CostModel<'a> {
    /// Creates the model of a backbone.
    ///
    /// # Errors
    /// An operator that cannot be allocated.
    pub(crate) fn new(config: &'a Config, engine: EngineChoice, prompt: Latency) -> Result<Self> {
        let channels = config.hidden;
        let map = Operator::affine(channels, vec![0.0; channels * channels], vec![0.0; channels])?;
        Ok(Self { config, engine, prompt, map })
    }

    /// Returns what a depth may come to: whole layers and MLPs at any position; attentions, plain and with affine maps in
    /// their place; of sublayers of both kinds, as many attentions as there are, or as many MLPs.
    pub(crate) fn estimates(&self, depth: Depth) -> Vec<Costs> {
        let layers = self.config.layers;
        let cut = depth.middle(layers);
        let programs = match depth.unit {
            DepthUnit::Layers | DepthUnit::Mlp => vec![Program::without(layers, &cut)],
            DepthUnit::Attention => {
                let sublayers = cut.iter().map(|sublayer| (sublayer, Arc::clone(&self.map))).collect();
                let repairs = Repairs { sublayers, ..Repairs::default() };
                vec![Program::without(layers, &cut), Program::repaired(layers, &cut, &repairs)]
            }
            DepthUnit::Sublayers => {
                let candidates = depth.unit.candidates(layers);
                let attentions_first = candidates.iter().copied().take(depth.count).collect();
                let mlps_first = candidates.iter().rev().copied().take(depth.count).collect();
                [attentions_first, mlps_first].map(|cut| Program::without(layers, &cut)).to_vec()
            }
        };
        programs.iter().map(|program| Costs::of(program, self.config, self.engine, self.prompt)).collect()
    }
}

fn in_megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
