//! Settings of a search, read from the key `search`, which replaces `evaluate`.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::defined_tasks::TaskUseEntry;
use super::evaluate::{EvaluateEntry, Latency, PerplexityEntry};
use super::one_or_many::{self, OneOrMany};
use super::validate::{self, EntryPosition};
use crate::criterion::Depth;
use crate::error::{Error, Result};

/// Settings of a search over a grid's cells.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Search {
    pub budget: Budget,
    /// Maximum number of documents over all tasks, and of windows over all texts, or `None` to use all.
    pub items: Option<usize>,
    /// Upper bound on the probability that any candidate is wrongly eliminated.
    pub alpha: f64,
    /// Seed for the order of the items.
    pub seed: u64,
    /// Prompt for which speed is estimated and measured.
    pub prompt: Latency,
    /// Cuts that a criterion cannot select, which are therefore not candidates.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub unselectable: Vec<UnselectableCut>,
}

/// Cut (number of layers or sublayers to remove) that a criterion cannot select on a backbone.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct UnselectableCut {
    pub backbone: String,
    /// Name of the criterion, with its options.
    pub criterion: String,
    pub depth: Depth,
    pub reason: String,
}

/// Formats the cut, such as `llm-streamline at 15 layers` or `llm-drop at 40 attention`.
impl fmt::Display for UnselectableCut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { criterion, depth, .. } = self;
        let unit = match (depth.is_in_layers(), depth.count) {
            (false, _) => "",
            (true, 1) => " layer",
            (true, _) => " layers",
        };
        write!(f, "{criterion} at {depth}{unit}")
    }
}

/// Requirements on a variant, all of which must be met. Each entry in `layers` starts a separate search.
#[derive(Debug, Clone, PartialEq, Default, Serialize, Deserialize)]
pub struct Budget {
    /// Numbers of layers to remove.
    pub layers: Vec<usize>,
    /// Minimum speedup over the dense backbone.
    pub speedup: Option<f64>,
    /// Maximum time for a forward pass over the prompt, in milliseconds.
    pub latency: Option<f64>,
    /// Maximum size of the weights in bytes, including operators.
    pub memory: Option<u64>,
    /// Maximum number of parameters, including operators, as a fraction of the dense backbone's parameters.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub params: Option<f64>,
    /// Maximum size of the KV cache, as a fraction of the dense backbone's KV cache.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub kv_cache: Option<f64>,
}

/// Formats the budget, such as `layers=4` or `speedup=1.3, memory=12GB`.
impl fmt::Display for Budget {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let layers = self.layers.iter().map(|layers| format!("layers={layers}"));
        let speedup = self.speedup.map(|speedup| format!("speedup={speedup}"));
        let latency = self.latency.map(|latency| format!("latency={latency}ms"));
        let memory = self.memory.map(|memory| format!("memory={}GB", memory as f64 / 1e9));
        let params = self.params.map(|fraction| format!("params={fraction}"));
        let kv_cache = self.kv_cache.map(|fraction| format!("kv_cache={fraction}"));
        let all: Vec<String> =
            layers.chain(speedup).chain(latency).chain(memory).chain(params).chain(kv_cache).collect();
        f.write_str(&all.join(", "))
    }
}

/// Items and budget of a search.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct SearchEntry {
    /// Bounds on candidates.
    budget: BudgetEntry,
    /// Texts to score by mean loss.
    #[serde(default)]
    perplexity: OneOrMany<PerplexityEntry>,
    /// Tasks to score by mean accuracy. Texts and tasks are two objectives.
    #[serde(default)]
    tasks: OneOrMany<TaskUseEntry>,
    /// Maximum number of documents, and of windows; all by default.
    #[schemars(range(min = 1))]
    items: Option<usize>,
    /// Maximum probability of eliminating any candidate wrongly.
    #[schemars(range(min = 0.0, max = 0.5))]
    #[schemars(extend("default" = DEFAULT_ALPHA))]
    alpha: Option<f64>,
    /// Seed for the order of items.
    #[schemars(extend("default" = 0))]
    seed: Option<u64>,
    /// Prompt to time; 512 tokens by default.
    prompt: Option<PromptEntry>,
}

/// One or more bounds. A candidate must satisfy all of them.
#[derive(Debug, Default, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct BudgetEntry {
    /// Number of layers to remove. Each number is a search.
    #[serde(default)]
    #[schemars(schema_with = "one_or_many::counts_schema")]
    pub(super) layers: OneOrMany<usize>,
    /// Minimum speedup over the dense model, such as `1.3`: estimated, then measured for survivors.
    #[schemars(range(min = 1.0))]
    speedup: Option<f64>,
    /// Maximum time of the prompt, such as `25ms`: estimated, then measured for survivors.
    latency: Option<String>,
    /// Maximum size of weights with operators, such as `12GB`.
    memory: Option<String>,
    /// Maximum share of the dense model's parameters, with operators, such as `0.8`.
    #[schemars(range(min = 0.0, max = 1.0))]
    params: Option<f64>,
    /// Maximum share of the dense model's KV cache, such as `0.5`.
    #[schemars(range(min = 0.0, max = 1.0))]
    kv_cache: Option<f64>,
}

/// Prompt to time.
#[derive(Debug, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct PromptEntry {
    /// Tokens per sequence.
    length: usize,
    /// Sequences per batch.
    #[schemars(extend("default" = 1))]
    batch: Option<usize>,
    /// New tokens per sequence; none by default.
    decode: Option<usize>,
}

const DEFAULT_ALPHA: f64 = 0.05;
const DEFAULT_PROMPT: Latency = Latency { length: 512, batch: 1, decode: None };

impl SearchEntry {
    /// Returns the texts and tasks as an `evaluate` entry.
    pub(super) fn evaluate_entry(&self) -> EvaluateEntry {
        EvaluateEntry { perplexity: self.perplexity.clone(), tasks: self.tasks.clone(), ..EvaluateEntry::default() }
    }

    pub(super) fn validate(&self, at: &EntryPosition<'_>) -> Result<Search> {
        if let Some(item) = self.tasks.iter().position(|task| task.definition.is_some()) {
            return Err(at
                .key("tasks")
                .item(item)
                .error("a search does not support task definitions")
                .expected("the name of a task, or texts")
                .found("a `definition`")
                .hint("use `ghostlab run` to score user-defined tasks"));
        }
        let budget = self.budget.validate(&at.key("budget"))?;
        let alpha = self.alpha.unwrap_or(DEFAULT_ALPHA);
        if !(alpha > 0.0 && alpha <= 0.5) {
            return Err(at
                .key("alpha")
                .error("invalid `alpha`")
                .expected("a number above 0 and at most 0.5")
                .found(alpha.to_string()));
        }
        if let Some(items) = self.items {
            validate::check_count(1, items, "the number of items", &at.key("items").position())?;
        }
        let prompt = self.prompt.as_ref().map_or(DEFAULT_PROMPT, |prompt| Latency {
            length: prompt.length,
            batch: prompt.batch.unwrap_or(1),
            decode: prompt.decode,
        });
        let sizes = [("length", Some(prompt.length)), ("batch", Some(prompt.batch)), ("decode", prompt.decode)];
        for (key, value) in sizes.into_iter().filter_map(|(key, value)| Some((key, value?))) {
            validate::check_count(1, value, "the size of the prompt", &at.key("prompt").key(key).position())?;
        }
        Ok(Search { budget, items: self.items, alpha, seed: self.seed.unwrap_or(0), prompt, unselectable: Vec::new() })
    }
}

impl BudgetEntry {
    fn validate(&self, at: &EntryPosition<'_>) -> Result<Budget> {
        let Self { layers, speedup, latency, memory, params, kv_cache } = self;
        let fractions = [("params", *params), ("kv_cache", *kv_cache)];
        let has_fraction = fractions.iter().any(|(_, fraction)| fraction.is_some());
        if layers.explicit_values().is_none()
            && speedup.is_none()
            && latency.is_none()
            && memory.is_none()
            && !has_fraction
        {
            return Err(at
                .error("the search has no budget")
                .expected(
                    "one or more of `layers: 4`, `speedup: 1.3`, `latency: 25ms`, `memory: 12GB`, `params: 0.8`, \
                     `kv_cache: 0.5`",
                )
                .found("none"));
        }
        let removed = layers.read_with(|layers| validate::read_values(&at.key("layers"), layers))?;
        let removed: Vec<usize> = removed.into_iter().flatten().map(|value| value.value).collect();
        if removed.contains(&0) {
            return Err(at.key("layers").error("the budget removes no layers").expected("1 or more").found("0"));
        }
        if let Some(speedup) = speedup.filter(|speedup| !(*speedup > 1.0 && speedup.is_finite())) {
            return Err(at
                .key("speedup")
                .error("the dense backbone already meets the budget")
                .expected("a speedup above 1")
                .found(speedup.to_string())
                .hint("set a speedup such as `1.3`, for 1/1.3 of the time of the dense backbone"));
        }
        for (key, fraction) in fractions {
            if let Some(fraction) = fraction.filter(|fraction| !(*fraction > 0.0 && *fraction < 1.0)) {
                return Err(at
                    .key(key)
                    .error(format!("invalid `{key}` in the budget"))
                    .expected("a number above 0 and below 1")
                    .found(fraction.to_string()));
            }
        }
        Ok(Budget {
            layers: removed,
            speedup: *speedup,
            latency: parse_quantity(at, "latency", latency.as_deref(), &[("ms", 1.0), ("s", 1000.0)])?,
            memory: parse_quantity(at, "memory", memory.as_deref(), &[("GB", 1e9), ("MB", 1e6)])?
                .map(|bytes| bytes as u64),
            params: *params,
            kv_cache: *kv_cache,
        })
    }
}

/// Parses a positive number with a unit, and multiplies it by the unit's factor. Returns `None` if the key is missing.
fn parse_quantity(
    at: &EntryPosition<'_>,
    key: &'static str,
    text: Option<&str>,
    units: &[(&str, f64)],
) -> Result<Option<f64>> {
    let Some(text) = text else { return Ok(None) };
    let forms: Vec<String> = units.iter().map(|(unit, _)| format!("`25{unit}`")).collect();
    units
        .iter()
        .find_map(|(unit, factor)| {
            let number: f64 = text.trim().strip_suffix(unit)?.trim().parse().ok()?;
            (number > 0.0 && number.is_finite()).then_some(number * factor)
        })
        .map(Some)
        .ok_or_else(|| -> Error {
            at.key(key)
                .error(format!("invalid `{key}` in the budget"))
                .expected(forms.join(" or "))
                .found(format!("`{text}`"))
        })
}
