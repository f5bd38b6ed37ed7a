//! How the numbers of a table were made, in one line.

use super::Protocol;
use super::measurement::{Calibrated, Measurement, Sample};
use super::protocol::streamed;
use crate::distill::Finetune;
use crate::grid::Calibration;
use crate::metric::{self, PromptName};

/// Profile, what was scored and how much of it, calibration.
pub fn protocol_line<'a>(profile: &str, numbers: impl IntoIterator<Item = &'a Measurement>) -> String {
    let numbers: Vec<&Measurement> = numbers.into_iter().collect();
    let mut parts = Vec::new();
    if !profile.is_empty() {
        parts.push(format!("profile {profile}"));
    }
    let protocols = || numbers.iter().flat_map(|number| &number.setup.scored);
    let texts = protocols().filter(|protocol| matches!(protocol, Protocol::Windows { .. }));
    parts.extend(grouped(metric::TEXT.name, texts));
    let tasks = protocols().filter(|protocol| matches!(protocol, Protocol::MultipleChoice { .. }));
    parts.extend(grouped(metric::TASK.name, tasks));
    let defined = protocols().filter(|protocol| matches!(protocol, Protocol::Defined { .. }));
    parts.extend(grouped("lm-evaluation-harness' definitions", defined));
    let prompts = protocols().filter_map(|protocol| match protocol {
        Protocol::Latency { length, batch, decode, .. } => {
            let prompt = PromptName { length: *length, batch: *batch, decode: *decode };
            Some((prompt.to_string(), protocol.short()))
        }
        _ => None,
    });
    let mut timed: Vec<(String, Vec<String>)> = Vec::new();
    for (prompt, how) in prompts {
        match timed.iter_mut().find(|(known, _)| *known == how) {
            Some((_, prompts)) if prompts.contains(&prompt) => {}
            Some((_, prompts)) => prompts.push(prompt),
            None => timed.push((how, vec![prompt])),
        }
    }
    let latency = |(how, prompts): (String, Vec<String>)| format!("latency over {} tokens: {how}", prompts.join(", "));
    parts.extend(timed.into_iter().map(latency));
    let mut calibrations: Vec<String> = Vec::new();
    let lines = numbers.iter().filter_map(|number| Some(line(number.setup.calibration.as_ref()?, &number.sample)));
    for line in lines {
        if !calibrations.contains(&line) {
            calibrations.push(line);
        }
    }
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
fn grouped<'a>(what: &str, protocols: impl Iterator<Item = &'a Protocol>) -> Option<String> {
    let mut groups: Vec<(String, Vec<String>)> = Vec::new();
    for protocol in protocols {
        let (name, how) = (protocol.name().to_owned(), protocol.short());
        match groups.iter_mut().find(|(known, _)| *known == how) {
            Some((_, names)) if names.contains(&name) => {}
            Some((_, names)) => names.push(name),
            None => groups.push((how, vec![name])),
        }
    }
    let line = |(how, names): &(String, Vec<String>)| format!("{}: {how}", names.join(", "));
    (!groups.is_empty()).then(|| format!("{what} on {}", groups.iter().map(line).collect::<Vec<_>>().join("; ")))
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
