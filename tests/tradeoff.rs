//! Compares the table of `experiments/sublayers.yaml`, both recomputed and as recorded, with a PyTorch reference
//! (`shared/oracles/beyond`).
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use crate::common::{assert_close, checkout, json, shared};
use ghostlab::artifact::Artifact;
use ghostlab::criterion::DepthUnit::{Attention, Layers, Mlp, Sublayers};
use ghostlab::criterion::{Depth, DepthUnit};
use ghostlab::pipeline::exec::{self, RunEnv};
use ghostlab::pipeline::stage;
use ghostlab::results::number_record::Record;
use ghostlab::results::{StoredResults, collect};
use ghostlab_store::Store;
use serde_json::Value;

/// Relative tolerances for comparing an f32 engine with the reference.
const PERPLEXITY_TOLERANCE: f64 = 2e-6;
const DAMAGE_TOLERANCE: f64 = 1e-5;
/// Absolute tolerance for percentages that are computed from counts.
const PERCENT_TOLERANCE: f64 = 1e-9;

/// Row of the table as (criterion, count, unit, recovery), followed by the name of the pruned model in the reference.
type Row = (&'static str, usize, DepthUnit, &'static str, &'static str);

/// Rows for `tiny-llama` that are quick to compute.
const LLAMA_ROWS: &[Row] = &[
    ("llm-drop", 4, Attention, "none", "half:attn:4"),
    ("llm-drop", 8, Attention, "none", "half:attn:8"),
    ("llm-drop", 2, Mlp, "none", "half:mlp:2"),
    ("llm-drop", 4, Mlp, "none", "half:mlp:4"),
    ("llm-drop", 4, Sublayers, "none", "half:joint:4"),
    ("llm-drop", 8, Sublayers, "none", "half:joint:8"),
    ("nbl", 4, Attention, "nbl", "nbl:stream:stream:4"),
    ("nbl", 4, Attention, "nbl:normed", "nbl:normed:stream:4"),
    ("nbl", 8, Attention, "nbl", "nbl:stream:stream:8"),
    ("nbl", 8, Attention, "nbl:normed", "nbl:normed:stream:8"),
    ("nbl:normed", 4, Attention, "nbl:normed", "nbl:normed:normed:4"),
    ("llm-streamline", 3, Layers, "none", "cut:[7,10):none"),
    ("lorp", 4, Layers, "none", "lorp:4:none"),
    ("lorp", 4, Layers, "ghosted:normed:bias", "lorp:4:normed-bias"),
];
/// Rows for `tiny-llama` whose sublayers are selected one by one.
const LLAMA_GREEDY_ROWS: &[Row] = &[
    ("block-pruner", 4, Sublayers, "none", "blockpruner:4"),
    ("block-pruner", 8, Sublayers, "none", "blockpruner:8"),
    ("finercut", 4, Sublayers, "none", "finercut:angle:4"),
    ("finercut:js", 4, Sublayers, "none", "finercut:js:4"),
];
const QWEN3_ROWS: &[Row] = &[
    ("llm-drop", 4, Attention, "none", "half:attn:4"),
    ("llm-drop", 4, Mlp, "none", "half:mlp:4"),
    ("nbl", 4, Attention, "nbl", "nbl:stream:stream:4"),
    ("nbl", 4, Attention, "nbl:normed", "nbl:normed:stream:4"),
    ("llm-streamline", 3, Layers, "none", "iterative-none:3:token"),
    ("lorp", 4, Layers, "none", "lorp:4:none"),
    ("lorp", 4, Layers, "ghosted:normed:bias", "lorp:4:normed-bias"),
];
const OLMO2_ROWS: &[Row] = &[
    ("llm-drop", 4, Attention, "none", "half:attn:4"),
    ("llm-drop", 8, Attention, "none", "half:attn:8"),
    ("llm-drop", 4, Mlp, "none", "half:mlp:4"),
    ("llm-drop", 8, Sublayers, "none", "half:joint:8"),
    ("nbl", 4, Attention, "nbl", "nbl:stream:stream:4"),
    ("nbl", 8, Attention, "nbl", "nbl:stream:stream:8"),
    ("llm-streamline", 3, Layers, "none", "cut:[5,8):none"),
    ("llm-streamline", 3, Layers, "merge", "merge:[4,8):paper"),
    ("lorp", 4, Layers, "none", "lorp:4:none"),
    ("lorp", 4, Layers, "ghosted:normed:bias", "lorp:4:normed-bias"),
    ("block-pruner", 4, Sublayers, "none", "blockpruner:4"),
];

/// Compares the rows for one backbone with the reference.
fn compare(records: &[Record], backbone: &str, rows: &[Row], reference: &Value) {
    let reference = &reference[backbone];
    let dense = reference["dense"]["parameters"].as_f64().unwrap();
    for (criterion, count, unit, recovery, variant) in rows {
        let row = format!("{backbone} {criterion} {count} {unit} {recovery}");
        let value = |metric: &str| {
            let found = records.iter().find(|record| {
                let condition = &record.condition;
                let depth = Depth { count: condition.depth, unit: condition.unit };
                record.metric == metric
                    && condition.backbone == backbone
                    && condition.criterion == *criterion
                    && condition.recovery == *recovery
                    && depth == Depth { count: *count, unit: *unit }
            });
            found.and_then(|record| record.value).unwrap_or_else(|| panic!("{row}: no {metric}"))
        };
        let expected = &reference["variants"][variant];
        let number = |name: &str| expected[name].as_f64().unwrap();
        assert_close(&row, value("ppl_wikitext2"), number("ppl"), PERPLEXITY_TOLERANCE);
        assert_close(&row, value("kl_wikitext2"), number("kl_dense_variant"), DAMAGE_TOLERANCE);
        assert_close(&row, value("same_top_wikitext2"), number("same_top"), DAMAGE_TOLERANCE);
        let remaining = 100.0 * number("parameters") / dense;
        assert!(
            (100.0 - value("parameters_removed") - remaining).abs() < PERCENT_TOLERANCE,
            "{row}: {remaining} % are kept"
        );
        let cache = 100.0 * number("attentions") / 16.0;
        assert!((100.0 - value("kv_cache_removed") - cache).abs() < PERCENT_TOLERANCE, "{row}: {cache} % are kept");
    }
}

#[test]
fn recomputed_sublayer_table_matches_the_reference() {
    let Some(file) = shared("oracles/beyond/numbers.json") else { return };
    let artifact = Artifact::read(&checkout().join("experiments/sublayers.yaml")).unwrap().unwrap();
    let mut grid = artifact.grid(Some("tiny"), &["backbone=tiny-llama".to_owned()]).unwrap();
    grid.evaluate.tasks.clear();
    grid.evaluate.latency.clear();
    grid.cells.retain(|cell| {
        let Some(criterion) = &cell.criterion else { return true };
        match criterion.name.as_str() {
            "llm-drop" => !criterion.options.contains_key("iterative"),
            "llm-streamline" => cell.depth == 3,
            name => ["lorp", "nbl"].contains(&name),
        }
    });
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store"), stage::STORE_WORDS).unwrap();
    let outcome = exec::run(&grid, RunEnv::new(&store)).unwrap();
    let named = artifact.description.table.as_ref().unwrap().named_options.clone();
    let results = collect(&grid, &outcome, &named);
    let records: Vec<Record> = results.numbers().map(|number| number.record.clone()).collect();
    compare(&records, "tiny-llama", LLAMA_ROWS, &json(&file));
}

#[test]
fn recorded_sublayer_table_matches_the_reference() {
    let Some(file) = shared("oracles/beyond/numbers.json") else { return };
    let records = StoredResults::read(&checkout().join("results/sublayers/tiny")).unwrap().records();
    let reference = json(&file);
    for (backbone, rows) in [
        ("tiny-llama", LLAMA_ROWS),
        ("tiny-llama", LLAMA_GREEDY_ROWS),
        ("tiny-qwen3", QWEN3_ROWS),
        ("tiny-olmo2", OLMO2_ROWS),
    ] {
        compare(&records, backbone, rows, &reference);
    }
}
