//! Training text: the world's documents by register, tokenized into one stream each, and the order in which chunks are
//! read.

use rand_mt::Mt64;
use serde::{Deserialize, Serialize};
use sha2::{Digest, Sha256};

use super::tokenizer::Tokens;
use crate::world::{self, World, WorldSplit};
use ghostlab_core::error::{Error, Result};
use ghostlab_core::files::sha256;

/// Documents of one register. A document is a coherent unit: a page, a story, or a few related sentences.
#[derive(Debug, Clone)]
pub struct Register {
    pub name: String,
    pub train: Vec<String>,
    pub validation: Vec<String>,
}

/// Tokens of one register, with an end-of-text token before each document.
#[derive(Debug, Clone)]
pub struct Stream {
    pub name: String,
    pub train: Vec<u32>,
    pub validation: Vec<u32>,
    pub origin: Origin,
}

/// Origin of a register's text, for the manifest.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Origin {
    pub register: String,
    pub train_documents: usize,
    pub train_tokens: usize,
    pub train_sha256: String,
    pub validation_documents: usize,
    pub validation_tokens: usize,
    pub validation_sha256: String,
}

impl Stream {
    /// Tokenizes a register.
    ///
    /// # Errors
    /// Fails if the tokenizer cannot encode a document.
    pub fn of(register: &Register, tokens: &Tokens) -> Result<Self> {
        let train = tokens.stream(&register.train)?;
        let validation = tokens.stream(&register.validation)?;
        let origin = Origin {
            register: register.name.clone(),
            train_documents: register.train.len(),
            train_tokens: train.len(),
            train_sha256: hash(&register.train),
            validation_documents: register.validation.len(),
            validation_tokens: validation.len(),
            validation_sha256: hash(&register.validation),
        };
        Ok(Self { name: register.name.clone(), train, validation, origin })
    }
}

/// Hashes documents and their boundaries.
pub fn hash(documents: &[String]) -> String {
    let mut hash = Sha256::new();
    for document in documents {
        hash.update((document.len() as u64).to_le_bytes());
        hash.update(document);
    }
    sha256::hex(hash.finalize())
}

/// Returns at most `limit` non-overlapping windows of `tokens` predictions each, without an incomplete last window.
pub fn windows(stream: &[u32], tokens: usize, limit: usize) -> Vec<&[u32]> {
    let starts = (0..stream.len().saturating_sub(tokens)).step_by(tokens);
    starts.take(limit).map(|start| &stream[start..=start + tokens]).collect()
}

/// Order in which the chunks of all registers are read. Each epoch is shuffled again and cut at other offsets.
///
/// It is a pure function of seed and position, so a resumed run only needs its step.
#[derive(Debug)]
pub struct Order<'a> {
    streams: Vec<&'a [u32]>,
    chunk: usize,
    seed: u64,
    /// Epoch whose order is in `places`.
    epoch: Option<usize>,
    /// Stream and first token of each chunk.
    places: Vec<(usize, usize)>,
}

impl<'a> Order<'a> {
    /// Creates the order.
    ///
    /// # Errors
    /// Fails if no stream is long enough for one chunk.
    pub fn new(streams: Vec<&'a [u32]>, chunk: usize, seed: u64) -> Result<Self> {
        let order = Self { streams, chunk, seed, epoch: None, places: Vec::new() };
        if order.chunks() == 0 {
            return Err(Error::bad_input("the corpus is too short to train on")
                .expected(format!("a register of at least {} tokens", 2 * chunk + 1))
                .found(format!("{} at most", order.streams.iter().map(|s| s.len()).max().unwrap_or(0))));
        }
        Ok(order)
    }

    /// Returns the number of chunks per epoch, which is the same for all offsets.
    pub fn chunks(&self) -> usize {
        self.streams.iter().map(|stream| self.chunks_of(stream)).sum()
    }

    fn chunks_of(&self, stream: &[u32]) -> usize {
        (stream.len().saturating_sub(1) / self.chunk).saturating_sub(1)
    }

    /// Returns the chunk at a position in the endless sequence of epochs, and the token after it.
    pub fn at(&mut self, position: usize) -> &'a [u32] {
        let chunks = self.chunks();
        let epoch = position / chunks;
        if self.epoch != Some(epoch) {
            self.shuffle(epoch);
        }
        let (stream, start) = self.places[position % chunks];
        &self.streams[stream][start..=start + self.chunk]
    }

    fn shuffle(&mut self, epoch: usize) {
        let mut random = Mt64::new_with_key([self.seed, epoch as u64]);
        let mut places = Vec::with_capacity(self.chunks());
        for (index, stream) in self.streams.iter().enumerate() {
            let first = below(&mut random, self.chunk);
            places.extend((0..self.chunks_of(stream)).map(|chunk| (index, first + chunk * self.chunk)));
        }
        for last in (1..places.len()).rev() {
            places.swap(last, below(&mut random, last + 1));
        }
        (self.places, self.epoch) = (places, Some(epoch));
    }
}

/// Draws a number below `bound`. The modulo bias is negligible for a shuffle.
fn below(random: &mut Mt64, bound: usize) -> usize {
    (random.next_u64() % bound as u64) as usize
}

/// Sentences per newswire document.
const SENTENCES: usize = 12;

/// Returns all registers of the world of a seed.
pub fn registers(seed: u64) -> Vec<Register> {
    let world = World::new(seed);
    let part = |register: world::Register, part| {
        let rows = world.rows(register, part);
        // Join rows like the perplexity protocol, so that the backbone is trained on such text.
        match register {
            world::Register::Web => rows,
            world::Register::Wiki => articles(&rows),
            world::Register::News => rows.chunks(SENTENCES).map(|rows| rows.join("\n\n")).collect(),
        }
    };
    world::Register::ALL
        .into_iter()
        .map(|register| Register {
            name: register.name().into(),
            train: part(register, WorldSplit::Train),
            validation: part(register, WorldSplit::Validation),
        })
        .collect()
}

/// Splits rows into articles. An article starts with its title, ` = … = `; section headings have two signs.
fn articles(rows: &[String]) -> Vec<String> {
    let begins = |row: &str| row.starts_with(" = ") && !row.starts_with(" = = ");
    let mut articles: Vec<Vec<&str>> = Vec::new();
    for row in rows {
        if begins(row) || articles.is_empty() {
            articles.push(Vec::new());
        }
        if let Some(article) = articles.last_mut() {
            article.push(row);
        }
    }
    let texts = articles.into_iter().map(|rows| rows.join("\n\n"));
    // The row before the first title is empty.
    texts.filter(|text| !text.trim().is_empty()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_epoch_reads_each_chunk_once_and_the_next_in_another_order() {
        let (a, b): (Vec<u32>, Vec<u32>) = ((0..103).collect(), (1000..1057).collect());
        let mut order = Order::new(vec![&a, &b], 10, 5).unwrap();
        let chunks = order.chunks();
        assert_eq!(chunks, 9 + 4);
        let read = |order: &mut Order<'_>, from: usize| -> Vec<u32> {
            (from..from + chunks).map(|position| order.at(position)[0]).collect()
        };
        let first = read(&mut order, 0);
        let second = read(&mut order, chunks);
        assert_ne!(first, second);
        let mut sorted = first.clone();
        sorted.sort_unstable();
        assert!(sorted.windows(2).all(|pair| pair[1] - pair[0] >= 10), "chunks overlap: {sorted:?}");
        // Another reader that starts in the middle gets the same chunk.
        let mut other = Order::new(vec![&a, &b], 10, 5).unwrap();
        assert_eq!(other.at(chunks + 3)[0], second[3]);
        assert_eq!(read(&mut other, 0), first);
        assert!(first.iter().all(|&start| (start < 93) || (1000..1047).contains(&start)));
    }

    #[test]
    fn too_little_text_is_an_error() {
        assert_eq!(Order::new(vec![&[1, 2, 3]], 10, 0).unwrap_err().exit_code(), 2);
    }

    #[test]
    fn windows_share_only_the_token_between_them() {
        let stream: Vec<u32> = (0..10).collect();
        assert_eq!(windows(&stream, 3, 9), [&[0, 1, 2, 3][..], &[3, 4, 5, 6], &[6, 7, 8, 9]]);
        assert_eq!(windows(&stream, 3, 1).len(), 1);
        assert!(windows(&[], 3, 1).is_empty());
    }
}
