//! Calibrations of a grid: the texts from which activations are collected.

use std::fmt;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::one_or_many::{self, OneOrMany};
use super::validate::{self, EntryPosition, combinations, optional_values};
use super::yaml::{Positioned, YamlPosition};
use crate::error::{Error, Result};
use crate::quantity::MAX_TOKENS;

/// Calibration sequences from which activations are collected.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub struct Calibration {
    /// Corpus name in [`Grid::corpora`](super::Grid::corpora).
    pub corpus: String,
    pub sequences: usize,
    pub length: usize,
    pub seed: u64,
    /// Number of leading sequences used to compute an operator. Defaults to `sequences`. Layer selection uses all
    /// sequences.
    pub operator_sequences: usize,
}

/// Formats the corpus, number of sequences, length and seed, such as `wikitext2-validation:32x512@0`. Appends
/// `operator_sequences` if it differs from `sequences`.
impl fmt::Display for Calibration {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Self { corpus, sequences, length, seed, operator_sequences } = self;
        write!(f, "{corpus}:{sequences}x{length}@{seed}")?;
        if operator_sequences == sequences { Ok(()) } else { write!(f, "(operator_sequences={operator_sequences})") }
    }
}

impl Calibration {
    /// Minimum number of tokens per channel for solving an operator. With fewer tokens, SmolLM2 had a worse C4
    /// perplexity with repair than without.
    pub const MIN_TOKENS_PER_CHANNEL: usize = 16;

    /// Returns a warning if there are too few tokens to solve the operators of a backbone with `channels` channels.
    pub fn shortage(&self, backbone: &str, channels: usize) -> Option<String> {
        let Self { operator_sequences, length, .. } = self;
        let tokens = operator_sequences * length;
        let needed = Self::MIN_TOKENS_PER_CHANNEL * channels;
        (tokens < needed).then(|| {
            format!(
                "operators of `{backbone}` are computed from {tokens} tokens, {:.1} for each of its {channels} channels; \
                 use at least {needed} tokens (operator_sequences: {}).",
                tokens as f64 / channels.max(1) as f64,
                needed.div_ceil((*length).max(1))
            )
        })
    }
}

/// Text from which activations are collected. Each key accepts a list. All combinations of the listed values are used,
/// in key order.
#[derive(Debug, Clone, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub(super) struct CalibrationEntry {
    /// Names in `corpora`.
    pub(super) corpus: OneOrMany<String>,
    /// Number of sequences.
    #[schemars(schema_with = "one_or_many::counts_schema")]
    pub(super) sequences: OneOrMany<usize>,
    /// Tokens per sequence.
    #[schemars(schema_with = "one_or_many::lengths_schema")]
    pub(super) length: OneOrMany<usize>,
    /// Seed for drawing sequences.
    #[serde(default)]
    #[schemars(extend("default" = 0))]
    pub(super) seed: OneOrMany<u64>,
    /// Number of leading sequences for repairs; all by default. Selection uses all.
    #[serde(default)]
    #[schemars(schema_with = "one_or_many::counts_schema")]
    pub(super) operator_sequences: OneOrMany<usize>,
}

/// Calibrations on an axis, and the corpora they refer to.
type Calibrations = (Vec<Positioned<Calibration>>, Vec<Positioned<String>>);

pub(super) fn read_calibrations(at: &EntryPosition<'_>, entries: &[CalibrationEntry]) -> Result<Calibrations> {
    let mut all = Vec::new();
    let mut corpora = Vec::new();
    for (i, entry) in entries.iter().enumerate() {
        let (calibrations, named) = expand_calibration(&at.item(i), entry)?;
        all.extend(calibrations);
        corpora.extend(named);
    }
    validate::check_values(at, &all)?;
    Ok((all, corpora))
}

/// Expands the lists of an entry into calibrations, one per combination.
fn expand_calibration(at: &EntryPosition<'_>, entry: &CalibrationEntry) -> Result<Calibrations> {
    let corpora = validate::read_values(&at.key("corpus"), &entry.corpus)?;
    let subject = "the number of calibration sequences";
    let sequences = validate::read_counts(&at.key("sequences"), &entry.sequences, 1, subject)?;
    let lengths = validate::read_counts(&at.key("length"), &entry.length, 2, "the length of a calibration sequence")?;
    let seeds = entry.seed.read_with(|seeds| validate::read_values(&at.key("seed"), seeds))?;
    let subject = "the number of sequences for the operator";
    let operators = entry
        .operator_sequences
        .read_with(|values| validate::read_counts(&at.key("operator_sequences"), values, 1, subject))?;
    let seeds = optional_values(at, seeds);
    let operators = optional_values(at, operators);

    let sizes = [corpora.len(), sequences.len(), lengths.len(), seeds.len(), operators.len()];
    validate::check_cell_count(&sizes, &at.position())?;
    let lists = sizes.iter().filter(|&&size| size > 1).count();
    let mut calibrations = Vec::new();
    for combination in combinations(&sizes) {
        let [c, n, t, s, o] = combination[..] else { continue };
        let (corpus, count, length, seed, operator) =
            (&corpora[c], &sequences[n], &lengths[t], &seeds[s], &operators[o]);
        // Fill in the defaults so that explicit and implicit defaults compare equal.
        let value = Calibration {
            corpus: corpus.value.clone(),
            sequences: count.value,
            length: length.value,
            seed: seed.value.unwrap_or(0),
            operator_sequences: operator.value.unwrap_or(count.value),
        };
        if value.sequences.saturating_mul(value.length) > MAX_TOKENS {
            return Err(Error::bad_input("a calibration has too many tokens")
                .at(count.position.to_string())
                .expected(format!("sequences × length of {MAX_TOKENS} or less"))
                .found(format!("{} × {}", value.sequences, value.length)));
        }
        if value.operator_sequences > value.sequences {
            return Err(operator_sequences_error(&value, &operator.position, lists > 0));
        }
        let positions = [&corpus.position, &count.position, &length.position, &seed.position, &operator.position];
        let listed = positions.into_iter().zip(sizes).find(|(_, size)| lists == 1 && *size > 1);
        let position = listed.map_or_else(|| at.position(), |(position, _)| position.clone());
        calibrations.push(Positioned { value, position });
    }
    Ok((calibrations, corpora))
}

fn operator_sequences_error(calibration: &Calibration, position: &YamlPosition, is_expanded: bool) -> Error {
    let Calibration { sequences, operator_sequences, .. } = calibration;
    let error = Error::bad_input("`operator_sequences` exceeds `sequences`")
        .at(position.to_string())
        .expected(format!("at most {sequences}, the entry's `sequences`"));
    if !is_expanded {
        return error.found(operator_sequences.to_string()).hint("remove `operator_sequences` to use all sequences");
    }
    error
        .found(format!("{operator_sequences}, in the expanded combination `{calibration}`"))
        .hint("write the valid combinations as separate entries")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn shortage_warning_names_the_sufficient_token_count() {
        let [warning, none, some] = [4, 18, 17].map(|operator_sequences| {
            let calibration =
                Calibration { corpus: "c4".into(), sequences: 64, length: 512, seed: 0, operator_sequences };
            calibration.shortage("smollm2", 576)
        });
        let warning = warning.unwrap();
        assert!(warning.contains("2048 tokens, 3.6 for each of its 576 channels"), "{warning}");
        assert!(warning.contains("use at least 9216 tokens (operator_sequences: 18)"), "{warning}");
        assert_eq!(none, None);
        assert!(some.is_some());
    }
}
