//! Search of a grid for the best cell that meets a budget (layer 3 of the architecture, docs/design.md §21).
//!
//! A search is a race: each round scores the candidates on more items (documents of tasks, windows of texts) and
//! eliminates those that are significantly worse. The caller runs the cells. This module does not read the paper's
//! values and prints nothing.
//!
//! | file | contents |
//! | --- | --- |
//! | `candidates` | cells that meet the budget, and their state during the search |
//! | `env` | environment: the function that runs grids, timing grids, objectives with their items, schedule of rounds |
//! | `race` | elimination of candidates after a round |
//! | `program_path` | programs of candidates, by which layer evaluations are counted |
//! | `racing` | main procedure of a search, and the evaluation on held-out items |
//! | `score_difference` | score differences between two cells on common items |
//! | `short_name` | short candidate names for tables |
//! | `search_summary` | tables and text about a search |
//!
//! This file defines the serialized outcome of a search and the cost model for pruned backbones.

mod candidates;
mod env;
mod program_path;
mod race;
mod racing;
mod score_difference;
mod search_summary;
mod short_name;

pub use candidates::{depths, split_searches};
pub use env::{
    FIRST_DOCUMENTS, FIRST_WINDOWS, HELD_OUT_FRACTION, Schedule, SearchEnv, held_out_items, measured_latency,
};
pub use program_path::{build_program, count_layers};
pub use race::{Elimination, Verdict, eliminate, mean_of_means, pareto_front};
pub use racing::search;
pub use search_summary::markdown;

use std::sync::Arc;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use crate::criterion::{Depth, DepthUnit};
use crate::error::Result;
use crate::grid::{Budget, Cell, Latency};
use crate::latency::{Prompt, decode_work};
use crate::model::{Config, Cut, EngineChoice, Load, Operator, Program, Repairs, Trie};
use crate::quantity::pluralize;

/// Outcome of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchOutcome {
    /// Name of the backbone.
    pub backbone: String,
    /// Number of layers of the backbone.
    pub layers: usize,
    /// Budget in the syntax of `--budget`.
    pub budget: String,
    /// Requested family-wise error rate of the eliminations.
    pub alpha: f64,
    /// Seed for the order of items.
    pub seed: u64,
    /// Prompt for latency and speedup, such as `512×1`.
    pub prompt: String,
    /// Objectives. If there are two, a candidate is eliminated only if a single rival is better in both.
    pub objectives: Vec<Objective>,
    /// Rounds, in order.
    pub rounds: Vec<Round>,
    /// Candidates. The survivors come first, and each group is in grid order.
    pub candidates: Vec<Candidate>,
    /// Cells that were not candidates, with reasons.
    pub left_out: Vec<ExcludedCell>,
    /// Cell name of the best candidate; null if none meets the budget.
    pub winner: Option<String>,
    /// Scores on items that the elimination rounds never used.
    #[serde(rename = "judged")]
    pub held_out_scores: Vec<HeldOutScore>,
    /// Lead of the winner over plain removal of its layers, by objective. Empty if the winner is plain removal.
    pub leads: Vec<Lead>,
    /// Cost of the search.
    pub spent: SearchCost,
}

/// Objective of a search.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Objective {
    /// `accuracy` in percent, or `loss` in nats per token.
    pub name: String,
    /// Tasks or texts, all weighted equally.
    pub on: Vec<String>,
    /// Number of items available for the race.
    pub items: usize,
    /// Number of items held out for the final evaluation.
    pub kept: usize,
}

/// Round of a search.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Round {
    /// Number of items on which each survivor has been scored after the round.
    pub items: usize,
    /// Number of candidates in the round.
    pub alive: usize,
    /// Number of candidates that failed or were eliminated in the round.
    pub left: usize,
}

/// Candidate with its costs, scores and outcome.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Candidate {
    /// Name of the cell.
    pub cell: String,
    /// Criterion that selected the removed layers.
    pub criterion: String,
    /// Recovery method.
    pub recovery: String,
    /// Calibration for the criterion and the recovery.
    pub calibration: String,
    /// Indices of the removed layers (from 0), and names of the removed sublayers.
    pub removed: Cut,
    /// Names of cells with identical layers and operators, which are not scored separately.
    #[serde(rename = "same")]
    pub duplicates: Vec<String>,
    /// Costs estimated by the cost model.
    #[serde(flatten)]
    pub costs: Costs,
    /// Measured latency for the prompt in milliseconds; null if not measured.
    pub milliseconds: Option<f64>,
    /// Scores in the race, by objective.
    pub scores: Vec<Score>,
    /// Difference from the rival that eliminated the candidate, on common items and by objective. For a survivor,
    /// difference from the winner. Empty for the winner.
    #[serde(rename = "beyond")]
    pub differences: Vec<Score>,
    /// Number of items scored in the race.
    pub items: usize,
    /// Outcome for this candidate.
    #[serde(rename = "fate")]
    pub outcome: CandidateOutcome,
}

/// Mean of the task or text means, with its confidence interval.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Score {
    /// Mean in percent or nats per token.
    pub mean: f64,
    /// Half-width of the 95 % confidence interval; null if there are too few items.
    pub half: Option<f64>,
}

/// Difference between the winner and plain removal in the objective's unit. It is positive if the winner is better.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Lead {
    /// Difference on the items of the race. It is biased upwards, because these items selected the winner.
    pub raced: Score,
    /// Difference on held-out items.
    pub held_out: Score,
}

/// Outcome for a candidate.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum CandidateOutcome {
    /// Not significantly different from the other survivors.
    Survived,
    /// Eliminated by a significantly better rival.
    Out {
        /// Round after which it was eliminated, from 1.
        round: usize,
        /// Cell name of the rival.
        rival: String,
        /// Two-sided p-value before Holm's correction.
        p: f64,
    },
    /// Could not be scored.
    Failed {
        /// Reason for the failure.
        reason: String,
    },
    /// Survived the race, but the measured latency exceeds the budget.
    Slow {
        /// Measured latency and the bound that it exceeds.
        reason: String,
    },
}

/// Cell that was not a candidate.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct ExcludedCell {
    /// Name of the cell.
    pub cell: String,
    /// Reason for the exclusion.
    pub reason: String,
}

impl ExcludedCell {
    fn new(cell: &Cell, reason: String) -> Self {
        Self { cell: cell.name.clone(), reason }
    }
}

/// Scores of a variant on held-out items.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct HeldOutScore {
    /// Role: `winner`, `runner-up`, `plain` (the winner's layers removed without recovery) or `dense`.
    pub role: String,
    /// Name of the cell.
    pub cell: String,
    /// Scores by objective.
    pub scores: Vec<Score>,
    /// Difference from the winner on the same items, by objective. Empty for the winner.
    #[serde(rename = "beyond")]
    pub differences: Vec<Score>,
}

/// Cost of a search, compared with scoring all candidates on all items.
#[derive(Debug, Clone, Copy, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct SearchCost {
    /// Number of scored items, summed over candidates.
    pub items: f64,
    /// Number of scored items if all candidates were scored on all items.
    pub all_items: f64,
    /// Number of items times layers, with shared layers counted once.
    pub layers: f64,
    /// Number of items times layers if all candidates were scored on all items.
    pub all_layers: f64,
    /// Number of items scored in the final evaluation. They are not included in `items`.
    pub judged_items: f64,
    /// Number of layer evaluations (items × layers) in the final evaluation. Not included in `layers`.
    pub judged_layers: f64,
}

impl SearchOutcome {
    pub fn survivors(&self) -> impl Iterator<Item = &Candidate> {
        self.candidates.iter().filter(|candidate| candidate.outcome == CandidateOutcome::Survived)
    }

    /// Summarizes the outcome in one sentence.
    pub fn sentence(&self) -> String {
        let Some(winner) = &self.winner else {
            let slow = self.candidates.iter().find_map(|candidate| match &candidate.outcome {
                CandidateOutcome::Slow { reason } => Some((candidate, reason)),
                _ => None,
            });
            // Suggest a deeper cut. Eliminated candidates were not timed, so none of them can be suggested.
            let nearest = slow.map_or_else(String::new, |(candidate, reason)| {
                let hint = match candidate.removed.has_only_whole_layers() {
                    true => {
                        let more = candidate.removed.whole_layers().len() + 1;
                        format!("; use `layers={more}` as the budget to remove one more layer")
                    }
                    false => String::new(),
                };
                format!(": {} {reason}{hint}", candidate.cell)
            });
            return format!("No candidate meets {} when measured{nearest}.", self.budget);
        };
        let survivors = self.survivors().count();
        let judged = self
            .held_out("winner")
            .map_or_else(String::new, |role| format!(": {} on held-out items", self.format_scores(role)));
        let references = [("dense", "dense"), ("plain", "plain removal")].into_iter();
        let references = references.filter_map(|(role_name, label)| {
            Some(format!("{label} {}", self.format_scores(self.held_out(role_name)?)))
        });
        let references: Vec<String> = references.collect();
        let references = if references.is_empty() { String::new() } else { format!(" ({})", references.join(", ")) };
        let sure = match survivors {
            1 => format!("the only survivor of {}", pluralize(self.candidates.len(), "candidate")),
            _ => format!("not separated from {} other{}", survivors - 1, if survivors == 2 { "" } else { "s" }),
        };
        format!("{winner}, {sure}{judged}{references}.")
    }

    fn held_out(&self, role: &str) -> Option<&HeldOutScore> {
        self.held_out_scores.iter().find(|entry| entry.role == role)
    }

    fn format_scores(&self, judged: &HeldOutScore) -> String {
        let each = judged.scores.iter().zip(&self.objectives).map(|(score, objective)| objective.score_text(score));
        each.collect::<Vec<_>>().join(" and ")
    }
}

impl Objective {
    /// Formats a score with its unit, as in `71.2 ± 1.4 %` or `perplexity 12.3 (12.1 to 12.5)`.
    pub fn score_text(&self, score: &Score) -> String {
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

/// Costs of a variant according to the cost model.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Costs {
    /// FLOPs of the dense backbone for reading the prompt and decoding, divided by those of the variant.
    pub speedup: f64,
    /// Size of the weights in bytes, including operators.
    pub bytes: u64,
    /// Number of parameters, including operators, relative to the dense backbone. Present only if the budget bounds
    /// them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<f64>,
    /// KV cache size relative to the dense backbone. Present only if the budget bounds it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<f64>,
}

impl Costs {
    /// Estimates the costs of a program as deployed.
    pub fn new(program: &Program, config: &Config, engine: EngineChoice, prompt: Latency) -> Self {
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

    /// Clears the relative sizes that the budget does not bound.
    pub(crate) fn keep_bounded_sizes(self, budget: &Budget) -> Self {
        Self {
            params: self.params.filter(|_| budget.params.is_some()),
            kv_cache: self.kv_cache.filter(|_| budget.kv_cache.is_some()),
            ..self
        }
    }

    /// Describes the first bound that these costs violate, or returns `None` if they meet the budget. `dense` is the
    /// latency of the dense backbone in milliseconds, if known.
    pub fn violated_bound(&self, budget: &Budget, dense: Option<f64>) -> Option<String> {
        let time = dense.map(|dense| dense / self.speedup);
        let slow = violated_speed(budget, "predicted", Some(self.speedup), time);
        let large = budget.memory.filter(|most| self.bytes > *most);
        let large = large.map(|most| {
            format!("{:.2} MB of weights exceeds the budget's {:.2}", in_megabytes(self.bytes), in_megabytes(most))
        });
        let shares =
            [(self.params, budget.params, "of the parameters"), (self.kv_cache, budget.kv_cache, "of the KV cache")];
        let over = shares.into_iter().find_map(|(share, most, what)| {
            let (share, most) = share.zip(most).filter(|(share, most)| share > most)?;
            Some(format!("{share:.3} {what} exceeds the budget's {most}"))
        });
        slow.or(large).or(over)
    }
}

/// Describes the bound on speed that a variant violates, or returns `None` if it violates none. `origin` is `predicted`
/// or `measured`. Unknown values violate no bound.
fn violated_speed(budget: &Budget, origin: &str, speedup: Option<f64>, milliseconds: Option<f64>) -> Option<String> {
    let slow = budget.speedup.zip(speedup).filter(|(wanted, found)| found < wanted);
    let slow = slow.map(|(wanted, found)| format!("{origin} speedup {found:.3} is below the budget's {wanted}"));
    let late = budget.latency.zip(milliseconds).filter(|(most, time)| time > most);
    let late = late.map(|(most, time)| format!("{origin} latency {time:.2} ms exceeds the budget's {most}"));
    slow.or(late)
}

/// Cost model for depths whose layers have not been selected yet.
pub(crate) struct CostModel<'a> {
    config: &'a Config,
    engine: EngineChoice,
    prompt: Latency,
    /// Placeholder for any affine operator, because costs do not depend on its values.
    affine_placeholder: Arc<Operator>,
}

impl<'a> CostModel<'a> {
    /// Creates the cost model for a backbone.
    ///
    /// # Errors
    /// Fails if the placeholder operator cannot be allocated.
    pub(crate) fn new(config: &'a Config, engine: EngineChoice, prompt: Latency) -> Result<Self> {
        let channels = config.hidden;
        let affine_placeholder = Operator::affine(channels, vec![0.0; channels * channels], vec![0.0; channels])?;
        Ok(Self { config, engine, prompt, affine_placeholder })
    }

    /// Returns one or two cost estimates for a depth. The costs of every cut at this depth lie between them.
    ///
    /// Layers cost the same at every position, and so do MLP sublayers, so one estimate suffices for them. For
    /// attention sublayers, a second estimate replaces each with an affine map. For a depth in sublayers of both kinds,
    /// one estimate removes as many attention sublayers as possible, and the other as many MLP sublayers as possible.
    pub(crate) fn estimate_costs(&self, depth: Depth) -> Vec<Costs> {
        let layers = self.config.layers;
        let cut = depth.middle(layers);
        let programs = match depth.unit {
            DepthUnit::Layers | DepthUnit::Mlp => vec![Program::without(layers, &cut)],
            DepthUnit::Attention => {
                let sublayers = cut.iter().map(|sublayer| (sublayer, Arc::clone(&self.affine_placeholder))).collect();
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
        programs.iter().map(|program| Costs::new(program, self.config, self.engine, self.prompt)).collect()
    }
}

fn in_megabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e6
}

fn in_gigabytes(bytes: u64) -> f64 {
    bytes as f64 / 1e9
}
