//! In what the protocol of a number differs from the paper's: only numbers of one protocol may be judged by each other.

use std::collections::BTreeSet;

use crate::distill::Finetune;
use crate::grid::Calibration;
use crate::metric;
use crate::results::{Calibrated, Measurement, Protocol, stem};
use crate::tasks::Bos;

/// The paper's: section 4 and appendix C; windows and draws are those of its reference code.
const LENGTH: usize = 2048;
const SEQUENCES: usize = 128;
const OPERATOR_SEQUENCES: usize = 32;
/// Of a fine-tuned operator: appendix D.
const TRAINING_SEQUENCES: usize = 5000;
/// The rule by which each of the paper's texts is cut is called like the text.
const RULES: [&str; 3] = ["wikitext2", "c4", "ptb"];

/// In what a number's protocol differs from that of the paper's number; empty where it is the paper's.
pub(super) fn differences(of: &Measurement) -> Vec<String> {
    let mut found: Vec<String> = of.setup.unidentified.iter().cloned().collect();
    for (average, parts, words) in
        [(&metric::ACCURACY, metric::tasks(), "tasks"), (&metric::PERPLEXITY, metric::texts(), "texts")]
    {
        let own: BTreeSet<String> = of.setup.scored.iter().map(|protocol| protocol.measures().id).collect();
        if of.metric.id == average.id && own != parts.iter().map(ToString::to_string).collect() {
            found.push(format!("a mean of {} {words}, not of the paper's {}", own.len(), parts.len()));
        }
    }
    of.setup.scored.iter().for_each(|protocol| other_protocol(protocol, &mut found));
    if let Some(calibrated) = &of.setup.calibration {
        other_calibration(calibrated, of.record.condition.calibration.contains(':'), &mut found);
    }
    let mut seen = BTreeSet::new();
    found.retain(|text| seen.insert(text.clone()));
    found
}

/// `named` tells that the number's condition names the size, so that the paper's value has the same.
fn other_calibration(of: &Calibrated, named: bool, found: &mut Vec<String>) {
    let Calibration { corpus, sequences, length, operator_sequences, .. } = &of.calibration;
    if of.generated {
        found.push(format!("calibrated on generated text ({corpus})"));
    }
    rule(corpus, &of.rule, found);
    if *sequences != SEQUENCES {
        found.push(format!("{sequences} calibration sequences, not {SEQUENCES}"));
    }
    if *length != LENGTH {
        found.push(format!("calibration sequences of {length} tokens, not {LENGTH}"));
    }
    if of.repaired && !named && *operator_sequences != OPERATOR_SEQUENCES {
        found.push(format!("operators from {operator_sequences} sequences, not {OPERATOR_SEQUENCES}"));
    }
    of.finetune.iter().for_each(|training| other_training(training, found));
}

/// In what the training of an operator differs from the paper's.
fn other_training(&Finetune { sequences, length, .. }: &Finetune, found: &mut Vec<String>) {
    if sequences != TRAINING_SEQUENCES {
        found.push(format!("trained on {sequences} sequences, not {TRAINING_SEQUENCES}"));
    }
    if length != LENGTH {
        found.push(format!("trained on sequences of {length} tokens, not {LENGTH}"));
    }
}

fn rule(corpus: &str, rule: &str, found: &mut Vec<String>) {
    let text = stem(corpus);
    if RULES.contains(&text) && rule != text {
        found.push(format!("{corpus} cut by the rule {rule}"));
    }
}

/// In what a protocol differs from the paper's.
fn other_protocol(protocol: &Protocol, found: &mut Vec<String>) {
    match protocol {
        Protocol::Windows { corpus, rule: by, length, windows, all, limit, generated } => {
            if *generated {
                found.push(format!("generated text ({corpus})"));
            }
            rule(corpus, by, found);
            if *length != LENGTH {
                found.push(format!("windows of {length} tokens, not {LENGTH}"));
            }
            match (windows.zip(*all), limit) {
                (Some((windows, all)), _) if windows == all => {}
                (Some((windows, all)), _) => found.push(format!("{windows} of {all} windows of {corpus}")),
                // Nothing was read, so that nobody knows whether the limit leaves any out.
                (None, Some(limit)) => found.push(format!("at most {limit} windows of {corpus}")),
                (None, None) => {}
            }
        }
        Protocol::MultipleChoice { label, documents, original, whole, generated, bos, max_length, .. } => {
            match (generated, whole) {
                (true, _) => found.push(format!("{label}: generated documents")),
                (_, false) if documents < original => {
                    found.push(format!("{label}: {documents} of {original} documents"));
                }
                (_, false) => found.push(format!("{label}: {documents} documents, not the published split")),
                _ => {}
            }
            if *bos != Bos::default().to_string() {
                found.push(format!("BOS {bos}"));
            }
            if let Some(length) = max_length {
                found.push(format!("inputs of at most {length} tokens"));
            }
        }
        // The paper's machine: an NVIDIA A40 of 48 GB, in float16 (appendix F).
        Protocol::Latency { machine, .. } => found.push(format!("measured on {machine}, not on an NVIDIA A40 in f16")),
        Protocol::Average { .. } | Protocol::BitsPerByte { .. } => {}
    }
}
