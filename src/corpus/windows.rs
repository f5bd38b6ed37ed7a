//! Windows of tokens: what a backbone is calibrated on, and what its perplexity is taken over.

use std::fmt;
use std::str::FromStr;

use super::{PythonRandom, Tokenizer};
use crate::error::{self, Error, Result};

/// Windows of a C4 perplexity text.
const C4_WINDOWS: usize = 256;

/// Seed of the draws of a C4 perplexity text.
const C4_SEED: u64 = 0;

/// How windows are cut from a corpus; each is named after the corpus for which the reference code has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Rule {
    /// Rows joined by a blank line and tokenised once; calibration draws from the first nine tenths of the tokens.
    Wikitext2,
    /// Rows joined by a blank line and tokenised once; calibration draws from all tokens.
    Ptb,
    /// Each row is a document, tokenised on its own; a window lies within one document.
    C4,
}

impl Rule {
    pub const ALL: [Self; 3] = [Self::Wikitext2, Self::Ptb, Self::C4];

    /// Its name in a grid file.
    pub fn name(self) -> &'static str {
        match self {
            Self::Wikitext2 => "wikitext2",
            Self::Ptb => "ptb",
            Self::C4 => "c4",
        }
    }
}

impl fmt::Display for Rule {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

impl FromStr for Rule {
    type Err = Error;

    fn from_str(name: &str) -> Result<Self> {
        let names = Self::ALL.map(Self::name);
        Self::ALL.into_iter().find(|rule| rule.name() == name).ok_or_else(|| {
            let new = Error::bad_input("unknown rule for windows")
                .expected(format!("one of {}", names.join(", ")))
                .found(format!("`{name}`"));
            match error::nearest(name, names) {
                Some(near) => new.hint(format!("did you mean `{near}`?")),
                None => new,
            }
        })
    }
}

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
    /// Tokens of the corpus that the windows were cut from; under [`Rule::C4`] of those documents that were drawn.
    pub corpus_tokens: usize,
}

impl Windows {
    /// Number of windows.
    pub fn count(&self) -> usize {
        self.starts.len()
    }

    /// The ids of window `index`, below [`count`](Self::count).
    pub fn window(&self, index: usize) -> &[u32] {
        &self.ids[index * self.length..(index + 1) * self.length]
    }

    /// The windows in order.
    pub fn iter(&self) -> impl ExactSizeIterator<Item = &[u32]> {
        self.ids.chunks_exact(self.length)
    }
}

/// `sequences` windows of `length` tokens at random places, as the reference code draws them after `random.seed(seed)`.
///
/// With `n` tokens in the joined text and `T` = `length`, a window starts at
/// - [`Rule::Wikitext2`]: randint(0, int(0.9·n) − T − 1),
/// - [`Rule::Ptb`]: randint(0, n − T − 1),
/// - [`Rule::C4`]: document randint(0, int(0.9·documents) − 1), drawn again until it has at least T + 1 tokens; then
///   token randint(0, its tokens − T − 1).
///
/// Windows may overlap. Source: `get_calib_data` of LLM-Streamline and LinearPatch, which the paper's code follows.
///
/// # Errors
/// When `length` is below 2, `sequences` is 0, the corpus is too short for one window, or the text cannot be tokenised.
pub fn calibration(
    rule: Rule,
    rows: &[String],
    tokenizer: &Tokenizer,
    sequences: usize,
    length: usize,
    seed: u64,
) -> Result<Windows> {
    check_length(length)?;
    if sequences == 0 {
        return Err(Error::bad_input("no calibration sequences were asked for").expected("at least 1").found("0"));
    }
    let mut random = PythonRandom::new(seed);
    if rule == Rule::C4 {
        let part = nine_tenths(rows.len());
        return Documents::new(&rows[..part], tokenizer, length).draw_windows(sequences, &mut random);
    }

    let ids = tokenizer.encode(&rows.join("\n\n"))?;
    let end = if rule == Rule::Wikitext2 { nine_tenths(ids.len()) } else { ids.len() };
    let Some(last) = last_start(end, length) else {
        let mut needed = length.saturating_add(1);
        while rule == Rule::Wikitext2 && nine_tenths(needed) <= length {
            needed += 1;
        }
        return Err(too_short(ids.len(), needed, rule, length));
    };
    let mut windows = Windows { ids: Vec::new(), length, starts: Vec::new(), corpus_tokens: ids.len() };
    for _ in 0..sequences {
        let token = random.randint(0, last)? as usize;
        windows.ids.extend_from_slice(&ids[token..token + length]);
        windows.starts.push(Start { document: 0, token });
    }
    Ok(windows)
}

/// The windows of `length` tokens that a perplexity is taken over; `limit` keeps only the first so many.
///
/// - [`Rule::Wikitext2`], [`Rule::Ptb`]: all windows side by side from the first token on; a shorter rest is dropped.
/// - [`Rule::C4`]: 256 windows after `random.seed(0)`: document randint(0, documents − 1), drawn again until it has
///   more than T tokens; then token randint(0, its tokens − T − 1).
///
/// # Errors
/// When `length` is below 2, `limit` is 0, the corpus is too short for one window, or the text cannot be tokenised.
pub fn evaluation(
    rule: Rule,
    rows: &[String],
    tokenizer: &Tokenizer,
    length: usize,
    limit: Option<usize>,
) -> Result<Windows> {
    check_length(length)?;
    if limit == Some(0) {
        return Err(Error::bad_input("the limit leaves no windows to evaluate")
            .expected("at least 1 window")
            .found("0")
            .hint("leave the limit out to take all windows"));
    }
    if rule == Rule::C4 {
        let count = limit.map_or(C4_WINDOWS, |limit| limit.min(C4_WINDOWS));
        let mut random = PythonRandom::new(C4_SEED);
        return Documents::new(rows, tokenizer, length).draw_windows(count, &mut random);
    }

    let mut ids = tokenizer.encode(&rows.join("\n\n"))?;
    let corpus_tokens = ids.len();
    let all = corpus_tokens / length;
    if all == 0 {
        return Err(too_short(corpus_tokens, length, rule, length));
    }
    let count = limit.map_or(all, |limit| limit.min(all));
    ids.truncate(count * length);
    let starts = (0..count).map(|index| Start { document: 0, token: index * length }).collect();
    Ok(Windows { ids, length, starts, corpus_tokens })
}

/// Documents that are tokenised when they are first drawn, and only once.
///
/// A shard of C4 has 356 317 of them, of which a run draws a few hundred.
struct Documents<'a> {
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
    Ids(Vec<u32>),
}

impl<'a> Documents<'a> {
    fn new(rows: &'a [String], tokenizer: &'a Tokenizer, length: usize) -> Self {
        let tokenised = vec![Tokenised::NotYet; rows.len()];
        Self { rows, tokenizer, length, tokenised, waiting: rows.len(), long: 0, most_tokens: 0, tokens: 0 }
    }

    fn draw_windows(mut self, count: usize, random: &mut PythonRandom) -> Result<Windows> {
        let mut windows = Windows { ids: Vec::new(), length: self.length, starts: Vec::new(), corpus_tokens: 0 };
        for _ in 0..count {
            let start = self.draw(random, &mut windows.ids)?;
            windows.starts.push(start);
        }
        windows.corpus_tokens = self.tokens;
        Ok(windows)
    }

    /// Draws documents until one is long enough, then a window of it, which is appended to `out`.
    ///
    /// It ends: once every document has been drawn and none was long enough, that is an error. While one is long
    /// enough it will be drawn, and the draws before it cost next to nothing, for no document is tokenised twice.
    fn draw(&mut self, random: &mut PythonRandom, out: &mut Vec<u32>) -> Result<Start> {
        while self.waiting > 0 || self.long > 0 {
            let document = random.randint(0, self.rows.len() as u64 - 1)? as usize;
            if matches!(self.tokenised[document], Tokenised::NotYet) {
                self.tokenise(document)?;
            }
            if let Tokenised::Ids(ids) = &self.tokenised[document]
                && let Some(last) = last_start(ids.len(), self.length)
            {
                let token = random.randint(0, last)? as usize;
                out.extend_from_slice(&ids[token..token + self.length]);
                return Ok(Start { document, token });
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
        let ids = self.tokenizer.encode(&self.rows[document]).map_err(|error| {
            // People count rows from one.
            error.at(format!("row {} of the corpus", document + 1))
        })?;
        self.waiting -= 1;
        self.tokens += ids.len();
        self.most_tokens = self.most_tokens.max(ids.len());
        self.tokenised[document] = match last_start(ids.len(), self.length) {
            Some(_) => {
                self.long += 1;
                Tokenised::Ids(ids)
            }
            None => Tokenised::TooShort,
        };
        Ok(())
    }
}

/// Python's `int(0.9 * count)`, in doubles as there.
fn nine_tenths(count: usize) -> usize {
    (0.9 * count as f64) as usize
}

/// The last start that the reference allows in `tokens` tokens, `tokens − length − 1`; none when that is negative.
///
/// It is one less than would fit: the reference keeps room for the token after the window.
fn last_start(tokens: usize, length: usize) -> Option<u64> {
    tokens.checked_sub(length)?.checked_sub(1).map(|last| last as u64)
}

fn check_length(length: usize) -> Result<()> {
    if length >= 2 {
        return Ok(());
    }
    Err(Error::bad_input("a window is too short to predict a token in it")
        .expected("at least 2 tokens in a window")
        .found(length.to_string()))
}

fn too_short(found: usize, needed: usize, rule: Rule, length: usize) -> Error {
    Error::bad_input("the corpus is too short for one window")
        .expected(format!("at least {needed} tokens, for windows of {length} under rule {rule}"))
        .found(format!("{found} tokens"))
        .hint("ask for shorter windows, or take a longer text")
}
