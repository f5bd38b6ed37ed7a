//! Logits processors from transformers' `generate` that affect greedy decoding (`generation/logits_process.py`), in the
//! same order and in f32.

use serde::{Deserialize, Serialize};

/// Logits processors from a backbone's generation settings. Empty fields have no effect.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct LogitsProcessors {
    /// Biases added to the logit of a sequence's last token if the preceding tokens match.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub sequence_bias: Vec<(Vec<u32>, f64)>,
    /// Penalty on tokens that have already occurred. Positive logits are divided by it, and negative logits are
    /// multiplied by it.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub repetition_penalty: Option<f64>,
    /// Size of n-grams that must not repeat.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub no_repeat_ngram_size: Option<usize>,
    /// Sequences that must not be generated.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub bad_words_ids: Vec<Vec<u32>>,
    /// Minimum total number of tokens in the prompt and the answer before the answer may end.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_length: Option<usize>,
    /// Minimum number of tokens in the answer. Overrides `min_length`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub min_new_tokens: Option<usize>,
    /// Forced first token of the answer. Applies only if the prompt consists of one token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub forced_bos_token_id: Option<u32>,
    /// Only tokens that are allowed at the last position when the answer reaches its maximum length.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub forced_eos_token_id: Vec<u32>,
    /// Number of new tokens after which end tokens become more likely, and the factor per token.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub exponential_decay_length_penalty: Option<(i64, f64)>,
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub suppress_tokens: Vec<u32>,
    /// Tokens that must not begin an answer.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub begin_suppress_tokens: Vec<u32>,
    /// End tokens that the other processors refer to.
    #[serde(skip_serializing_if = "Vec::is_empty")]
    pub end_of_text: Vec<u32>,
}

/// Sequence whose next token is being chosen.
#[derive(Debug, Clone, Copy)]
pub(super) struct GeneratedSequence<'a> {
    pub(super) prompt: &'a [u32],
    pub(super) new: &'a [u32],
    pub(super) max_new_tokens: usize,
}

impl GeneratedSequence<'_> {
    fn len(self) -> usize {
        self.prompt.len() + self.new.len()
    }
}

impl LogitsProcessors {
    /// Returns whether the processors have no effect.
    pub fn is_empty(&self) -> bool {
        Self { end_of_text: Vec::new(), ..self.clone() } == Self::default()
    }

    /// Returns the highest id of a biased, banned or forced token. All such ids must be in the vocabulary.
    pub fn highest_id(&self) -> Option<u32> {
        let sequences = self.sequence_bias.iter().map(|(ids, _)| ids).chain(&self.bad_words_ids);
        let forced = self.forced_bos_token_id.iter().chain(&self.forced_eos_token_id);
        sequences.flatten().chain(forced).copied().max()
    }

    pub(super) fn apply(&self, logits: &mut [f32], generated: GeneratedSequence<'_>) {
        let ids = [generated.prompt, generated.new].concat();
        let biases = self.sequence_bias.iter().map(|(sequence, bias)| (sequence, *bias as f32));
        add_biases(logits, &ids, biases);
        if let Some(penalty) = self.repetition_penalty {
            penalize_repetition(logits, &ids, penalty as f32);
        }
        if let Some(size) = self.no_repeat_ngram_size {
            ban_repeated_ngrams(logits, &ids, size);
        }
        let bad_words =
            self.bad_words_ids.iter().filter(|word| !matches!(word[..], [end] if self.end_of_text.contains(&end)));
        add_biases(logits, &ids, bad_words.map(|word| (word, f32::NEG_INFINITY)));
        let is_short = match (self.min_new_tokens, self.min_length) {
            (Some(tokens), _) => generated.new.len() < tokens,
            (None, Some(tokens)) => generated.len() < tokens,
            (None, None) => false,
        };
        if is_short {
            suppress(logits, &self.end_of_text);
        }
        if let Some(token) = self.forced_bos_token_id.filter(|_| generated.len() == 1) {
            force(logits, &[token]);
        }
        if !self.forced_eos_token_id.is_empty() && generated.new.len() + 1 == generated.max_new_tokens {
            force(logits, &self.forced_eos_token_id);
        }
        if let Some((start, factor)) = self.exponential_decay_length_penalty {
            self.apply_length_penalty(logits, generated.new.len() as i64 - start, factor);
        }
        suppress(logits, &self.suppress_tokens);
        // A forced BOS precedes the first freely chosen token.
        let start_len =
            generated.prompt.len() + usize::from(generated.prompt.len() <= 1 && self.forced_bos_token_id.is_some());
        if generated.len() == start_len {
            suppress(logits, &self.begin_suppress_tokens);
        }
    }

    /// Increases the logits of end tokens by an amount that grows exponentially with `tokens`, the number of new tokens
    /// since the start of the penalty.
    fn apply_length_penalty(&self, logits: &mut [f32], tokens: i64, factor: f64) {
        let Ok(tokens @ 1..) = i32::try_from(tokens) else { return };
        let growth = (factor.powi(tokens) - 1.0) as f32;
        for &token in &self.end_of_text {
            if let Some(logit) = logits.get_mut(token as usize).filter(|logit| logit.is_finite()) {
                *logit += logit.abs() * growth;
            }
        }
    }
}

/// Adds the bias of each sequence to the logit of its last token, if `ids` ends with the preceding tokens.
fn add_biases<'a>(logits: &mut [f32], ids: &[u32], biases: impl Iterator<Item = (&'a Vec<u32>, f32)>) {
    let mut sums: Vec<(usize, f32)> = Vec::new();
    for (sequence, bias) in biases {
        let Some((&last, before)) = sequence.split_last() else { continue };
        if !ids.ends_with(before) {
            continue;
        }
        match sums.iter_mut().find(|(token, _)| *token == last as usize) {
            Some((_, sum)) => *sum += bias,
            None => sums.push((last as usize, bias)),
        }
    }
    for (token, sum) in sums {
        if let Some(logit) = logits.get_mut(token) {
            *logit += sum;
        }
    }
}

fn penalize_repetition(logits: &mut [f32], ids: &[u32], penalty: f32) {
    let mut seen = vec![false; logits.len()];
    for &id in ids {
        if let Some(seen) = seen.get_mut(id as usize) {
            *seen = true;
        }
    }
    for (logit, _) in logits.iter_mut().zip(seen).filter(|(_, seen)| *seen) {
        *logit = if *logit < 0.0 { *logit * penalty } else { *logit / penalty };
    }
}

/// Bans tokens that would complete a repeated n-gram of `size` tokens.
fn ban_repeated_ngrams(logits: &mut [f32], ids: &[u32], size: usize) {
    if ids.len() < size {
        return;
    }
    let prefix = &ids[ids.len() + 1 - size..];
    let banned = ids.windows(size).filter(|window| window[..size - 1] == *prefix).map(|window| window[size - 1]);
    suppress(logits, &banned.collect::<Vec<_>>());
}

fn suppress(logits: &mut [f32], tokens: &[u32]) {
    for &token in tokens {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = f32::NEG_INFINITY;
        }
    }
}

/// Sets the logits of `tokens` to 0 and all others to −∞.
fn force(logits: &mut [f32], tokens: &[u32]) {
    logits.fill(f32::NEG_INFINITY);
    for &token in tokens {
        if let Some(logit) = logits.get_mut(token as usize) {
            *logit = 0.0;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const NEG_INF: f32 = f32::NEG_INFINITY;

    /// Name, processors, prompt, new tokens, and expected logits.
    type Case<'a> = (&'a str, LogitsProcessors, &'a [u32], &'a [u32], [f32; 6]);

    fn apply_processors(processors: &LogitsProcessors, prompt: &[u32], new: &[u32]) -> Vec<f32> {
        let mut logits = PLAIN.to_vec();
        processors.apply(&mut logits, GeneratedSequence { prompt, new, max_new_tokens: 4 });
        logits
    }

    /// Logits before any processor.
    const PLAIN: [f32; 6] = [1.0, -2.0, 3.0, 0.5, -1.0, 2.0];

    fn processors_with_eos() -> LogitsProcessors {
        LogitsProcessors { end_of_text: vec![5], ..LogitsProcessors::default() }
    }

    /// Returns the test cases for repeated tokens.
    fn repetition_cases() -> Vec<Case<'static>> {
        vec![
            ("nothing", processors_with_eos(), &[1, 2], &[3], PLAIN),
            (
                "repetition_penalty",
                LogitsProcessors { repetition_penalty: Some(2.0), ..LogitsProcessors::default() },
                &[1, 2, 2],
                &[3],
                [1.0, -4.0, 1.5, 0.25, -1.0, 2.0],
            ),
            (
                "no_repeat_ngram_size 2",
                LogitsProcessors { no_repeat_ngram_size: Some(2), ..LogitsProcessors::default() },
                &[1, 2, 1, 3],
                &[1],
                [1.0, -2.0, NEG_INF, NEG_INF, -1.0, 2.0],
            ),
            (
                "no_repeat_ngram_size 1",
                LogitsProcessors { no_repeat_ngram_size: Some(1), ..LogitsProcessors::default() },
                &[4],
                &[2],
                [1.0, -2.0, NEG_INF, 0.5, NEG_INF, 2.0],
            ),
            (
                "no_repeat_ngram_size longer than the sequence",
                LogitsProcessors { no_repeat_ngram_size: Some(3), ..LogitsProcessors::default() },
                &[1],
                &[1],
                PLAIN,
            ),
        ]
    }

    /// Returns the test cases for suppressed and biased tokens.
    fn bias_cases() -> Vec<Case<'static>> {
        vec![
            (
                "bad_words_ids",
                LogitsProcessors {
                    bad_words_ids: vec![vec![2], vec![1, 3, 0], vec![4, 4], vec![5]],
                    ..processors_with_eos()
                },
                &[1],
                &[3],
                [NEG_INF, -2.0, NEG_INF, 0.5, -1.0, 2.0],
            ),
            (
                "sequence_bias",
                LogitsProcessors {
                    sequence_bias: vec![(vec![0], -3.0), (vec![3, 0], 0.5), (vec![1, 2], 9.0)],
                    ..LogitsProcessors::default()
                },
                &[1],
                &[3],
                [-1.5, -2.0, 3.0, 0.5, -1.0, 2.0],
            ),
            (
                "suppress_tokens",
                LogitsProcessors { suppress_tokens: vec![2, 77], ..LogitsProcessors::default() },
                &[1],
                &[3],
                [1.0, -2.0, NEG_INF, 0.5, -1.0, 2.0],
            ),
            (
                "begin_suppress_tokens",
                LogitsProcessors { begin_suppress_tokens: vec![2], ..LogitsProcessors::default() },
                &[1, 1],
                &[],
                [1.0, -2.0, NEG_INF, 0.5, -1.0, 2.0],
            ),
            (
                "begin_suppress_tokens later",
                LogitsProcessors { begin_suppress_tokens: vec![2], ..LogitsProcessors::default() },
                &[1, 1],
                &[0],
                PLAIN,
            ),
        ]
    }

    /// Returns the test cases for lengths and forced tokens.
    fn length_cases() -> Vec<Case<'static>> {
        vec![
            (
                "min_length",
                LogitsProcessors { min_length: Some(3), ..processors_with_eos() },
                &[1],
                &[3],
                [1.0, -2.0, 3.0, 0.5, -1.0, NEG_INF],
            ),
            (
                "min_length reached",
                LogitsProcessors { min_length: Some(2), ..processors_with_eos() },
                &[1],
                &[3],
                PLAIN,
            ),
            (
                "min_new_tokens",
                LogitsProcessors { min_new_tokens: Some(2), min_length: Some(1), ..processors_with_eos() },
                &[1, 1, 1],
                &[3],
                [1.0, -2.0, 3.0, 0.5, -1.0, NEG_INF],
            ),
            (
                "forced_bos_token_id",
                LogitsProcessors {
                    forced_bos_token_id: Some(4),
                    begin_suppress_tokens: vec![4],
                    ..LogitsProcessors::default()
                },
                &[1],
                &[],
                [NEG_INF, NEG_INF, NEG_INF, NEG_INF, 0.0, NEG_INF],
            ),
            (
                "forced_eos_token_id",
                LogitsProcessors { forced_eos_token_id: vec![3, 5], ..LogitsProcessors::default() },
                &[1],
                &[3, 3, 3],
                [NEG_INF, NEG_INF, NEG_INF, 0.0, NEG_INF, 0.0],
            ),
            (
                "exponential_decay_length_penalty",
                LogitsProcessors { exponential_decay_length_penalty: Some((1, 1.5)), ..processors_with_eos() },
                &[1],
                &[3, 3, 3],
                [1.0, -2.0, 3.0, 0.5, -1.0, 4.5],
            ),
        ]
    }

    /// The expected logits come from the processors of the same names in transformers 5.24, applied to the same logits
    /// and ids in f32.
    #[test]
    fn logits_processors_match_transformers() {
        for (name, processors, prompt, new, expected) in
            [repetition_cases(), bias_cases(), length_cases()].into_iter().flatten()
        {
            assert_eq!(apply_processors(&processors, prompt, new), expected, "{name}");
            assert_eq!(processors.is_empty(), name == "nothing", "{name}");
        }
    }
}
