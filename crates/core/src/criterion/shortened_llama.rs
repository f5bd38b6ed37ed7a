//! Shortened LLaMA: removes the layers whose individual removal increases the perplexity least (docs/design.md §6).

use schemars::JsonSchema;
use serde::de::{self, Deserializer};
use serde::{Deserialize, Serialize};

use super::greedy::greedy_trials;
use super::rule::{
    CalibrationStats, Criterion, CriterionEntry, Importance, PruneSpec, Selection, TOO_FEW_LAYERS, TrialMetric,
    check_depth, iterative,
};
use crate::error::{Error, Result};
use crate::files::csv;
use crate::model::Cut;
use crate::options::{self, Options, Variant};

const NAME: &str = "shortened-llama";
pub(super) const ENTRY: CriterionEntry =
    CriterionEntry::new::<ShortenedLlamaOptions>(NAME, "https://github.com/Nota-NetsPresso/shortened-llm", build)
        .resolving(resolve)
        .label("Shortened LLaMA")
        .short("shortened")
        .variants(VARIANTS);

const VARIANTS: &[Variant] = &[iterative("Shortened LLaMA, iterative")];

/// Layer orders published in the reference repository, one per backbone and score.
const RELEASED_ORDERS: &str = include_str!(concat!(env!("CARGO_MANIFEST_DIR"), "/../../data/released_orders.csv"));

/// Removal of the layers that increase the perplexity least when removed individually.
#[derive(Debug, Default, Serialize, Deserialize, JsonSchema)]
#[serde(default, deny_unknown_fields)]
struct ShortenedLlamaOptions {
    /// Source of the layer order.
    order: Order,
    /// Score that the released order is based on.
    score: Option<Score>,
    /// Backbone whose released order is used. Defaults to the backbone's name in the grid.
    backbone: Option<String>,
    /// Whether the backbone is repaired and measured again after each removed layer.
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    iterative: bool,
}

#[derive(Debug, Default, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Order {
    /// The `n` layers with the lowest leave-one-out perplexity on the calibration windows.
    #[default]
    Measured,
    /// The first `n` layers in the order published by the authors.
    Released,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
enum Score {
    Ppl,
    Taylor,
}

/// Fills in the default score for a released order.
fn resolve(name: &str, options: &Options) -> Result<Options> {
    let mut settings: ShortenedLlamaOptions = options::read(name, options)?;
    if settings.order == Order::Released {
        settings.score.get_or_insert(Score::Ppl);
        // The lookup ignores case, so lowercase the name to get equal cache keys for equal backbones.
        settings.backbone = settings.backbone.map(|name| name.to_lowercase());
    }
    options::to_options(name, &settings)
}

enum ShortenedLlama {
    Measured { iterative: bool },
    Released { score: &'static str, backbone: Option<String> },
}

fn build(name: &str, options: &Options) -> Result<Box<dyn Criterion>> {
    let ShortenedLlamaOptions { order, score, backbone, iterative } = options::read(name, options)?;
    if order == Order::Measured && (score.is_some() || backbone.is_some()) {
        let expected = "`score` and `backbone` only with `order: released`";
        return Err(options::invalid_options(name, expected, "`order: measured`"));
    }
    if order == Order::Released && iterative {
        let expected = "`iterative: true` only with `order: measured`";
        return Err(options::invalid_options(name, expected, "`order: released`, which measures nothing"));
    }
    Ok(Box::new(match order {
        Order::Measured => ShortenedLlama::Measured { iterative },
        Order::Released => {
            let score = match score.unwrap_or(Score::Ppl) {
                Score::Ppl => "ppl",
                Score::Taylor => "taylor",
            };
            ShortenedLlama::Released { score, backbone }
        }
    }))
}

/// Row of the table of released orders.
#[derive(Deserialize)]
struct ReleasedOrder {
    backbone: String,
    score: String,
    /// Layers in the order of removal.
    #[serde(deserialize_with = "deserialize_layers")]
    order: Vec<usize>,
}

/// Parses layer numbers separated by spaces.
fn deserialize_layers<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Vec<usize>, D::Error> {
    let text = String::deserialize(deserializer)?;
    let layers = text.split(' ').map(str::parse).collect::<Result<_, _>>();
    layers.map_err(|_| de::Error::custom("`order` is not a list of layers separated by spaces"))
}

fn parse_released_orders(text: &str) -> Result<Vec<ReleasedOrder>> {
    let rows = csv::rows("released_orders.csv", &["backbone", "score", "order"], text)?;
    Ok(rows.into_iter().map(|(_, row)| row).collect())
}

/// Returns the released order for a score and backbone.
fn find_released_order(score: &str, backbone: Option<&str>, spec: &PruneSpec<'_>) -> Result<Vec<usize>> {
    let name = backbone.unwrap_or(spec.backbone);
    let released = parse_released_orders(RELEASED_ORDERS)?;
    let found = released.iter().find(|entry| entry.backbone.eq_ignore_ascii_case(name) && entry.score == score);
    let Some(ReleasedOrder { backbone: known, order, .. }) = found else {
        let known: Vec<String> = released.iter().map(|entry| format!("{} ({})", entry.backbone, entry.score)).collect();
        return Err(Error::bad_input(format!("`{NAME}` has no released order for this backbone"))
            .expected(format!("one of {}", known.join(", ")))
            .found(format!("`{name}` ({score})"))
            .hint("use `order: measured`, or select a released order with, for example, `backbone: llama-3-8b`"));
    };
    if order.iter().any(|&layer| layer >= spec.layers) {
        return Err(Error::bad_input(format!("the released order of `{known}` belongs to a deeper model"))
            .expected(format!("layers below {}, the number of layers of `{}`", spec.layers, spec.backbone))
            .found(format!("layers up to {}", order.iter().max().unwrap_or(&0))));
    }
    Ok(order.clone())
}

impl Criterion for ShortenedLlama {
    fn check(&self, name: &str, spec: &PruneSpec<'_>) -> Result<()> {
        let candidates = match self {
            Self::Measured { .. } => spec.layers,
            Self::Released { score, backbone } => find_released_order(score, backbone.as_deref(), spec)?.len(),
        };
        check_depth(name, TOO_FEW_LAYERS, candidates, spec)
    }

    fn trials(&self, spec: &PruneSpec<'_>) -> Vec<Cut> {
        match self {
            Self::Measured { iterative: true } => greedy_trials(spec),
            Self::Measured { iterative: false } => (0..spec.layers).map(|layer| Cut::layers([layer])).collect(),
            Self::Released { .. } => Vec::new(),
        }
    }

    fn prior_order(&self, spec: &PruneSpec<'_>) -> Result<Option<Vec<usize>>> {
        match self {
            Self::Measured { .. } => Ok(None),
            Self::Released { score, backbone } => find_released_order(score, backbone.as_deref(), spec).map(Some),
        }
    }

    fn is_iterative(&self) -> bool {
        matches!(self, Self::Measured { iterative: true })
    }

    fn importance(&self) -> Option<Importance> {
        matches!(self, Self::Measured { .. })
            .then_some(Importance { quantity: "perplexity without", lowest_first: true })
    }

    fn select(&self, spec: &PruneSpec<'_>, stats: &mut CalibrationStats<'_>) -> Result<Selection> {
        match self {
            Self::Measured { .. } => {
                let layers = spec.remaining(stats.removed());
                let trials: Vec<Cut> = layers.iter().map(|&layer| Cut::layers([layer])).collect();
                let perplexities = stats.measure(TrialMetric::Perplexity, &trials)?;
                Ok(Selection::lowest(spec, layers.into_iter().zip(perplexities).collect()))
            }
            Self::Released { score, backbone } => {
                let mut removed = find_released_order(score, backbone.as_deref(), spec)?;
                removed.truncate(spec.depth);
                Ok(Selection::from_layers(removed, Vec::new()))
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::{RELEASED_ORDERS, parse_released_orders};
    use crate::criterion::DepthUnit;
    use crate::criterion::rule::tests::select;
    use crate::criterion::rule::{PruneSpec, Selection};
    use crate::error::Result;
    use crate::model::Cut;
    use serde_json::json;

    #[test]
    fn released_orders_contain_no_duplicate_layers() {
        let orders = parse_released_orders(RELEASED_ORDERS).unwrap();
        assert_eq!(orders.len(), 4);
        for entry in orders {
            let mut sorted = entry.order.clone();
            sorted.sort_unstable();
            sorted.dedup();
            assert_eq!(sorted.len(), entry.order.len(), "{} {}", entry.backbone, entry.score);
        }
    }

    #[test]
    fn malformed_released_order_is_rejected_with_its_line() {
        let error = parse_released_orders(&RELEASED_ORDERS.replacen(" 24 ", " x ", 1)).err().unwrap().to_string();
        assert!(error.contains("released_orders.csv:2") && error.contains("`order`"), "{error}");
    }

    #[test]
    fn released_order_is_found_by_backbone_name_or_option() {
        let spec = PruneSpec { backbone: "LLaMA-3-8B", layers: 32, depth: 3, unit: DepthUnit::Layers };
        // Expected values: the first three layers of the row in `released_orders.csv`.
        assert_eq!(select_order(&spec, &json!({"order": "released"})).unwrap().removed, [8, 9, 23]);
        let named = json!({"order": "released", "backbone": "llama-2-7b", "score": "ppl"});
        assert_eq!(select_order(&spec, &named).unwrap().removed, [8, 11, 24]);
        let text = select_order(&spec, &json!({"order": "released", "backbone": "gpt-2"})).unwrap_err().to_string();
        assert!(text.contains("llama-2-7b (taylor)") && text.contains("`gpt-2`"), "{text}");
        let small = PruneSpec { layers: 16, ..spec };
        let text = select(&super::ENTRY, &json!({"order": "released"}), &small, |_| 0.0, |_| 0.0).unwrap_err();
        assert!(text.to_string().contains("layers below 16"), "{text}");
    }

    #[test]
    fn shortened_llama_removes_lowest_perplexity_layers() {
        let spec = PruneSpec { backbone: "b", layers: 4, depth: 2, unit: DepthUnit::Layers };
        let selection = select(
            &super::ENTRY,
            &json!({}),
            &spec,
            |_| 0.0,
            |removed: &Cut| [9.0, 2.0, 4.0, 3.0][removed.whole_layers()[0]],
        )
        .unwrap();
        assert_eq!(selection.removed, [1, 3]);
        assert_eq!(selection.scores, [(0, 9.0), (1, 2.0), (2, 4.0), (3, 3.0)]);
    }

    fn select_order(spec: &PruneSpec<'_>, options: &serde_json::Value) -> Result<Selection> {
        select(&super::ENTRY, options, spec, |_| 0.0, |_| 0.0)
    }
}
