//! Sample records for tests.

use crate::results::StoredResults;
use crate::results::number_record::{Condition, Record};

/// Returns an `acc_average` record for a model with 32 layers. The model is dense at depth 0 and otherwise pruned by
/// LLM-Streamline.
pub(super) fn record(backbone: &str, depth: usize, recovery: &str, value: f64) -> Record {
    Record {
        condition: Condition {
            backbone: backbone.to_owned(),
            layers: 32,
            depth,
            unit: crate::criterion::DepthUnit::Layers,
            criterion: if depth == 0 { "dense" } else { "llm-streamline" }.to_owned(),
            recovery: recovery.to_owned(),
            finetuned: false,
            calibration: "c4".to_owned(),
        },
        metric: "acc_average".to_owned(),
        value: Some(value),
        error: None,
    }
}

pub(super) fn with_metric(mut record: Record, metric: &str) -> Record {
    record.metric = metric.to_owned();
    record
}

/// Returns the stored results of a run without numbers.
pub(super) fn run(program: &str, gate: bool) -> Option<StoredResults> {
    Some(StoredResults { program: program.to_owned(), gate, ..StoredResults::default() })
}
