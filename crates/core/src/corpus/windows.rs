//! Windows of tokens: what a backbone is calibrated on, and what its perplexity is taken over.

use super::{PythonRandom, Tokenizer};
use crate::error::{Error, Result};

/// Where a window begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub struct Start {
    /// Index of the document (row) it was cut from; 0 where all rows are one text.
    pub document: usize,
    /// Index of its first token within that document.
    pub token: usize,
}

/// Windows of equal length, in the order in which they were drawn.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Windows {
    /// The ids of all windows, one after another.
    pub ids: Vec<u32>,
    /// Tokens in a window, at least 2.
    pub length: usize,
    /// Where each window begins in the corpus.
    pub starts: Vec<Start>,
    /// Tokens of the corpus that the windows were cut from; under [`Rule::C4`](super::Rule::C4) of those documents that were drawn.
    pub corpus_tokens: usize,
    /// Bytes of the text that the predicted tokens stand for, which are all but the first of each window.
    pub bytes: usize,
}

/// Returns the bytes of text from the end of a window's first token to the end of its last.
pub(super) fn predicted_bytes(ends: &[usize]) -> usize {
    ends.last().zip(ends.first()).map_or(0, |(last, first)| last.saturating_sub(*first))
}

impl Windows {
    /// Creates an empty set of windows of `length` tokens.
    pub(super) fn new(length: usize) -> Self {
        Self { ids: Vec::new(), length, starts: Vec::new(), corpus_tokens: 0, bytes: 0 }
    }

    /// Adds a window that begins at a random place of a document, up to `last`; `tokens` are the document's ids, and where in
    /// its text each of them ends.
    pub(super) fn draw(
        &mut self,
        document: usize,
        tokens: (&[u32], &[usize]),
        last: u64,
        random: &mut PythonRandom,
    ) -> Result<()> {
        let token = random.randint(0, last)? as usize;
        let range = token..token + self.length;
        self.ids.extend_from_slice(&tokens.0[range.clone()]);
        self.bytes += predicted_bytes(&tokens.1[range]);
        self.starts.push(Start { document, token });
        Ok(())
    }

    /// Returns the number of windows.
    pub fn count(&self) -> usize {
        self.starts.len()
    }

    /// Returns the ids of window `index`, which must be below [`count`](Self::count).
    pub fn window(&self, index: usize) -> &[u32] {
        &self.ids[index * self.length..(index + 1) * self.length]
    }

    /// Iterates over the windows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.ids.chunks_exact(self.length)
    }
}

/// Returns the last start that the reference allows, `tokens − length − 1`, or `None` if it is negative.
///
/// One start fewer than possible: the reference keeps room for the token after the window.
pub(super) fn last_start(tokens: usize, length: usize) -> Option<u64> {
    tokens.checked_sub(length)?.checked_sub(1).map(|last| last as u64)
}

/// Documents that are tokenised when they are first drawn, and only once.
///
/// A shard of C4 has 356 317 of them, of which a run draws a few hundred.
pub(super) struct Documents<'a> {
    rows: &'a [String],
    tokenizer: &'a Tokenizer,
    length: usize,
    tokenised: Vec<Tokenised>,
    waiting: usize,
    long: usize,
    most_tokens: usize,
    tokens: usize,
}

#[derive(Clone)]
enum Tokenised {
    NotYet,
    TooShort,
    /// Ids, and where in the text each of them ends.
    Ids(Vec<u32>, Vec<usize>),
}

impl<'a> Documents<'a> {
    pub(super) fn new(rows: &'a [String], tokenizer: &'a Tokenizer, length: usize) -> Self {
        let tokenised = vec![Tokenised::NotYet; rows.len()];
        Self { rows, tokenizer, length, tokenised, waiting: rows.len(), long: 0, most_tokens: 0, tokens: 0 }
    }

    /// Draws `count` windows of the length given to [`new`](Self::new).
    ///
    /// # Errors
    /// When no document is long enough, or a drawn one cannot be tokenised.
    pub(super) fn draw_windows(mut self, count: usize, random: &mut PythonRandom) -> Result<Windows> {
        let mut windows = Windows::new(self.length);
        for _ in 0..count {
            self.draw(random, &mut windows)?;
        }
        windows.corpus_tokens = self.tokens;
        Ok(windows)
    }

    /// Draws documents until one is long enough, then a window of it, which is appended to `out`.
    ///
    /// Returns an error once every document has been drawn and none was long enough. While one is long
    /// enough it will be drawn, and the draws before it cost next to nothing, for no document is tokenised twice.
    fn draw(&mut self, random: &mut PythonRandom, out: &mut Windows) -> Result<()> {
        while self.waiting > 0 || self.long > 0 {
            let document = random.randint(0, self.rows.len() as u64 - 1)? as usize;
            if matches!(self.tokenised[document], Tokenised::NotYet) {
                self.tokenise(document)?;
            }
            if let Tokenised::Ids(ids, ends) = &self.tokenised[document]
                && let Some(last) = last_start(ids.len(), self.length)
            {
                return out.draw(document, (ids, ends), last, random);
            }
        }
        Err(Error::bad_input("no document of the corpus is long enough for a window")
            .expected(format!(
                "a document of at least {} tokens, for windows of {} under rule c4",
                self.length.saturating_add(1),
                self.length
            ))
            .found(match self.rows.len() {
                0 => "no documents to draw from".to_owned(),
                all => format!("{all} documents, the longest of {} tokens", self.most_tokens),
            })
            .hint("ask for shorter windows, or take a corpus with longer documents"))
    }

    fn tokenise(&mut self, document: usize) -> Result<()> {
        let (ids, ends) = self.tokenizer.encode_with_ends(&self.rows[document]).map_err(|error| {
            // People count rows from one.
            error.at(format!("row {} of the corpus", document + 1))
        })?;
        self.waiting -= 1;
        self.tokens += ids.len();
        self.most_tokens = self.most_tokens.max(ids.len());
        self.tokenised[document] = match last_start(ids.len(), self.length) {
            Some(_) => {
                self.long += 1;
                Tokenised::Ids(ids, ends)
            }
            None => Tokenised::TooShort,
        };
        Ok(())
    }
}
