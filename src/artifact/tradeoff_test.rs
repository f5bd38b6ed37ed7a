//! Tests the table and Pareto figure for cuts of sublayers, using made-up numbers.

use std::sync::Arc;

use super::layout::lay_out_table;
use super::tradeoff::build_pareto;
use crate::artifact::figure::Scale;
use crate::criterion::DepthUnit;
use crate::grid::Description;
use crate::results::number_record::{Condition, DENSE, Record};
use crate::results::{ResultRow, markdown};

fn description() -> Description {
    serde_json::from_value(serde_json::json!({
        "title": "Cuts",
        "table": {
            "lead": ["backbone", "removed", "method"],
            "dense": true,
            "rows": [
                {"criterion": ["llm-streamline"], "recovery": ["none", "mean"]},
                {"criterion": ["llm-drop"], "recovery": ["none"]},
                {"criterion": ["nbl"], "recovery": ["nbl"]},
            ],
            "metrics": ["parameters_removed", "ppl_c4", "kl_c4"],
        },
        "figure": {
            "kind": "pareto",
            "metrics": ["ppl_c4", "kl_c4"],
            "costs": ["parameters_removed", "prefill_ms"],
            "log": true,
        },
    }))
    .unwrap()
}

/// Criterion, recovery, number of removed units, unit, percentage of parameters removed, perplexity, and divergence.
/// The prefill time in milliseconds is ten times the perplexity.
type Row = (&'static str, &'static str, usize, DepthUnit, f64, f64, f64);

const ROWS: [Row; 6] = [
    (DENSE, "none", 0, DepthUnit::Layers, 0.0, 2.0, 0.0),
    ("llm-streamline", "none", 3, DepthUnit::Layers, 18.0, 4.0, 0.5),
    ("llm-streamline", "mean", 3, DepthUnit::Layers, 17.5, 3.0, 0.25),
    ("llm-drop", "none", 4, DepthUnit::Attention, 6.0, 2.5, 0.062_54),
    ("llm-drop", "none", 4, DepthUnit::Mlp, 17.0, 2.75, 0.125),
    ("nbl", "nbl", 4, DepthUnit::Attention, 4.0, 2.25, 0.031_26),
];

fn numbers() -> Vec<Arc<ResultRow>> {
    let mut all = Vec::new();
    for (at, (criterion, recovery, depth, unit, removed, perplexity, divergence)) in ROWS.into_iter().enumerate() {
        let values = [
            ("parameters_removed", removed),
            ("ppl_c4", perplexity),
            ("kl_c4", divergence),
            ("prefill_ms", 10.0 * perplexity),
        ];
        for (metric, value) in values {
            let condition = Condition {
                backbone: "tiny-llama".into(),
                layers: 16,
                depth,
                unit,
                criterion: criterion.into(),
                recovery: recovery.into(),
                finetuned: false,
                calibration: "c4".into(),
            };
            let record = Record { condition, metric: metric.to_owned(), value: Some(value), error: None };
            all.push(Arc::new(ResultRow::new(record, format!("cell {at}"))));
        }
    }
    all
}

#[test]
fn rows_name_removed_units_and_are_ranked_per_depth() {
    let description = description();
    let table = lay_out_table(&description, description.table.as_ref().unwrap(), &numbers(), &[]).unwrap();
    let text = markdown(&table);
    let rows = "\
| Model | Removed | Method | Params removed | C4 | C4 (KL) |
| --- | --- | --- | ---: | ---: | ---: |
| tiny-llama | — | Dense | 0.00 | 2.00 | 0.0000 |
| tiny-llama | 3 layers | LLM-Streamline | 18.00 | 4.00 | 0.5000 |
| tiny-llama | 3 layers | LLM-Streamline + Mean change | 17.50 | **3.00** | **0.2500** |
| tiny-llama | 4 attentions | LLM-Drop | 6.00 | 2.50 | 0.0625 |
| tiny-llama | 4 attentions | NBL bound + NBL | 4.00 | **2.25** | **0.0313** |
| tiny-llama | 4 MLPs | LLM-Drop | 17.00 | 2.75 | 0.1250 |
";
    assert!(text.contains(rows), "{text}");
}

#[test]
fn figure_has_a_series_per_method_and_unit() {
    let description = description();
    let numbers = numbers();
    let figure = build_pareto(description.figure.as_ref().unwrap(), &numbers.iter().collect::<Vec<_>>()).unwrap();
    let labels: Vec<&str> = figure.series.iter().map(|series| series.label.as_str()).collect();
    let expected = [
        "LLM-Streamline",
        "LLM-Streamline + Mean change",
        "LLM-Drop (attentions)",
        "LLM-Drop (MLPs)",
        "NBL bound + NBL",
    ];
    assert_eq!(labels, expected);
    let point = &figure.series[1].points[0];
    assert_eq!((&point.costs[..], point.label.as_str()), (&[Some(82.5), Some(30.0)][..], "3 layers"));
    assert_eq!(point.values, [Some(3.0), Some(0.25)]);
    let columns: Vec<String> =
        figure.columns.iter().map(|axis| format!("{} {}", axis.label, axis.unit).trim_end().to_owned()).collect();
    assert_eq!(columns, ["Params kept %", "Prefill (ms)"]);
    let dense: Vec<Option<f64>> = figure.rows.iter().map(|row| row.dense).collect();
    assert_eq!(dense, [Some(2.0), None], "no divergence from itself on a log axis");
    let axes: Vec<(&str, Scale)> = figure.rows.iter().map(|row| (row.axis.label.as_str(), row.axis.scale)).collect();
    assert_eq!(axes, [("ppl on c4", Scale::Log), ("KL on c4", Scale::Log)]);
}

#[test]
fn figure_with_an_unmeasured_cost_is_rejected() {
    let numbers = numbers();
    let others: Vec<&Arc<ResultRow>> =
        numbers.iter().filter(|number| number.record.metric != "parameters_removed").collect();
    let error = build_pareto(description().figure.as_ref().unwrap(), &others).unwrap_err().to_string();
    assert!(error.contains("`parameters_removed`") && error.contains("evaluate"), "{error}");
}

#[test]
fn figure_without_latencies_has_no_latency_panel() {
    let numbers = numbers();
    let others: Vec<&Arc<ResultRow>> = numbers.iter().filter(|number| number.record.metric != "prefill_ms").collect();
    let figure = build_pareto(description().figure.as_ref().unwrap(), &others).unwrap();
    assert_eq!(figure.columns.iter().map(|axis| axis.label.as_str()).collect::<Vec<_>>(), ["Params kept"]);
}
