//! How the numbers of a table were made, in one line.

use super::Protocol;
use super::groups::{distinct, grouped};
use super::measurement::{Calibrated, Measurement, Sample};
use super::protocol::streamed;
use crate::distill::Finetune;
use crate::grid::Calibration;
use crate::metric::{self, PromptName};

/// The same as a sentence under a table; empty where there is nothing to say.
pub fn protocol_sentence<'a>(profile: &str, numbers: impl IntoIterator<Item = &'a Measurement>) -> String {
    let line = protocol_line(profile, numbers);
    if line.is_empty() { line } else { format!("Protocol: {line}.") }
}

/// Profile, what was scored and how much of it, calibration.
pub(super) fn protocol_line<'a>(profile: &str, numbers: impl IntoIterator<Item = &'a Measurement>) -> String {
    let numbers: Vec<&Measurement> = numbers.into_iter().collect();
    let mut parts = Vec::new();
    if !profile.is_empty() {
        parts.push(format!("profile {profile}"));
    }
    let protocols = || numbers.iter().flat_map(|number| &number.setup.scored);
    let texts = protocols().filter(|protocol| matches!(protocol, Protocol::Windows { .. }));
    parts.extend(scored(metric::TEXT.name, texts));
    let tasks = protocols().filter(|protocol| matches!(protocol, Protocol::MultipleChoice { .. }));
    parts.extend(scored(metric::TASK.name, tasks));
    let defined = protocols().filter(|protocol| matches!(protocol, Protocol::Defined { .. }));
    parts.extend(scored("lm-evaluation-harness' definitions", defined));
    let prompts = protocols().filter_map(|protocol| match protocol {
        Protocol::Latency { length, batch, decode, .. } => {
            let prompt = PromptName { length: *length, batch: *batch, decode: *decode };
            Some((protocol.short(), prompt.to_string()))
        }
        _ => None,
    });
    let latency = |(how, prompts): (String, String)| format!("latency over {prompts} tokens: {how}");
    parts.extend(by_how(prompts).map(latency));
    let lines = numbers.iter().filter_map(|number| Some(line(number.setup.calibration.as_ref()?, &number.sample)));
    let calibrations = distinct(&lines.collect::<Vec<_>>());
    if !calibrations.is_empty() {
        parts.push(format!("calibration: {}", calibrations.join(", or ")));
    }
    let of_text = |protocol: &Protocol| matches!(protocol, Protocol::Windows { shards: Some(_), .. });
    let of_calibration =
        |number: &&Measurement| number.setup.calibration.as_ref().is_some_and(|of| of.shards.is_some());
    if protocols().any(of_text) || numbers.iter().any(of_calibration) {
        parts.push("which order of the shards the authors had is not known".to_owned());
    }
    parts.join("; ")
}

/// What is made in the same way is said once: `perplexity: wikitext2, c4: all windows of 2048 tokens`.
fn scored<'a>(what: &str, protocols: impl Iterator<Item = &'a Protocol>) -> Option<String> {
    let named = protocols.map(|protocol| (protocol.short(), protocol.name().to_owned()));
    let lines: Vec<String> = by_how(named).map(|(how, names)| format!("{names}: {how}")).collect();
    (!lines.is_empty()).then(|| format!("{what} on {}", lines.join("; ")))
}

/// How things are made, each way with the names of what is made so.
fn by_how(named: impl Iterator<Item = (String, String)>) -> impl Iterator<Item = (String, String)> {
    grouped(named).into_iter().map(|(how, names)| (how, distinct(&names).join(", ")))
}

/// `128 sequences of 2048 tokens of c4-train, operators from the first 32`
fn line(of: &Calibrated, sample: &Sample) -> String {
    let Calibration { corpus, sequences, length, seed, operator_sequences } = &of.calibration;
    let generated = if of.generated { " (generated)" } else { "" };
    let seed = match sample {
        Sample::Seeds(seeds) => {
            format!(", seeds {}", seeds.iter().map(|of| of.seed.to_string()).collect::<Vec<_>>().join(" "))
        }
        _ if *seed == 0 => String::new(),
        _ => format!(", seed {seed}"),
    };
    let operators = match operator_sequences == sequences {
        true => String::new(),
        false => format!(", operators from the first {operator_sequences}"),
    };
    let trained = of.finetune.map_or(String::new(), |Finetune { sequences, length, .. }| {
        format!(", operators trained on {sequences} sequences of {length} tokens")
    });
    let streamed = streamed(of.shards);
    format!("{sequences} sequences of {length} tokens of {corpus}{generated}{streamed}{seed}{operators}{trained}")
}
