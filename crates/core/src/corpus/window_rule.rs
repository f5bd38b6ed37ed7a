//! Rules for cutting windows from a corpus, taken from the reference code of the Ghosted Layers paper.

use std::str::FromStr;

use super::stream::{ShardOrder, Shards, draw_windows};
use super::text_files::Rows;
use super::windows::{Documents, Start, Windows, count_predicted_bytes, last_start};
use super::{PythonRandom, Tokenizer};
use crate::error::{Error, Result};
use crate::quantity::pluralize;

/// Number of C4 perplexity windows, as in the reference code.
const C4_WINDOWS: usize = 256;

/// Seed for the C4 perplexity windows and for the streaming shuffle they are drawn from.
pub const EVALUATION_SEED: u64 = 0;

/// Rule that cuts windows from a corpus. Each rule is named after the corpus to which the reference code applies it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WindowRule {
    /// Joins rows with blank lines and tokenizes them once. Calibration draws from the first 90 % of the tokens.
    Wikitext2,
    /// Joins rows with blank lines and tokenizes them once. Calibration draws from all tokens.
    Ptb,
    /// Tokenizes each row as a separate document. A window lies within one document.
    C4,
    /// Draws from the documents of a sharded corpus in streaming order, like the C4 loader of the paper.
    C4Stream,
}

crate::names!(WindowRule: Wikitext2 = "wikitext2", Ptb = "ptb", C4 = "c4", C4Stream = "c4-stream");

impl WindowRule {
    /// Returns whether perplexity windows may overlap because they are drawn with replacement.
    pub fn with_replacement(self) -> bool {
        self == Self::C4
    }

    /// Returns whether the rows are joined into one text.
    pub fn joins_rows(self) -> bool {
        matches!(self, Self::Wikitext2 | Self::Ptb)
    }

    /// Returns the number of perplexity windows for a text of `corpus_tokens` tokens.
    pub fn windows(self, corpus_tokens: usize, length: usize) -> usize {
        match self {
            Self::Wikitext2 | Self::Ptb => corpus_tokens / length.max(1),
            Self::C4 | Self::C4Stream => C4_WINDOWS,
        }
    }
}

impl FromStr for WindowRule {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        Self::ALL
            .into_iter()
            .find(|rule| rule.name() == name)
            .ok_or_else(|| Error::bad_input("unknown corpus rule").none_of(name, Self::ALL.map(Self::name)))
    }
}

/// Draws `sequences` windows of `length` tokens as the reference code does after `random.seed(seed)`.
///
/// With `n` tokens in the joined text and `T` = `length`, a window starts at
/// - [`WindowRule::Wikitext2`]: randint(0, int(0.9·n) − T − 1),
/// - [`WindowRule::Ptb`]: randint(0, n − T − 1),
/// - [`WindowRule::C4`]: document randint(0, int(0.9·documents) − 1), redrawn until it has at least T + 1 tokens, then
///   token randint(0, its tokens − T − 1),
/// - [`WindowRule::C4Stream`]: as in [`streamed_calibration_windows`] with the rows as the only shard.
///
/// Windows may overlap. Source: data loaders of the paper's reference code.
///
/// # Errors
/// Fails if `length` is below 2, `sequences` is 0, the corpus is too short for one window, or the text cannot be
/// tokenized.
pub fn calibration_windows(
    rule: WindowRule,
    rows: &[String],
    tokenizer: &Tokenizer,
    sequences: usize,
    length: usize,
    seed: u64,
) -> Result<Windows> {
    check_length(length)?;
    check_sequences(sequences)?;
    let mut random = PythonRandom::new(seed);
    if rule == WindowRule::C4Stream {
        return with_one_shard(rows, |shards| streamed_calibration_windows(shards, tokenizer, sequences, length, seed));
    }
    if rule == WindowRule::C4 {
        let drawable = nine_tenths(rows.len());
        return Documents::new(&rows[..drawable], tokenizer, length).draw_windows(sequences, &mut random);
    }

    let (ids, ends) = tokenizer.encode_with_ends(&rows.join("\n\n"))?;
    let end = if rule == WindowRule::Wikitext2 { nine_tenths(ids.len()) } else { ids.len() };
    let Some(last) = last_start(end, length) else {
        let window = length.saturating_add(1);
        let needed = if rule == WindowRule::Wikitext2 { window.saturating_mul(10).div_ceil(9) } else { window };
        return Err(too_short_error(ids.len(), needed, rule, length));
    };
    let mut windows = Windows { corpus_tokens: ids.len(), ..Windows::new(length) };
    for _ in 0..sequences {
        windows.push_random(0, (&ids, &ends), last, &mut random)?;
    }
    Ok(windows)
}

/// Returns the perplexity windows of `length` tokens, at most the first `limit` of them.
///
/// - [`WindowRule::Wikitext2`], [`WindowRule::Ptb`]: consecutive windows from the first token on, without the
///   incomplete last one.
/// - [`WindowRule::C4`]: 256 windows after `random.seed(0)`. The document is randint(0, documents − 1), redrawn until
///   it has more than T tokens. The window starts at token randint(0, its tokens − T − 1).
/// - [`WindowRule::C4Stream`]: as in [`streamed_evaluation_windows`] with the rows as the only shard.
///
/// # Errors
/// Fails if `length` is below 2, `limit` is 0, the corpus is too short for one window, or the text cannot be tokenized.
pub fn evaluation_windows(
    rule: WindowRule,
    rows: &[String],
    tokenizer: &Tokenizer,
    length: usize,
    limit: Option<usize>,
) -> Result<Windows> {
    check_length(length)?;
    check_limit(limit)?;
    if rule == WindowRule::C4Stream {
        return with_one_shard(rows, |shards| streamed_evaluation_windows(shards, tokenizer, length, limit));
    }
    if rule == WindowRule::C4 {
        let count = limit.map_or(C4_WINDOWS, |limit| limit.min(C4_WINDOWS));
        let mut random = PythonRandom::new(EVALUATION_SEED);
        return Documents::new(rows, tokenizer, length).draw_windows(count, &mut random);
    }

    let (mut ids, ends) = tokenizer.encode_with_ends(&rows.join("\n\n"))?;
    let corpus_tokens = ids.len();
    let all = rule.windows(corpus_tokens, length);
    if all == 0 {
        return Err(too_short_error(corpus_tokens, length, rule, length));
    }
    let count = limit.map_or(all, |limit| limit.min(all));
    ids.truncate(count * length);
    let starts = (0..count).map(|index| Start { document: 0, token: index * length }).collect();
    let bytes = ends[..count * length].chunks(length).map(count_predicted_bytes).sum();
    Ok(Windows { ids, length, starts, corpus_tokens, bytes })
}

/// Draws `sequences` windows of `length` tokens from sharded text according to [`WindowRule::C4Stream`]. The documents
/// form a stream that is shuffled with `seed`. After `random.seed(seed)`, each document in the stream with more than T
/// tokens (T = `length`) yields one window, which starts at token randint(0, its tokens − T − 1).
///
/// Source: C4 loader of the official repository.
///
/// # Errors
/// Fails in the same cases as [`calibration_windows`], or if a shard cannot be read.
pub fn streamed_calibration_windows(
    shards: &Shards<'_>,
    tokenizer: &Tokenizer,
    sequences: usize,
    length: usize,
    seed: u64,
) -> Result<Windows> {
    check_length(length)?;
    check_sequences(sequences)?;
    draw_windows(shards, seed, tokenizer, (sequences, length), &mut PythonRandom::new(seed))
}

/// Returns the perplexity windows from sharded text according to [`WindowRule::C4Stream`], at most the first `limit` of
/// them. The 256 windows are drawn as in [`streamed_calibration_windows`] with seed 0.
///
/// # Errors
/// Fails in the same cases as [`evaluation_windows`], or if a shard cannot be read.
pub fn streamed_evaluation_windows(
    shards: &Shards<'_>,
    tokenizer: &Tokenizer,
    length: usize,
    limit: Option<usize>,
) -> Result<Windows> {
    check_length(length)?;
    check_limit(limit)?;
    let count = limit.map_or(C4_WINDOWS, |limit| limit.min(C4_WINDOWS));
    draw_windows(shards, EVALUATION_SEED, tokenizer, (count, length), &mut PythonRandom::new(EVALUATION_SEED))
}

/// Calls `draw` with a single shard that contains all rows.
fn with_one_shard(rows: &[String], draw: impl FnOnce(&Shards<'_>) -> Result<Windows>) -> Result<Windows> {
    let open = |_| -> Result<Rows<'_>> { Ok(Box::new(rows.iter().cloned().map(Ok))) };
    draw(&Shards { count: 1, order: ShardOrder::default(), open: &open })
}

/// Computes Python's `int(0.9 * count)`.
fn nine_tenths(count: usize) -> usize {
    (0.9 * count as f64) as usize
}

fn check_length(length: usize) -> Result<()> {
    if length >= 2 {
        return Ok(());
    }
    Err(Error::bad_input("the windows are too short to predict a token")
        .expected("windows of at least 2 tokens")
        .found(pluralize(length, "token")))
}

fn check_sequences(sequences: usize) -> Result<()> {
    if sequences > 0 {
        return Ok(());
    }
    Err(Error::bad_input("the number of calibration sequences is 0").expected("at least 1").found("0"))
}

fn check_limit(limit: Option<usize>) -> Result<()> {
    if limit != Some(0) {
        return Ok(());
    }
    Err(Error::bad_input("the limit on evaluation windows is 0")
        .expected("at least 1 window")
        .found("0")
        .hint("remove the limit to use all windows"))
}

fn too_short_error(found: usize, needed: usize, rule: WindowRule, length: usize) -> Error {
    Error::bad_input("the corpus is too short for one window")
        .expected(format!("at least {needed} tokens, for windows of {length} tokens under rule {rule}"))
        .found(format!("{found} tokens"))
        .hint("use shorter windows or a longer text")
}

#[cfg(test)]
mod tests {
    use super::super::tokenizer::sample;
    use super::*;

    /// Returns a row of `count` single-letter words, cycling through a to z from letter `first`.
    fn words(first: usize, count: usize) -> String {
        let letters: Vec<String> =
            (first..first + count).map(|i| char::from(b'a' + (i % 26) as u8).to_string()).collect();
        letters.join(" ")
    }

    /// Returns 40 documents. Document i has (i·7) mod 23 + 2 tokens: BOS, then words starting at letter i.
    fn documents() -> Vec<String> {
        (0..40).map(|i| words(i, (i * 7) % 23 + 1)).collect()
    }

    fn start_pairs(windows: &Windows) -> Vec<(usize, usize)> {
        windows.starts.iter().map(|start| (start.document, start.token)).collect()
    }

    fn start_tokens(windows: &Windows) -> Vec<usize> {
        windows.starts.iter().map(|start| start.token).collect()
    }

    /// Returns rows that form 101 tokens when joined: BOS and 100 words.
    fn hundred_words() -> Vec<String> {
        vec![words(0, 30), String::new(), words(30, 70)]
    }

    /// Expected values from Python: `random.seed(5)`, then six calls to `random.randint(0, int(0.9 * 101) - 8 - 1)`.
    /// The values for PTB come from `random.randint(0, 101 - 8 - 1)` instead.
    #[test]
    fn windows_of_joined_texts_match_python_reference() {
        let tokenizer = sample::words();
        let wikitext = calibration_windows(WindowRule::Wikitext2, &hundred_words(), &tokenizer, 6, 8, 5).unwrap();
        assert_eq!(start_tokens(&wikitext), [79, 32, 45, 67, 3, 59]);
        assert_eq!((wikitext.corpus_tokens, wikitext.count(), wikitext.ids.len()), (101, 6, 48));
        let all = tokenizer.encode(&hundred_words().join("\n\n")).unwrap();
        assert!(wikitext.iter().zip(&wikitext.starts).all(|(ids, start)| ids == &all[start.token..start.token + 8]));
        assert_eq!(wikitext.window(4), &all[3..11]);
        let ptb = calibration_windows(WindowRule::Ptb, &hundred_words(), &tokenizer, 6, 8, 5).unwrap();
        assert_eq!(start_tokens(&ptb), [79, 32, 45, 88, 83, 67]);
    }

    /// Expected values from Python, with `sizes = [(i * 7) % 23 + 2 for i in range(40)]`, T = 16 and `random.seed(3)`.
    /// Each of six draws runs `while True: d = randint(0, int(0.9 * 40) - 1); if sizes[d] >= T + 1: break`, then
    /// `randint(0, sizes[d] - T - 1)`.
    #[test]
    fn short_documents_are_redrawn_as_in_python() {
        let windows = calibration_windows(WindowRule::C4, &documents(), &sample::words(), 6, 16, 3).unwrap();
        assert_eq!(start_pairs(&windows), [(16, 4), (12, 0), (35, 0), (9, 0), (9, 2), (19, 0)]);
        // Document 9 is BOS, then words from letter 9 (`j`, id 11), so its token 2 has id 12.
        assert_eq!(windows.window(3)[..3], [1, 11, 12]);
        assert_eq!(windows.window(4)[..3], [12, 13, 14]);
    }

    /// Expected values from Python: 256 draws as in the test above, but with `random.seed(0)`, `d = randint(0, 39)` and
    /// `sizes[d] > T`.
    #[test]
    fn c4_evaluation_draws_256_windows_as_in_python() {
        let tokenizer = sample::words();
        let windows = evaluation_windows(WindowRule::C4, &documents(), &tokenizer, 16, None).unwrap();
        assert_eq!(windows.count(), 256);
        let first = [(26, 0), (16, 4), (19, 3), (22, 0), (32, 0), (6, 4)];
        assert_eq!(start_pairs(&windows)[..6], first);
        assert_eq!(start_pairs(&windows)[255], (39, 5));
        let few = evaluation_windows(WindowRule::C4, &documents(), &tokenizer, 16, Some(6)).unwrap();
        assert_eq!(start_pairs(&few), first);
        assert!(few.corpus_tokens < windows.corpus_tokens, "a document was tokenized before it was drawn");
    }

    #[test]
    fn evaluation_drops_the_incomplete_last_window() {
        let tokenizer = sample::words();
        for rule in [WindowRule::Wikitext2, WindowRule::Ptb] {
            let windows = evaluation_windows(rule, &hundred_words(), &tokenizer, 25, None).unwrap();
            assert_eq!(start_tokens(&windows), [0, 25, 50, 75]);
            assert_eq!((windows.ids.len(), windows.corpus_tokens), (100, 101));
            assert_eq!(evaluation_windows(rule, &hundred_words(), &tokenizer, 25, Some(9)).unwrap(), windows);
            let two = evaluation_windows(rule, &hundred_words(), &tokenizer, 25, Some(2)).unwrap();
            assert_eq!((two.count(), two.ids.len(), two.corpus_tokens), (2, 50, 101));
        }
    }

    #[test]
    fn corpus_of_minimum_length_yields_a_window() {
        let tokenizer = sample::words();
        // With 10 tokens, int(0.9 * 10) - 8 - 1 = 0 is the only start.
        let nine = [words(0, 9)];
        assert_eq!(
            start_tokens(&calibration_windows(WindowRule::Wikitext2, &nine, &tokenizer, 2, 8, 0).unwrap()),
            [0, 0]
        );
        assert_eq!(start_tokens(&calibration_windows(WindowRule::Ptb, &nine, &tokenizer, 2, 9, 0).unwrap()), [0, 0]);
        assert_eq!(start_tokens(&evaluation_windows(WindowRule::Ptb, &nine, &tokenizer, 10, None).unwrap()), [0]);
        let error = calibration_windows(WindowRule::Wikitext2, &nine, &tokenizer, 2, 9, 0).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let message = error.to_string();
        // 12 tokens are needed: int(0.9 * 12) - 9 - 1 = 0, whereas int(0.9 * 11) = 9 is too small.
        assert!(message.contains("at least 12 tokens") && message.contains("10 tokens"), "{message}");
        assert!(
            calibration_windows(WindowRule::Ptb, &nine, &tokenizer, 2, 10, 0)
                .unwrap_err()
                .to_string()
                .contains("at least 11")
        );
        assert!(
            evaluation_windows(WindowRule::Ptb, &nine, &tokenizer, 11, None)
                .unwrap_err()
                .to_string()
                .contains("at least 11")
        );
    }

    #[test]
    fn too_short_documents_are_rejected_with_their_length() {
        let tokenizer = sample::words();
        let error = calibration_windows(WindowRule::C4, &documents(), &tokenizer, 6, 24, 0).unwrap_err();
        assert_eq!(error.exit_code(), 2);
        let message = error.to_string();
        assert!(message.contains("36 documents, the longest with 24 tokens"), "{message}");
        assert!(message.contains("at least 25 tokens"), "{message}");
        assert!(evaluation_windows(WindowRule::C4, &documents(), &tokenizer, usize::MAX, None).is_err());
        // 90 % of one document rounds down to zero documents, so calibration fails, but evaluation works.
        assert!(calibration_windows(WindowRule::C4, &[words(0, 40)], &tokenizer, 1, 8, 0).is_err());
        assert_eq!(evaluation_windows(WindowRule::C4, &[words(0, 40)], &tokenizer, 8, None).unwrap().count(), 256);
        assert!(evaluation_windows(WindowRule::C4, &[], &tokenizer, 8, None).is_err());
    }

    #[test]
    fn only_document_of_sufficient_length_is_drawn() {
        let mut rows = vec![words(0, 3); 2000];
        rows[1234] = words(0, 30);
        let windows = calibration_windows(WindowRule::C4, &rows, &sample::words(), 4, 20, 0).unwrap();
        assert!(windows.starts.iter().all(|start| start.document == 1234));
    }

    #[test]
    fn invalid_window_counts_and_lengths_are_rejected() {
        let tokenizer = sample::words();
        for rule in WindowRule::ALL {
            for (sequences, length) in [(0, 8), (4, 0), (4, 1), (4, usize::MAX)] {
                let error = calibration_windows(rule, &documents(), &tokenizer, sequences, length, 0).unwrap_err();
                assert_eq!(error.exit_code(), 2);
            }
            for (length, limit) in [(1, None), (0, Some(1)), (8, Some(0)), (usize::MAX, None)] {
                assert_eq!(
                    evaluation_windows(rule, &documents(), &tokenizer, length, limit).unwrap_err().exit_code(),
                    2
                );
            }
        }
    }

    #[test]
    fn window_rule_round_trips_through_its_name() {
        for rule in WindowRule::ALL {
            assert_eq!(rule.to_string().parse::<WindowRule>().unwrap(), rule);
        }
        let error = "wikitext".parse::<WindowRule>().unwrap_err();
        assert!(error.to_string().contains("did you mean `wikitext2`?"), "{error}");
    }
}
