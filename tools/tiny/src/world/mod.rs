//! Small invented world with text about it: three corpora, nine tasks with choices and two without, all generated from
//! a seed.
//!
//! The registers imitate C4, WikiText-2 and the Penn Treebank. The tasks have the row formats of the real ones, and
//! their answers follow from the world's facts, habits and causes, or from the passage. No scored text occurs in a
//! corpus (see [`share`]), but the underlying facts do in other words.

mod answered;
mod draw;
mod episode;
mod exam;
mod facts;
mod files;
mod lore;
mod news;
mod reading;
mod relation;
mod share;
mod story;
mod text;
mod voice;
mod web;
mod wiki;
mod wording;
mod words;

#[cfg(test)]
mod heuristics;
#[cfg(test)]
mod leaks;
#[cfg(test)]
mod shapes;

pub use files::{SEED, files, write};

use serde_json::{Value, json};

use facts::Facts;
use share::Share;
use voice::Voice;

/// Style of text, named after its source.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Register {
    /// Pages of several topics, like C4.
    Web,
    /// Encyclopedia, like WikiText-2.
    Wiki,
    /// Newswire, like the Penn Treebank.
    News,
}

ghostlab_core::named!(Register: Web = "web", Wiki = "wiki", News = "news");

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum WorldSplit {
    Train,
    Validation,
    Test,
}

ghostlab_core::named!(WorldSplit: Train = "train", Validation = "validation", Test = "test");

/// Minimum number of words in the splits of a register; a split ends with the document that reaches its size.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Sizes {
    pub train: usize,
    /// Size of the validation split and of the test split.
    pub held_out: usize,
}

impl Sizes {
    /// Returns the sizes for the tiny profile.
    pub fn of(register: Register) -> Self {
        match register {
            Register::Web => Self { train: 1_200_000, held_out: 60_000 },
            Register::Wiki | Register::News => Self { train: 400_000, held_out: 40_000 },
        }
    }
}

/// Generated world. The same seed gives the same bytes.
#[derive(Debug)]
pub struct World {
    seed: u64,
    facts: Facts,
}

impl World {
    /// Names of the tasks, in the order of the paper's columns.
    pub const TASKS: [&str; 9] = exam::TASKS;

    /// Names of the tasks without choices: generated short answers, and last words.
    pub const ANSWERED: [&str; 2] = answered::ANSWERED;

    pub fn new(seed: u64) -> Self {
        Self { seed, facts: Facts::new(seed) }
    }

    /// Returns the rows of a corpus in the hub's format: a web document, a line of the encyclopedia with its newline
    /// (an empty row for an empty line), or a sentence of the newswire.
    pub fn rows(&self, register: Register, part: WorldSplit) -> Vec<String> {
        let sizes = Sizes::of(register);
        let size = if part == WorldSplit::Train { sizes.train } else { sizes.held_out };
        self.rows_of_size(register, part, size)
    }

    /// Returns [`rows`](Self::rows) with another number of words.
    pub fn rows_of_size(&self, register: Register, part: WorldSplit, size: usize) -> Vec<String> {
        let share = match part {
            WorldSplit::Train => Share::Train,
            WorldSplit::Validation => Share::Validation,
            WorldSplit::Test => Share::Test,
        };
        let mut voice = Voice::new(&self.facts, share, &[self.seed, 1, register as u64, part as u64]);
        match register {
            Register::Web => web::rows(&mut voice, size),
            Register::Wiki => wiki::rows(&mut voice, size),
            Register::News => news::rows(&mut voice, size),
        }
    }

    /// Returns the names of all generated texts: `web/train`, …, and the tasks.
    pub fn texts() -> Vec<String> {
        let corpora = Register::ALL.iter().flat_map(|register| {
            WorldSplit::ALL.iter().map(move |part| format!("{}/{}", register.name(), part.name()))
        });
        corpora.chain(Self::TASKS.iter().chain(&Self::ANSWERED).map(ToString::to_string)).collect()
    }

    /// Returns the rows of one of [`Self::texts`] in the hub's schema, or `None` for an unknown name.
    pub fn text(&self, name: &str) -> Option<Vec<Value>> {
        let Some((register, part)) = name.split_once('/') else { return self.task(name) };
        let rows = self.rows(register.parse().ok()?, part.parse().ok()?);
        Some(rows.into_iter().map(|text| json!({"text": text})).collect())
    }

    /// Returns the rows of a task's scored split in order and in the hub's schema, or `None` for an unknown name.
    pub fn task(&self, name: &str) -> Option<Vec<Value>> {
        exam::rows(&self.facts, self.seed, name).or_else(|| answered::rows(&self.facts, self.seed, name))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::*;

    #[test]
    fn a_seed_is_a_world() {
        let one = World::new(0);
        let two = World::new(0);
        let other = World::new(1);
        for register in Register::ALL {
            assert_eq!(register.name().parse(), Ok(register));
            let rows = one.rows_of_size(register, WorldSplit::Train, 5_000);
            assert_eq!(rows, two.rows_of_size(register, WorldSplit::Train, 5_000));
            assert_ne!(rows, other.rows_of_size(register, WorldSplit::Train, 5_000));
        }
        for task in World::TASKS {
            assert_eq!(one.task(task), two.task(task));
            assert_ne!(one.task(task), other.task(task));
        }
        assert_eq!(one.task("arc"), None);
        // This text must be the same on every machine, and may only change deliberately.
        let first = one.rows_of_size(Register::News, WorldSplit::Train, 1);
        assert_eq!(first, ["the tyre was flat therefore nora pushed the bike home"]);
        assert!("c4".parse::<Register>().is_err());
    }

    #[test]
    fn corpora_have_their_sizes_and_few_words() {
        let world = World::new(0);
        let mut vocabulary = HashSet::new();
        for register in Register::ALL {
            for part in WorldSplit::ALL {
                let rows = world.rows(register, part);
                let sizes = Sizes::of(register);
                let size = if part == WorldSplit::Train { sizes.train } else { sizes.held_out };
                let words: usize = rows.iter().map(|row| text::words(row)).sum();
                assert!((size..size + 1_000).contains(&words), "{register:?} {part:?} {words}");
                for row in &rows {
                    assert!(row.is_ascii() && !row.contains(['{', '}']), "{row}");
                    let words = row.split(|c: char| !c.is_ascii_alphabetic()).filter(|word| !word.is_empty());
                    vocabulary.extend(words.map(str::to_lowercase));
                }
                match register {
                    Register::Web => {
                        let long = rows.iter().filter(|row| (150..=650).contains(&text::words(row))).count();
                        assert!(long * 10 >= rows.len() * 9);
                    }
                    Register::Wiki => assert!(rows.iter().all(|row| row.is_empty() || row.ends_with(" \n"))),
                    Register::News => {
                        let plain =
                            |row: &String| row.replace('N', "").bytes().all(|b| !b.is_ascii_uppercase() && b != b'\n');
                        assert!(rows.iter().all(plain));
                    }
                }
            }
        }
        assert!((900..1_500).contains(&vocabulary.len()), "{}", vocabulary.len());
    }

    #[test]
    fn a_fact_is_stated_often() {
        let world = World::new(0);
        let text: Vec<String> =
            Register::ALL.into_iter().flat_map(|register| world.rows(register, WorldSplit::Train)).collect();
        let stated = leaks::stated(&world.facts, &text);
        let rare: Vec<_> = stated.iter().filter(|(_, count)| *count < 45).collect();
        assert!(rare.is_empty(), "{} of {}: {rare:?}", rare.len(), stated.len());
    }
}
