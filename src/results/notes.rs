//! Notes under a table: the protocol behind its numbers, overlapping windows, and the engines used for its backbones.

use std::collections::BTreeMap;

use super::protocol_text::shard_order_text;
use super::result_row::{CalibrationSummary, ResultRow, Sample};
use super::settings::{distinct, group_by_key};
use super::{Protocol, capital};
use crate::corpus::WindowRule;
use crate::distill::Finetune;
use crate::grid::Calibration;
use crate::metric::{self, PromptName};
use crate::model::{CPU, Cut, Sublayer};
use crate::pipeline::identity::ComputeId;

/// Prefix of notes that warn about a run. Terminals show these warnings on stderr instead of below the table.
pub const WARNING: &str = "Warning: ";

/// Formats the protocol of numbers as a sentence for the notes under a table. Returns an empty string if there is no
/// profile, scored data or calibration to report.
pub fn protocol_sentence<'a>(profile: &str, numbers: impl IntoIterator<Item = &'a ResultRow>) -> String {
    let line = protocol_line(profile, numbers);
    if line.is_empty() { line } else { format!("Protocol: {line}.") }
}

/// Formats the profile, scored data and calibration on one line.
pub(super) fn protocol_line<'a>(profile: &str, numbers: impl IntoIterator<Item = &'a ResultRow>) -> String {
    let numbers: Vec<&ResultRow> = numbers.into_iter().collect();
    let mut parts = Vec::new();
    if !profile.is_empty() {
        parts.push(format!("profile {profile}"));
    }
    let protocols = || numbers.iter().flat_map(|number| &number.setup.scored);
    let texts = protocols().filter(|protocol| matches!(protocol, Protocol::Windows { .. }));
    parts.extend(group_columns(metric::TEXT.name, texts));
    let tasks = protocols().filter(|protocol| matches!(protocol, Protocol::MultipleChoice { .. }));
    parts.extend(group_columns(metric::TASK.name, tasks));
    let defined = protocols().filter(|protocol| matches!(protocol, Protocol::Defined { .. }));
    parts.extend(group_columns("lm-evaluation-harness' definitions", defined));
    let prompts = protocols().filter_map(|protocol| match protocol {
        Protocol::Latency { length, batch, decode, .. } => {
            let prompt = PromptName { length: *length, batch: *batch, decode: *decode };
            Some((protocol.short(), prompt.to_string()))
        }
        _ => None,
    });
    parts.extend(
        group_by_protocol(prompts).map(|(how, prompts)| format!("latency of prompts of {prompts} tokens: {how}")),
    );
    let lines =
        numbers.iter().filter_map(|number| Some(calibration_text(number.setup.calibration.as_ref()?, &number.sample)));
    let calibrations = distinct(&lines.collect::<Vec<_>>());
    if !calibrations.is_empty() {
        parts.push(format!("calibration: {}", calibrations.join(", or ")));
    }
    if protocols().any(|protocol| matches!(protocol, Protocol::Windows { shards: Some(_), .. }))
        || numbers
            .iter()
            .any(|number| number.setup.calibration.as_ref().is_some_and(|calibration| calibration.shards.is_some()))
    {
        parts.push("the authors' shard order is unknown".to_owned());
    }
    parts.join("; ")
}

/// Groups columns with the same protocol: `perplexity on wikitext2, c4: all windows of 2048 tokens`.
fn group_columns<'a>(what: &str, protocols: impl Iterator<Item = &'a Protocol>) -> Option<String> {
    let named = protocols.map(|protocol| (protocol.short(), protocol.name().to_owned()));
    let lines: Vec<String> = group_by_protocol(named).map(|(how, names)| format!("{names}: {how}")).collect();
    (!lines.is_empty()).then(|| format!("{what} on {}", lines.join("; ")))
}

/// Groups names that have the same protocol.
fn group_by_protocol(named: impl Iterator<Item = (String, String)>) -> impl Iterator<Item = (String, String)> {
    group_by_key(named).into_iter().map(|(how, names)| (how, distinct(&names).join(", ")))
}

/// Formats a calibration like `128 sequences of 2048 tokens of c4-train, operators computed from the first 32`.
fn calibration_text(calibrated: &CalibrationSummary, sample: &Sample) -> String {
    let Calibration { corpus, sequences, length, seed, operator_sequences } = &calibrated.calibration;
    let generated = if calibrated.generated { " (generated)" } else { "" };
    let seed = match sample {
        Sample::Seeds(rows) => {
            format!(", seeds {}", rows.iter().map(|row| row.seed().to_string()).collect::<Vec<_>>().join(" "))
        }
        _ if *seed == 0 => String::new(),
        _ => format!(", seed {seed}"),
    };
    let operators = match operator_sequences == sequences {
        true => String::new(),
        false => format!(", operators computed from the first {operator_sequences}"),
    };
    let trained = calibrated.finetune.map_or(String::new(), |Finetune { sequences, length, .. }| {
        format!(", operators trained on {sequences} sequences of {length} tokens")
    });
    let streamed = shard_order_text(calibrated.shards);
    format!("{sequences} sequences of {length} tokens of {corpus}{generated}{streamed}{seed}{operators}{trained}")
}

/// Formats a line about the texts whose windows are drawn with replacement. Returns `None` if there are no such texts.
pub(super) fn drawn_texts_note<'a>(numbers: impl IntoIterator<Item = &'a ResultRow>) -> Option<String> {
    let texts = numbers
        .into_iter()
        .filter(|number| matches!(number.sample, Sample::Losses(_)))
        .flat_map(|number| &number.setup.scored)
        .filter_map(|protocol| match protocol {
            Protocol::Windows { corpus, rule, .. } => {
                rule.parse::<WindowRule>().is_ok_and(WindowRule::with_replacement).then_some(corpus)
            }
            _ => None,
        });
    let texts = distinct(texts);
    (!texts.is_empty()).then(|| {
        format!(
            "Windows of {} are drawn with replacement and may overlap. Errors and tests assume independent windows, so they \
             understate the uncertainty there.",
            texts.join(", ")
        )
    })
}

/// Formats one sentence per engine, listing its backbones. Omits the f32 CPU kernels, which are the default.
pub fn engine_notes(engines: &BTreeMap<String, ComputeId>) -> Vec<String> {
    let default = ComputeId::from(CPU);
    let mut ran: BTreeMap<String, Vec<&str>> = BTreeMap::new();
    for (backbone, engine) in engines.iter().filter(|(_, engine)| **engine != default) {
        ran.entry(engine.to_string()).or_default().push(backbone);
    }
    ran.into_iter().map(|(engine, backbones)| format!("Engine: {engine} ({}).", backbones.join(", "))).collect()
}

/// Formats one sentence per data type to which weights were rounded, listing the backbones.
pub fn rounding_notes(rounded: &BTreeMap<String, String>) -> Vec<String> {
    let mut ways: BTreeMap<&str, Vec<&str>> = BTreeMap::new();
    rounded.iter().for_each(|(backbone, way)| ways.entry(way).or_default().push(backbone));
    ways.into_iter().map(|(way, backbones)| format!("{} ({}).", capital(way), backbones.join(", "))).collect()
}

/// Formats layer indices as ranges, for example `1,8-10` with the dash `-` and the separator `,`.
pub fn ranges(layers: &[usize], dash: &str, separator: &str) -> String {
    let mut sorted = layers.to_vec();
    sorted.sort_unstable();
    sorted.dedup();
    let runs = sorted.chunk_by(|a, b| a + 1 == *b).map(|run| match run {
        [first, .., last] => format!("{first}{dash}{last}"),
        _ => run[0].to_string(),
    });
    runs.collect::<Vec<_>>().join(separator)
}

/// Formats a cut: `3-5,8` for whole layers, `attention 0,3-5; mlp 2` for sublayers by kind.
pub fn removed_text(cut: &Cut) -> String {
    if cut.has_only_whole_layers() {
        return ranges(&cut.whole_layers(), "-", ",");
    }
    let kinds = Sublayer::ALL.into_iter().filter_map(|kind| {
        let layers: Vec<usize> = cut.iter().filter(|(_, other)| *other == kind).map(|(layer, _)| layer).collect();
        (!layers.is_empty()).then(|| format!("{kind} {}", ranges(&layers, "-", ",")))
    });
    kinds.collect::<Vec<_>>().join("; ")
}

#[cfg(test)]
mod removed_tests {
    use super::*;

    #[test]
    fn sublayers_are_listed_by_kind() {
        let cut = Cut::layers([3, 4]).with(0, Sublayer::Attention);
        assert_eq!(removed_text(&cut), "attention 0,3-4; mlp 3-4");
        assert_eq!(removed_text(&Cut::layers([4, 3])), "3-4");
    }
}

#[cfg(test)]
mod engines_tests {
    use super::*;
    use crate::model::EngineId;

    #[test]
    fn non_default_engine_is_noted_with_its_backbones() {
        let bf16 = EngineId { name: "candle", dtype: "bf16", device: "cpu" };
        let engines = [("a", bf16), ("b", CPU), ("c", bf16)].map(|(name, id)| (name.to_owned(), id.into()));
        assert_eq!(engine_notes(&engines.into()), ["Engine: candle bf16 on cpu (a, c)."]);
        assert!(engine_notes(&[("b".to_owned(), CPU.into())].into()).is_empty());
    }
}
