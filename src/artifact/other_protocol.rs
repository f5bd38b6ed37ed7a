//! In what the protocol of a number differs from the paper's: only numbers of one protocol may be judged by each other.

use std::collections::BTreeSet;

use serde_json::Value;

use crate::corpus::Rule;
use crate::criterion::Criterion;
use crate::distill::Finetune;
use crate::grid::{Calibration, Method};
use crate::metric::Of;
use crate::recovery::Recovery;
use crate::results::{Calibrated, Measurement, Protocol, Sample, factors, stem};
use crate::tasks::Bos;
use crate::{metric, recovery};

/// The paper's: section 4 and appendix C; windows and draws are those of its reference code.
const LENGTH: usize = 2048;
const SEQUENCES: usize = 128;
const OPERATOR_SEQUENCES: usize = 32;
/// The paper says nothing of it; its reference code draws with this one.
const SEED: u64 = 0;
/// The float types in which a value may stand beside the paper's. It says float16 where it measures time and memory
/// (appendix F), and nothing elsewhere; f32 rounds off nothing that float16 keeps.
const DTYPES: [&str; 2] = ["f16", "f32"];
/// Settings of methods that the paper leaves open, so that no value of them is another than the paper's: how several
/// regions are repaired, and where an order of layers comes from.
const OPEN: [&str; 2] = ["recovery.boundary", "criterion.order"];
/// Of a fine-tuned operator: appendix D.
const TRAINING_SEQUENCES: usize = 5000;
/// The rule by which each of the paper's texts is cut. Either order of a stream's shards may be the authors'.
const RULES: [(&str, Rule); 3] = [("wikitext2", Rule::Wikitext2), ("c4", Rule::C4Stream), ("ptb", Rule::Ptb)];

/// In what a number's protocol differs from that of the paper's number; empty where it is the paper's.
pub(super) fn differences(of: &Measurement) -> Vec<String> {
    let mut found: Vec<String> = of.setup.unidentified.iter().cloned().collect();
    let mean = match of.metric.of {
        Of::Tasks(_) => Some((metric::tasks().into_iter().map(str::to_owned).collect::<BTreeSet<String>>(), "tasks")),
        Of::Texts(_) => Some((metric::texts().into_iter().collect(), "texts")),
        _ => None,
    };
    if let Some((parts, words)) = mean {
        let own: BTreeSet<String> = of.setup.scored.iter().map(|protocol| protocol.measures().id).collect();
        if own != parts {
            found.push(format!("a mean of {} {words}, not of the paper's {}", own.len(), parts.len()));
        }
    }
    of.setup.scored.iter().for_each(|protocol| other_protocol(protocol, &mut found));
    if let Some(engine) = of.setup.engine.filter(|engine| !DTYPES.contains(&engine.dtype)) {
        found.push(format!("computed in {}, not in float16 or f32", engine.dtype));
    }
    other_options(of, &mut found);
    if let Sample::Seeds(seeds) = &of.sample {
        found.push(format!("the mean over {} calibration seeds, not one draw", seeds.len()));
    }
    if let Some(calibrated) = &of.setup.calibration {
        other_calibration(calibrated, of.setup.told.contains(factors::OPERATOR_SEQUENCES), &mut found);
    }
    let mut seen = BTreeSet::new();
    found.retain(|text| seen.insert(text.clone()));
    found
}

/// Options of its methods that are not those that a grid's silence means, which are the paper's. What a number's condition
/// says, the condition of the paper's value says too.
fn other_options(of: &Measurement, found: &mut Vec<String>) {
    let variant = &of.setup.variant;
    let defaults = [Method::<dyn Criterion>::defaults, Method::<dyn Recovery>::defaults];
    for (axis, defaults) in ["criterion", "recovery"].into_iter().zip(defaults) {
        let Some(name) = variant.get(axis).and_then(Value::as_str) else { continue };
        let usual = factors::below(axis, &defaults(name));
        let trained = format!("{axis}.{}.", recovery::FINETUNE);
        let own = variant.iter().filter(|(option, _)| option.starts_with(&format!("{axis}.")));
        let open =
            |option: &str| OPEN.contains(&option) || of.setup.told.contains(option) || option.starts_with(&trained);
        for (option, value) in own.filter(|(option, value)| !open(option) && usual.get(*option) != Some(value)) {
            let not =
                usual.get(option).map(|usual| format!(", not {}", factors::words(option, usual))).unwrap_or_default();
            found.push(format!("{name} with {}{not}", factors::words(option, value)));
        }
    }
}

/// `named` tells that the number's condition names the size, so that the paper's value has the same.
fn other_calibration(of: &Calibrated, named: bool, found: &mut Vec<String>) {
    let Calibration { corpus, sequences, length, seed, operator_sequences } = &of.calibration;
    match of.generated {
        // By whatever rule it is cut.
        true => found.push(format!("calibrated on generated text ({corpus})")),
        false => rule(corpus, &of.rule, found),
    }
    if *sequences != SEQUENCES {
        found.push(format!("{sequences} calibration sequences, not {SEQUENCES}"));
    }
    if *length != LENGTH {
        found.push(format!("calibration sequences of {length} tokens, not {LENGTH}"));
    }
    if *seed != SEED {
        found.push(format!("calibration seed {seed}, not {SEED}"));
    }
    if of.repaired && !named && *operator_sequences != OPERATOR_SEQUENCES {
        found.push(format!("operators from {operator_sequences} sequences, not {OPERATOR_SEQUENCES}"));
    }
    of.finetune.iter().for_each(|training| other_training(training, found));
}

/// In what the training of an operator differs from the paper's.
fn other_training(&Finetune { sequences, length, seed }: &Finetune, found: &mut Vec<String>) {
    if sequences != TRAINING_SEQUENCES {
        found.push(format!("trained on {sequences} sequences, not {TRAINING_SEQUENCES}"));
    }
    if length != LENGTH {
        found.push(format!("trained on sequences of {length} tokens, not {LENGTH}"));
    }
    if seed != SEED {
        found.push(format!("trained with seed {seed}, not {SEED}"));
    }
}

fn rule(corpus: &str, rule: &str, found: &mut Vec<String>) {
    let text = stem(corpus);
    if RULES.iter().any(|(known, needed)| *known == text && rule != needed.name()) {
        found.push(format!("{corpus} cut by the rule {rule}"));
    }
}

/// In what a protocol differs from the paper's.
fn other_protocol(protocol: &Protocol, found: &mut Vec<String>) {
    match protocol {
        Protocol::Windows { corpus, rule: by, length, windows, all, limit, generated, .. } => {
            match generated {
                true => found.push(format!("generated text ({corpus})")),
                false => rule(corpus, by, found),
            }
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
            if *bos != Bos::default() {
                found.push(format!("BOS {bos}"));
            }
            if let Some(length) = max_length {
                found.push(format!("inputs of at most {length} tokens"));
            }
        }
        // The paper's machine: an NVIDIA A40 of 48 GB, in float16 (appendix F).
        Protocol::Latency { machine, .. } => found.push(format!("measured on {machine}, not on an NVIDIA A40 in f16")),
        Protocol::Average { .. } | Protocol::Derived { .. } | Protocol::Defined { .. } => {}
    }
}
