//! Settings in the reference data: their texts, their calibration, and the results computed from them.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::BTreeSet;
use std::path::PathBuf;

use crate::common::{checkout, numbers, shared};
use ghostlab_core::calibrate::{
    self, ActivationShape, Activations, InMemory, Pair, PassRequest, Similarities, WindowSubset,
};
use ghostlab_core::corpus::{Tokenizer, WindowRule, Windows, calibration_windows, evaluation_windows, read_rows};
use ghostlab_core::evaluate::perplexity::{Losses, PerplexityEval};
use ghostlab_core::evaluate::score;
use ghostlab_core::files::sha256;
use ghostlab_core::model::{Cut, Engine, Operator, Program, Repairs, Trie};
use ghostlab_core::recovery::{Boundary, Recovery, Repair, Solution, Span};
use serde_json::Value;

/// Resolves a path from the reference data, which is relative to the checkout, or to its parent folder if the path
/// starts with `shared/`.
pub(crate) fn input_path(path: &str) -> PathBuf {
    let root = checkout();
    if path.starts_with("shared/") { root.join("..").join(path) } else { root.join(path) }
}

pub(crate) fn text<'a>(value: &'a Value, key: &str) -> &'a str {
    value[key].as_str().unwrap_or_else(|| panic!("`{key}` is not a string"))
}

pub(crate) fn count(value: &Value, key: &str) -> usize {
    value[key].as_u64().unwrap_or_else(|| panic!("`{key}` is not a count")) as usize
}

pub(crate) fn layers(value: &Value) -> Vec<usize> {
    numbers(value).into_iter().map(|layer| layer as usize).collect()
}

/// Hashes token ids as in the reference data: SHA-256 over 32-bit little-endian integers.
fn ids_hash(windows: &Windows) -> String {
    sha256::of_bytes(windows.ids.iter().flat_map(|id| id.to_le_bytes()).collect::<Vec<u8>>())
}

fn parse_rule(value: &Value) -> WindowRule {
    text(value, "rule").parse().unwrap()
}

/// Returns the calibration windows for a setting, and checks that their starts and ids match the reference data.
pub(crate) fn checked_calibration_windows(tokenizer: &Tokenizer, expected: &Value) -> Windows {
    let rows = read_rows(input_path(text(expected, "file")), None).unwrap();
    let [sequences, length, seed] = ["sequences", "length", "seed"].map(|key| count(expected, key));
    let windows = calibration_windows(parse_rule(expected), &rows, tokenizer, sequences, length, seed as u64).unwrap();
    if let Some(starts) = expected["starts"].as_array() {
        let starts: Vec<usize> = starts.iter().map(|start| start.as_u64().unwrap() as usize).collect();
        let ours: Vec<usize> = windows.starts.iter().map(|start| start.token).collect();
        assert_eq!(ours, starts, "starts in {}", expected["file"]);
    }
    assert_eq!(ids_hash(&windows), text(expected, "ids_sha256"), "calibration ids of {}", expected["file"]);
    windows
}

/// Returns the evaluation windows for a text, and checks that their number and ids match the reference data.
pub(crate) fn checked_evaluation_windows(tokenizer: &Tokenizer, expected: &Value) -> Windows {
    let rows = read_rows(input_path(text(expected, "file")), None).unwrap();
    let rule = parse_rule(expected);
    let length = count(expected, "length");
    let all = evaluation_windows(rule, &rows, tokenizer, length, None).unwrap();
    assert_eq!(all.count(), count(expected, "all_windows"), "windows of {}", expected["file"]);
    let windows = evaluation_windows(rule, &rows, tokenizer, length, Some(count(expected, "limit"))).unwrap();
    assert_eq!(ids_hash(&windows), text(expected, "ids_sha256"), "evaluation ids of {}", expected["file"]);
    windows
}

/// Result of a calibration pass.
pub(crate) struct CalibrationResult {
    pub(crate) similarities: Similarities,
    pub(crate) activations: Activations,
}

/// Runs the dense backbone over the windows, and keeps the requested similarities and activations.
pub(crate) fn calibrate(engine: &dyn Engine, windows: &Windows, request: &PassRequest) -> CalibrationResult {
    let rows: Vec<&[u32]> = windows.iter().collect();
    let shape = ActivationShape { channels: engine.config().hidden, sequences: rows.len(), length: windows.length };
    let mut collected = InMemory::new(request.sites.iter().copied());
    let mut pieces = [WindowSubset { windows: rows, first_sequence: 0, spool: &mut collected }];
    let mut similarities = calibrate::run(engine, &mut pieces, 2048, request, |_| Ok(())).unwrap();
    CalibrationResult { similarities: similarities.remove(0), activations: collected.finish(shape).unwrap() }
}

/// Creates a request for similarities only.
pub(crate) fn pairs_only(pairs: impl IntoIterator<Item = Pair>) -> PassRequest {
    PassRequest { pairs: pairs.into_iter().collect(), sites: BTreeSet::new() }
}

/// Returns the spans of removed layers, each of which gets one operator.
pub(crate) fn spans(method: &dyn Recovery, removed: &[usize]) -> Vec<Span> {
    let regions = removed.chunk_by(|a, b| a + 1 == *b);
    regions.flat_map(|region| method.spans(Span::layers(region[0], region[region.len() - 1] + 1))).collect()
}

impl CalibrationResult {
    /// Fits the repair of one span on the first `fitted` sequences.
    pub(crate) fn solve(&self, engine: &dyn Engine, method: &dyn Recovery, span: Span, fitted: usize) -> Solution {
        let boundary = Boundary::new(engine, &self.activations, span, fitted);
        method.solve(&boundary).unwrap()
    }
}

/// Returns the program of a pruned backbone, with the solved operators applied to the residual stream.
pub(crate) fn pruned(layers: usize, removed: &[usize], solved: &[(Span, Solution)]) -> Program {
    let mut repairs = Repairs::default();
    for (span, solution) in solved {
        if let Repair::Stream(operator) = &solution.repair {
            repairs.stream.insert(span.start, operator.clone());
        }
    }
    Program::repaired(layers, &Cut::layers(removed.iter().copied()), &repairs)
}

/// Returns the values of an operator in the layout of the reference data: `[C]` for a diagonal, and `[C, C]` otherwise.
pub(crate) fn values(operator: &Operator) -> Vec<f64> {
    operator.parts().unwrap().1.into_iter().map(f64::from).collect()
}

/// Returns whether all required files exist. If one is missing, panics in CI and prints the reason elsewhere.
pub(crate) fn available(paths: &[&str]) -> bool {
    paths.iter().filter_map(|path| path.strip_prefix("shared/")).all(|path| shared(path).is_some())
}

/// Returns the losses of each program on the windows.
pub(crate) fn losses(engine: &dyn Engine, programs: &[Program], windows: &Windows) -> Vec<Losses> {
    let trie = Trie::new(programs);
    let mut seconds = vec![0.0; trie.len()];
    let scored = score(&PerplexityEval::new(windows, 2048), engine, &trie, &mut seconds, |_| Ok(())).unwrap();
    scored.into_iter().map(|windows| Losses { windows }).collect()
}
