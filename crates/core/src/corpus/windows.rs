//! Token windows for calibration and perplexity.

use super::{PythonRandom, Tokenizer};
use crate::error::{Error, Result};

/// Start of a window in the corpus.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Start {
    /// Index of the document (row), or 0 if all rows are joined into one text.
    pub document: usize,
    /// Index of the window's first token in the document.
    pub token: usize,
}

/// Windows of equal length, in the order drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// Concatenated ids of all windows.
    pub ids: Vec<u32>,
    /// Number of tokens per window, at least 2.
    pub length: usize,
    pub starts: Vec<Start>,
    /// Number of tokens in the corpus. With [`WindowRule::C4`](super::WindowRule::C4) and
    /// [`WindowRule::C4Stream`](super::WindowRule::C4Stream), only the documents that were tokenized are counted.
    pub corpus_tokens: usize,
    /// Number of text bytes covered by the predicted tokens, which are all but the first token of each window.
    pub bytes: usize,
}

/// Returns the number of text bytes from the end of a window's first token to the end of its last.
pub(super) fn count_predicted_bytes(ends: &[usize]) -> usize {
    ends.last().zip(ends.first()).map_or(0, |(last, first)| last.saturating_sub(*first))
}

impl Windows {
    pub(super) fn new(length: usize) -> Self {
        Self { ids: Vec::new(), length, starts: Vec::new(), corpus_tokens: 0, bytes: 0 }
    }

    /// Adds a window that starts at a random token from 0 to `last` of a document. `tokens` contains the document's
    /// token ids, and the end of each token as a byte offset in the text.
    pub(super) fn push_random(
        &mut self,
        document: usize,
        tokens: (&[u32], &[usize]),
        last: u64,
        random: &mut PythonRandom,
    ) -> Result<()> {
        let token = random.randint(0, last)? as usize;
        let range = token..token + self.length;
        self.ids.extend_from_slice(&tokens.0[range.clone()]);
        self.bytes += count_predicted_bytes(&tokens.1[range]);
        self.starts.push(Start { document, token });
        Ok(())
    }

    pub fn count(&self) -> usize {
        self.starts.len()
    }

    /// Returns the ids of window `index`, which must be below [`count`](Self::count).
    pub fn window(&self, index: usize) -> &[u32] {
        &self.ids[index * self.length..(index + 1) * self.length]
    }

    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.ids.chunks_exact(self.length)
    }
}

/// Returns the last window start that the reference code allows, `tokens − length − 1`, or `None` if it is negative.
///
/// The last possible start is one token later, but the reference code leaves room for one token after the window.
pub(super) fn last_start(tokens: usize, length: usize) -> Option<u64> {
    tokens.checked_sub(length)?.checked_sub(1).map(|last| last as u64)
}

/// Documents that are tokenized when they are first drawn.
///
/// A C4 shard has 356,317 documents, but calibration and evaluation draw only a few hundred of them.
pub(super) struct Documents<'a> {
    rows: &'a [String],
    tokenizer: &'a Tokenizer,
    length: usize,
    tokenized: Vec<Tokenization>,
    untokenized: usize,
    long_enough: usize,
    max_tokens: usize,
    tokens: usize,
}

#[derive(Clone)]
enum Tokenization {
    NotYet,
    TooShort,
    /// Ids, and the byte offset at which each token ends.
    Ids(Vec<u32>, Vec<usize>),
}

impl<'a> Documents<'a> {
    pub(super) fn new(rows: &'a [String], tokenizer: &'a Tokenizer, length: usize) -> Self {
        let tokenized = vec![Tokenization::NotYet; rows.len()];
        Self { rows, tokenizer, length, tokenized, untokenized: rows.len(), long_enough: 0, max_tokens: 0, tokens: 0 }
    }

    /// Draws `count` windows of the length given to [`new`](Self::new).
    ///
    /// # Errors
    /// Fails if no document is long enough or a drawn document cannot be tokenized.
    pub(super) fn draw_windows(mut self, count: usize, random: &mut PythonRandom) -> Result<Windows> {
        let mut windows = Windows::new(self.length);
        for _ in 0..count {
            self.draw_window(random, &mut windows)?;
        }
        windows.corpus_tokens = self.tokens;
        Ok(windows)
    }

    /// Draws documents until one is long enough, and appends a window from it to `out`.
    ///
    /// Fails if all documents have been drawn and none is long enough. Repeated draws are cheap, because each document
    /// is tokenized only once.
    fn draw_window(&mut self, random: &mut PythonRandom, out: &mut Windows) -> Result<()> {
        while self.untokenized > 0 || self.long_enough > 0 {
            let document = random.randint(0, self.rows.len() as u64 - 1)? as usize;
            if matches!(self.tokenized[document], Tokenization::NotYet) {
                self.tokenize(document)?;
            }
            if let Tokenization::Ids(ids, ends) = &self.tokenized[document]
                && let Some(last) = last_start(ids.len(), self.length)
            {
                return out.push_random(document, (ids, ends), last, random);
            }
        }
        Err(Error::bad_input("all documents of the corpus are too short for a window")
            .expected(format!(
                "a document of at least {} tokens, for windows of {} tokens under rule c4",
                self.length.saturating_add(1),
                self.length
            ))
            .found(match self.rows.len() {
                0 => "no documents to draw from".to_owned(),
                all => format!("{all} documents, the longest with {} tokens", self.max_tokens),
            })
            .hint("use shorter windows, or a corpus with longer documents"))
    }

    fn tokenize(&mut self, document: usize) -> Result<()> {
        let (ids, ends) = self.tokenizer.encode_with_ends(&self.rows[document]).map_err(|error| {
            // Row numbers in messages are 1-based.
            error.at(format!("row {} of the corpus", document + 1))
        })?;
        self.untokenized -= 1;
        self.tokens += ids.len();
        self.max_tokens = self.max_tokens.max(ids.len());
        self.tokenized[document] = match last_start(ids.len(), self.length) {
            Some(_) => {
                self.long_enough += 1;
                Tokenization::Ids(ids, ends)
            }
            None => Tokenization::TooShort,
        };
        Ok(())
    }
}
