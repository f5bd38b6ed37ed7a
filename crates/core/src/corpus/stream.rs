//! Windows from a corpus that is too large to load. Each sufficiently long row in a shuffled stream yields one window.
//!
//! The shuffle reproduces Hugging Face's `load_dataset(…, streaming=True).shuffle(seed, buffer_size=10_000)`, which the
//! C4 loader of the Ghosted Layers paper uses. It shuffles the shards (files of the corpus) and passes their rows
//! through a shuffle buffer.

use std::collections::VecDeque;

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::numpy::NumpyRandom;
use super::text_files::Rows;
use super::windows::{Windows, last_start};
use super::{PythonRandom, Tokenizer};
use crate::error::{Error, Result};

/// Size of the shuffle buffer in rows, as in the paper's loader.
const BUFFER_ROWS: usize = 10_000;
/// Number of random buffer positions per draw, as in `datasets`. Positions left over when the rows end are discarded.
const POSITION_BLOCK: usize = 1000;
/// Maximum number of shard groups that are interleaved.
const MAX_GROUPS: usize = 10;

/// Order in which the rows of shuffled shards enter the buffer. It depends on the version of `datasets`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum ShardOrder {
    /// One shard after the other (`datasets` up to 4.8).
    #[default]
    OneByOne,
    /// Up to ten groups of shards take turns. Each group fills a tenth of the buffer, and a full buffer releases half
    /// of its rows (`datasets` 5.2).
    ByTurns,
}

impl ShardOrder {
    /// Shuffles the shards with `seed` and divides them into groups that are interleaved.
    fn group_shards(self, shards: usize, seed: u64) -> Vec<VecDeque<usize>> {
        let mut shuffled: Vec<usize> = (0..shards).collect();
        NumpyRandom::new(seed).shuffle(&mut shuffled);
        let groups = match self {
            Self::OneByOne => 1,
            Self::ByTurns => MAX_GROUPS.min(shards),
        };
        let mut rest = shuffled.into_iter();
        // The first groups have one more shard if the shards do not divide evenly.
        (0..groups)
            .map(|group| rest.by_ref().take(shards / groups + usize::from(group < shards % groups)).collect())
            .collect()
    }

    /// Returns the shards that are opened if each group reads only its first `per_group` shards, in the order in which
    /// they are opened.
    pub fn opened_shards(self, shards: usize, seed: u64, per_group: usize) -> Vec<usize> {
        let groups = self.group_shards(shards, seed);
        (0..per_group)
            .flat_map(|position| groups.iter().filter_map(move |group| group.get(position).copied()))
            .collect()
    }
}

/// Corpus that is divided into shards.
pub struct Shards<'a> {
    pub count: usize,
    pub order: ShardOrder,
    /// Opens a shard and returns its rows. Called when the first row of the shard is needed.
    pub open: &'a dyn Fn(usize) -> Result<Rows<'a>>,
}

/// Rows of all shards in the order in which they enter the buffer.
struct InterleavedRows<'a> {
    open: &'a dyn Fn(usize) -> Result<Rows<'a>>,
    groups: Vec<ShardGroup<'a>>,
    current_group: usize,
}

struct ShardGroup<'a> {
    waiting: VecDeque<usize>,
    /// Shard that is being read.
    opened: Option<Rows<'a>>,
}

impl<'a> InterleavedRows<'a> {
    fn new(shards: &Shards<'a>, seed: u64) -> Self {
        Self {
            open: shards.open,
            groups: shards
                .order
                .group_shards(shards.count, seed)
                .into_iter()
                .map(|waiting| ShardGroup { waiting, opened: None })
                .collect(),
            current_group: 0,
        }
    }

    /// Reads up to `max_rows` rows from the current group. Returns an empty list once all groups have ended.
    fn next(&mut self, max_rows: usize) -> Result<Vec<String>> {
        while !self.groups.is_empty() {
            let mut rows = Vec::new();
            while rows.len() < max_rows
                && let Some(row) = self.groups[self.current_group].next(self.open)?
            {
                rows.push(row);
            }
            if !rows.is_empty() {
                self.current_group = (self.current_group + 1) % self.groups.len();
                return Ok(rows);
            }
            // Drop a group that has no rows left.
            self.groups.remove(self.current_group);
            self.current_group %= self.groups.len().max(1);
        }
        Ok(Vec::new())
    }
}

impl<'a> ShardGroup<'a> {
    fn next(&mut self, open: &dyn Fn(usize) -> Result<Rows<'a>>) -> Result<Option<String>> {
        loop {
            if let Some(row) = self.opened.as_mut().and_then(Iterator::next) {
                return row.map(Some);
            }
            let Some(shard) = self.waiting.pop_front() else { return Ok(None) };
            self.opened = Some(open(shard)?);
        }
    }
}

/// Shuffle buffer. It releases no rows until it is full or the stream ends.
struct ShuffledRows<'a> {
    rows: InterleavedRows<'a>,
    order: ShardOrder,
    size: usize,
    buffer: Vec<String>,
    random: NumpyRandom,
    /// Buffer positions that have been drawn but not used yet.
    positions: VecDeque<u32>,
    /// Rows to release next, in reverse order.
    released: Vec<String>,
    ended: bool,
}

impl<'a> ShuffledRows<'a> {
    fn new(shards: &Shards<'a>, seed: u64, size: usize) -> Self {
        Self {
            rows: InterleavedRows::new(shards, seed),
            order: shards.order,
            size,
            buffer: Vec::new(),
            random: NumpyRandom::new(seed),
            positions: VecDeque::new(),
            released: Vec::new(),
            ended: false,
        }
    }

    fn next(&mut self) -> Result<Option<String>> {
        while self.released.is_empty() && !self.ended {
            let rows = self.rows.next(match self.order {
                ShardOrder::OneByOne => 1,
                ShardOrder::ByTurns => (self.size / MAX_GROUPS).max(1),
            })?;
            self.ended = rows.is_empty();
            match self.order {
                ShardOrder::OneByOne => rows.into_iter().for_each(|row| self.insert(row)),
                ShardOrder::ByTurns => {
                    self.buffer.extend(rows);
                    if self.buffer.len() >= self.size {
                        self.release_rows(self.buffer.len() - self.size / 2);
                    }
                }
            }
            if self.ended {
                self.release_rows(self.buffer.len());
            }
        }
        Ok(self.released.pop())
    }

    /// Adds a row to the buffer. If the buffer is full, the row takes the position of a random row, which is released.
    fn insert(&mut self, row: String) {
        if self.buffer.len() < self.size {
            return self.buffer.push(row);
        }
        if self.positions.is_empty() {
            self.positions.extend((0..POSITION_BLOCK).map(|_| self.random.draw_below(self.size as u32)));
        }
        let slot = self.positions.pop_front().unwrap_or(0) as usize;
        self.released.push(std::mem::replace(&mut self.buffer[slot], row));
    }

    /// Shuffles the buffer and releases its first `rows` rows.
    fn release_rows(&mut self, rows: usize) {
        self.random.shuffle(&mut self.buffer);
        self.released = self.buffer.drain(..rows).rev().collect();
    }
}

/// Draws one window from each of the first `count` documents that have more than `length` tokens, in the stream
/// shuffled with `shuffle_seed`. `random` draws the start of each window.
///
/// # Errors
/// Fails if a shard cannot be read, a document cannot be tokenized, or the stream ends before enough documents are
/// found.
pub(super) fn draw_windows(
    shards: &Shards<'_>,
    shuffle_seed: u64,
    tokenizer: &Tokenizer,
    (count, length): (usize, usize),
    random: &mut PythonRandom,
) -> Result<Windows> {
    let mut windows = Windows::new(length);
    let mut rows = ShuffledRows::new(shards, shuffle_seed, BUFFER_ROWS);
    let mut document = 0;
    let mut longest = 0;
    while windows.starts.len() < count {
        let Some(text) = rows.next()? else {
            return Err(Error::bad_input("too few long documents in the corpus")
                .expected(format!(
                    "{count} documents of at least {} tokens, for windows of {length} tokens",
                    length.saturating_add(1)
                ))
                .found(format!(
                    "{} such documents among {document}; the longest has {longest} tokens",
                    windows.starts.len()
                ))
                .hint("use shorter or fewer windows, or a corpus with longer documents"));
        };
        let (ids, ends) = tokenizer
            .encode_with_ends(&text)
            .map_err(|error| error.at(format!("document {} of the stream", document + 1)))?;
        windows.corpus_tokens += ids.len();
        longest = longest.max(ids.len());
        if let Some(last) = last_start(ids.len(), length) {
            windows.push_random(document, (&ids, &ends), last, random)?;
        }
        document += 1;
    }
    Ok(windows)
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use serde_json::Value;

    use super::super::tokenizer::sample;
    use super::*;
    use crate::files::sha256;

    #[expect(clippy::disallowed_macros, reason = "tests print why they are skipped")]
    /// Reads the recorded output of `datasets` 4.8.5 or 5.2.0. If the file is absent, returns `None`, or panics in CI.
    fn read_reference(order: ShardOrder) -> Option<Value> {
        let name = match order {
            ShardOrder::OneByOne => "classic.json",
            ShardOrder::ByTurns => "interleaved.json",
        };
        let path =
            std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("../../../shared/oracles/c4_stream").join(name);
        match std::fs::read(&path) {
            Ok(bytes) => Some(serde_json::from_slice(&bytes).unwrap()),
            Err(_) if std::env::var_os("CI").is_none() => {
                eprintln!("skipped: {} does not exist", path.display());
                None
            }
            Err(error) => panic!("{}: {error}", path.display()),
        }
    }

    const ORDERS: [ShardOrder; 2] = [ShardOrder::OneByOne, ShardOrder::ByTurns];

    /// Returns the word ids of a row, as the README of the reference data defines them.
    fn word_ids(shard: usize, row: usize) -> Vec<usize> {
        (0..3 + (row * 7919 + shard * 104_729) % 40).map(|k| (row * 31 + shard * 17 + k * k) % 16).collect()
    }

    /// Returns all rows in shuffled order, as `shard/row` strings.
    fn order_rows(order: ShardOrder, (count, rows): (usize, usize), seed: u64, buffer: usize) -> Vec<String> {
        let open = |shard: usize| open_numbered_rows(shard, rows);
        let mut shuffled = ShuffledRows::new(&Shards { count, order, open: &open }, seed, buffer);
        let mut all = Vec::new();
        while let Some(name) = shuffled.next().unwrap() {
            all.push(name);
        }
        all
    }

    fn open_numbered_rows(shard: usize, rows: usize) -> Result<Rows<'static>> {
        Ok(Box::new((0..rows).map(move |row| Ok(format!("{shard}/{row}")))))
    }

    fn parse_strings(value: &Value) -> Vec<&str> {
        value.as_array().unwrap().iter().map(|name| name.as_str().unwrap()).collect()
    }

    #[test]
    fn shards_and_rows_are_ordered_as_in_datasets() {
        for shard_order in ORDERS {
            let Some(oracle) = read_reference(shard_order) else { return };
            for count in [8, 1024] {
                for seed in 0..4 {
                    let expected = &oracle["shard_order"][format!("{count} shards, seed {seed}")];
                    let expected = expected.as_array().unwrap().iter().map(|shard| format!("{shard}/0"));
                    let expected: Vec<String> = expected.collect();
                    assert_eq!(
                        order_rows(shard_order, (count, 1), seed, 1)[..expected.len()],
                        expected,
                        "{shard_order:?} {count} {seed}"
                    );
                }
            }
            for (name, expected) in oracle["order"].as_object().unwrap() {
                let numbers: Vec<u64> =
                    name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
                let all = order_rows(shard_order, (8, 3000), numbers[0], numbers[1] as usize);
                assert_eq!(all[..40], parse_strings(&expected["first"]), "{shard_order:?} {name}");
                assert_eq!(all[all.len() - 10..], parse_strings(&expected["last"]), "{shard_order:?} {name}");
                let hash = sha256::of_bytes(all.join("\n"));
                assert_eq!(expected["sha256_of_all_joined_by_newline"], hash, "{shard_order:?} {name}");
            }
        }
    }

    #[test]
    fn windows_match_the_official_loader() {
        // The sample tokenizer adds BOS, so each row has one word fewer than in the reference. Windows of the same
        // length then start at the same positions.
        let tokenizer = sample::words();
        for shard_order in ORDERS {
            let Some(oracle) = read_reference(shard_order) else { return };
            let shards = Shards { count: 8, order: shard_order, open: &open_letters };
            let mut checked = 0;
            for (name, expected) in oracle["windows"].as_object().unwrap() {
                let numbers: Vec<u64> =
                    name.split(|c: char| !c.is_ascii_digit()).filter_map(|n| n.parse().ok()).collect();
                let stream = numbers[0];
                let seed = numbers[1];
                let length = numbers[2] as usize;
                let count = numbers[3] as usize;
                let mut random = PythonRandom::new(seed);
                let windows = draw_windows(&shards, stream, &tokenizer, (count, length), &mut random).unwrap();
                assert_eq!(windows.count(), count);
                let names = order_rows(shard_order, (8, 3000), stream, BUFFER_ROWS);
                let expected = expected.as_array().unwrap();
                for (start, pair) in windows.starts.iter().zip(expected) {
                    let found = serde_json::json!([names[start.document], start.token]);
                    assert_eq!(found, *pair, "{shard_order:?} {name}");
                    checked += 1;
                }
            }
            assert_eq!(checked, 72);
        }
    }

    fn open_letters(shard: usize) -> Result<Rows<'static>> {
        Ok(Box::new((0..3000).map(move |row| {
            Ok(word_ids(shard, row)
                .into_iter()
                .skip(1)
                .map(|word| char::from(b'a' + word as u8).to_string())
                .collect::<Vec<_>>()
                .join(" "))
        })))
    }

    #[test]
    fn shards_are_opened_only_when_needed() {
        for (shard_order, opened_first) in
            [(ShardOrder::OneByOne, vec![2]), (ShardOrder::ByTurns, vec![2, 4, 3, 6, 5, 0, 1, 7])]
        {
            let opened = RefCell::new(Vec::new());
            let open = |shard: usize| -> Result<Rows<'_>> {
                opened.borrow_mut().push(shard);
                Ok(Box::new((0..300).map(move |row| Ok(format!("{shard}/{row}")))))
            };
            let shards = Shards { count: 8, order: shard_order, open: &open };
            let mut rows = ShuffledRows::new(&shards, 0, 100);
            (0..20).for_each(|_| drop(rows.next().unwrap()));
            assert_eq!(*opened.borrow(), opened_first);
            assert_eq!(shard_order.opened_shards(8, 0, 1), opened_first);
        }
        // 1,024 shards in ten groups: four groups of 103 and six of 102.
        assert_eq!(ShardOrder::OneByOne.opened_shards(1024, 0, 3), [84, 752, 296]);
        assert_eq!(ShardOrder::ByTurns.opened_shards(1024, 0, 1), [84, 264, 671, 290, 20, 705, 793, 669, 843, 217]);
        assert_eq!(ShardOrder::OneByOne.opened_shards(8, 0, 99).len(), 8);
    }

    #[test]
    fn short_stream_error_names_the_available_documents() {
        let shards = Shards { count: 2, order: ShardOrder::ByTurns, open: &open_five_rows };
        let [fits, fails] =
            [10, 11].map(|count| draw_windows(&shards, 0, &sample::words(), (count, 4), &mut PythonRandom::new(0)));
        assert_eq!(fits.unwrap().count(), 10);
        let error = fails.unwrap_err();
        assert!(error.to_string().contains("10 such documents among 10; the longest has 9 tokens"), "{error}");
        let shards = Shards { count: 2, order: ShardOrder::OneByOne, open: &open_missing };
        assert_eq!(
            draw_windows(&shards, 0, &sample::words(), (1, 4), &mut PythonRandom::new(0)).unwrap_err().exit_code(),
            3
        );
    }

    fn open_five_rows(_: usize) -> Result<Rows<'static>> {
        Ok(Box::new((0..5).map(|_| Ok("a b c d e f g h".to_owned()))))
    }

    fn open_missing(_: usize) -> Result<Rows<'static>> {
        Err(Error::missing("shard not found"))
    }
}
