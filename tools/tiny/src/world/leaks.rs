//! Tests over all corpora: overlap between splits, text reserved for tasks, and how often each fact is stated.

use std::collections::{HashMap, HashSet};

use super::facts::Facts;
use super::relation::RELATIONS;
use super::shapes::asked;
use super::text::bare;
use super::voice::PARAGRAPH;
use super::{Register, World, WorldSplit};

/// Counts how often these texts state each plain fact, by sentences that contain both its subject and its value.
pub(super) fn stated(facts: &Facts, texts: &[String]) -> Vec<(String, usize)> {
    let mut wanted: HashMap<(String, String), usize> = HashMap::new();
    let mut all = 0;
    for link in 0..RELATIONS {
        for fact in facts.of_link(link) {
            // Facts that share subject and value are counted together, such as the colour of an animal that is a bird
            // of that colour.
            wanted.entry((last_word(facts.name(facts.subject(fact))), last_word(facts.value(fact)))).or_insert_with(
                || {
                    all += 1;
                    all - 1
                },
            );
        }
    }
    let mut counts = vec![0; all];
    // A question with its answer states the fact too.
    let texts = texts.iter().map(|text| text.replace("?\nAnswer", "? Answer"));
    let subjects: HashSet<String> = wanted.keys().map(|(subject, _)| subject.clone()).collect();
    for text in texts {
        let mut last = String::new();
        for sentence in text.split(['.', '\n']) {
            let mut words: Vec<String> = sentence
                .split(|c: char| !c.is_ascii_alphabetic())
                .filter(|word| !word.is_empty())
                .map(str::to_lowercase)
                .collect();
            // Resolve pronouns to the last named entity.
            if words.iter().any(|word| ["it", "its", "she", "her", "he", "his"].contains(&word.as_str())) {
                words.push(last.clone());
            }
            let mut seen = Vec::new();
            for subject in words.iter().filter(|word| subjects.contains(*word)) {
                for value in &words {
                    if let Some(at) = wanted.get(&(subject.clone(), value.clone()))
                        && !seen.contains(at)
                    {
                        seen.push(*at);
                        counts[*at] += 1;
                    }
                }
            }
            if let Some(named) = words.into_iter().find(|word| subjects.contains(word)) {
                last = named;
            }
        }
    }
    wanted.into_iter().map(|((subject, value), at)| (format!("{subject}: {value}"), counts[at])).collect()
}

fn last_word(text: &str) -> String {
    bare(text).split(' ').next_back().unwrap_or_default().to_lowercase()
}

/// Returns the documents of a split: rows, or articles for the encyclopedia.
fn documents(world: &World, register: Register, part: WorldSplit) -> Vec<String> {
    let rows = world.rows(register, part);
    if register != Register::Wiki {
        return rows;
    }
    let mut articles: Vec<String> = Vec::new();
    for row in rows {
        match articles.last_mut() {
            Some(article) if !row.starts_with(" = ") || row.starts_with(" = = ") => article.push_str(&row),
            _ => articles.push(row),
        }
    }
    // The part before the first heading is an empty row.
    articles.retain(|article| !article.is_empty());
    articles
}

#[test]
fn splits_share_no_document_and_no_paragraph() {
    let world = World::new(0);
    for register in Register::ALL {
        let parts = WorldSplit::ALL.map(|part| documents(&world, register, part));
        let shared =
            |one: &HashSet<&str>, two: &HashSet<&str>| one.intersection(two).next().map(|text| (*text).to_owned());
        let whole: Vec<HashSet<&str>> = parts.iter().map(|part| part.iter().map(String::as_str).collect()).collect();
        // Standalone punctuation and 's do not count as words.
        let lines: Vec<HashSet<&str>> = parts
            .iter()
            .map(|part| {
                part.iter()
                    .flat_map(|text| text.split('\n'))
                    .filter(|text: &&str| {
                        text.split_whitespace().filter(|word| word.starts_with(char::is_alphanumeric)).count()
                            >= PARAGRAPH
                    })
                    .collect()
            })
            .collect();
        for (one, two) in [(0, 1), (0, 2), (1, 2)] {
            assert_eq!(shared(&whole[one], &whole[two]), None, "{register:?}");
            assert_eq!(shared(&lines[one], &lines[two]), None, "{register:?}");
        }
    }
}

/// Normalizes case and white space.
fn plain(text: &str) -> String {
    text.to_lowercase().split_whitespace().collect::<Vec<_>>().join(" ")
}

#[test]
fn no_scored_item_is_printed() {
    const KEY: usize = 12;
    let world = World::new(0);
    let mut needles: Vec<String> = Vec::new();
    for task in World::TASKS {
        let items = world.task(task).unwrap();
        let texts: HashSet<String> = items.iter().map(|row| plain(&asked(task, row).right_text())).collect();
        assert!(texts.len() == items.len(), "{task} asks twice");
        needles.extend(texts);
    }
    let mut keyed: HashMap<&[u8], Vec<&str>> = HashMap::new();
    for needle in &needles {
        keyed.entry(&needle.as_bytes()[..KEY]).or_default().push(needle);
    }
    for register in Register::ALL {
        for part in WorldSplit::ALL {
            let text = plain(&world.rows(register, part).join("\n"));
            for at in 0..text.len() - KEY {
                let Some(found) = keyed.get(&text.as_bytes()[at..at + KEY]) else { continue };
                for needle in found {
                    assert!(!text[at..].starts_with(needle), "{register:?} {part:?}: {needle}");
                }
            }
        }
    }
}

#[test]
fn a_scored_question_of_two_hops_is_asked_nowhere() {
    let world = World::new(0);
    let rows = world.task("arc_challenge").unwrap();
    let text = Register::ALL.map(|register| world.rows(register, WorldSplit::Train).join("\n")).join("\n");
    for row in rows {
        let question = row["question"].as_str().unwrap();
        assert!(!text.contains(question), "{question}");
    }
}
