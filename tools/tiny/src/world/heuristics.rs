//! Tests that no task can be solved by its form: heuristics without knowledge of the world stay at chance.

use std::collections::HashMap;

use super::shapes::{Asked, asked};
use super::text::words;
use super::{Register, World, WorldSplit};

/// Log-probabilities of words in the train splits, ignoring case and punctuation.
struct Unigrams {
    counts: HashMap<String, usize>,
    total: usize,
}

fn tokens(text: &str) -> impl Iterator<Item = String> {
    text.split(|c: char| !c.is_ascii_alphanumeric()).filter(|word| !word.is_empty()).map(str::to_lowercase)
}

impl Unigrams {
    fn new(world: &World) -> Self {
        let mut counts: HashMap<String, usize> = HashMap::new();
        for register in Register::ALL {
            for row in world.rows(register, WorldSplit::Train) {
                for word in tokens(&row) {
                    *counts.entry(word).or_default() += 1;
                }
            }
        }
        let total = counts.values().sum();
        Self { counts, total }
    }

    fn score(&self, text: &str, mean: bool) -> f64 {
        let sum: f64 = tokens(text)
            .map(|word: String| {
                let count = self.counts.get(&word).copied().unwrap_or(0) + 1;
                (count as f64 / (self.total + self.counts.len()) as f64).ln()
            })
            .sum();
        if mean { sum / tokens(text).count() as f64 } else { sum }
    }
}

/// Returns the expected accuracy of picking the choice with the highest score, with ties broken at random.
fn accuracy(items: &[Asked], score: impl Fn(&str) -> f64) -> f64 {
    items
        .iter()
        .map(|item: &Asked| {
            let scores: Vec<f64> = item.choices.iter().map(|choice| score(choice)).collect();
            let best = scores.iter().copied().fold(f64::NEG_INFINITY, f64::max);
            let ties = scores.iter().filter(|score| **score == best).count();
            if scores[item.gold] == best { 1.0 / ties as f64 } else { 0.0 }
        })
        .sum::<f64>()
        / items.len() as f64
}

/// A task, a heuristic, its accuracy, chance, and the standard error of chance.
type Finding = (&'static str, &'static str, f64, f64, f64);

fn findings(world: &World) -> Vec<Finding> {
    let unigrams = Unigrams::new(world);
    let mut found = Vec::new();
    for task in World::TASKS {
        let items: Vec<Asked> = world.task(task).unwrap().iter().map(|row| asked(task, row)).collect();
        let chance = 1.0 / items[0].choices.len() as f64;
        let error = (chance * (1.0 - chance) / items.len() as f64).sqrt();
        let first = items.iter().filter(|item| item.gold == 0).count() as f64 / items.len() as f64;
        let mut add = |rule, accuracy| found.push((task, rule, accuracy, chance, error));
        add("first", first);
        add("longest", accuracy(&items, |text| text.len() as f64));
        add("shortest", accuracy(&items, |text| -(text.len() as f64)));
        add("most words", accuracy(&items, |text| words(text) as f64));
        add("likely mean", accuracy(&items, |text| unigrams.score(text, true)));
        add("unlikely mean", accuracy(&items, |text| -unigrams.score(text, true)));
        add("likely sum", accuracy(&items, |text| unigrams.score(text, false)));
        add("unlikely sum", accuracy(&items, |text| -unigrams.score(text, false)));
    }
    found
}

#[test]
fn rules_that_know_nothing_stay_at_chance() {
    for (task, rule, accuracy, chance, error) in findings(&World::new(0)) {
        assert!(
            (accuracy - chance).abs() <= 3.0 * error,
            "{task}, {rule}: {accuracy:.3} against {chance:.3}±{error:.3}"
        );
    }
}

#[test]
fn each_answer_is_right_as_often_as_chance_has_it() {
    let world = World::new(0);
    for task in World::TASKS {
        let items: Vec<Asked> = world.task(task).unwrap().iter().map(|row| asked(task, row)).collect();
        let chance = 1.0 / items[0].choices.len() as f64;
        let mut counts: HashMap<&str, (usize, usize)> = HashMap::new();
        for item in &items {
            for (at, choice) in item.choices.iter().enumerate() {
                let (right, all) = counts.entry(choice).or_default();
                *right += usize::from(at == item.gold);
                *all += 1;
            }
        }
        for (choice, (right, all)) in counts {
            let error = (chance * (1.0 - chance) / all as f64).sqrt();
            let share = right as f64 / all as f64;
            assert!((share - chance).abs() <= 4.0 * error, "{task}, {choice}: {right} of {all}");
        }
    }
}

#[test]
fn no_word_of_a_question_tells_yes_from_no() {
    let world = World::new(0);
    for (task, field) in [("boolq", "question"), ("rte", "sentence2")] {
        let mut balance: HashMap<String, i64> = HashMap::new();
        for row in world.task(task).unwrap() {
            for word in tokens(row[field].as_str().unwrap()) {
                *balance.entry(word).or_default() += if row["label"] == 1 { 1 } else { -1 };
            }
        }
        assert!(balance.values().all(|balance| *balance == 0), "{task}: {balance:?}");
    }
}
