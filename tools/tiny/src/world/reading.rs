//! Passages with questions that can only be answered from the passage: the reading tasks, and the same forms in the
//! corpora.

use super::draw::Draw;
use super::episode::{WorldEvent, events, things};
use super::facts::{Entity, Facts};
use super::relation::RelationKind;
use super::share::{Share, share};
use super::text::sentence;
use super::words::WORDS;

/// A passage and a yes/no question without its question mark.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Polar {
    pub(super) passage: String,
    pub(super) question: String,
    pub(super) answer: bool,
}

/// A premise, and a sentence that may or may not follow from it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct ClaimItem {
    pub(super) premise: String,
    pub(super) hypothesis: String,
    pub(super) holds: bool,
}

/// A question with four options.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Problem {
    pub(super) question: String,
    pub(super) options: Vec<String>,
    pub(super) answer: usize,
}

impl Problem {
    pub(super) fn right(&self) -> &str {
        &self.options[self.answer]
    }
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Article {
    pub(super) text: String,
    pub(super) problems: Vec<Problem>,
}

/// Draws until the text belongs to the wanted share. Each share has at least a tenth of all texts, so few draws are
/// needed.
pub(super) fn owned(wanted: Share, mut make: impl FnMut() -> String) -> String {
    loop {
        let text = make();
        if share(&text) == wanted {
            return text;
        }
    }
}

/// Returns events that make `claim` false: its person did it to something else, and possibly someone else did it to its
/// object.
fn falsified(claim: &WorldEvent, events: &[WorldEvent], spare: &str, draw: &mut Draw) -> Vec<WorldEvent> {
    let mut others = events.to_vec();
    let Some(at) = others.iter().position(|event| event == claim) else { return others };
    others[at].thing = spare.to_owned();
    // Mention the claim's object with another person.
    if draw.chance(45) {
        let other = (at + 1 + draw.below(others.len() - 1)) % others.len();
        let thing = std::mem::replace(&mut others[other].thing, claim.thing.clone());
        if draw.chance(50) {
            others[at].thing = thing;
        }
    }
    others
}

/// Returns `count` events with one act, and a thing that occurs in none of them.
fn scene(facts: &Facts, count: usize, draw: &mut Draw) -> (Vec<WorldEvent>, String) {
    let events = events(facts, count, true, draw);
    loop {
        let spare = things(facts, WORDS.acts[events[0].act].thing, 1, draw).remove(0);
        if events.iter().all(|event| event.thing != spare) {
            return (events, spare);
        }
    }
}

fn passage(events: &[WorldEvent], wanted: Share, draw: &mut Draw) -> String {
    owned(wanted, || {
        let mut events = events.to_vec();
        draw.shuffle(&mut events);
        let mut sentences: Vec<String> = events.iter().map(|event| sentence(&event.told(draw))).collect();
        let at = draw.below(sentences.len() + 1);
        sentences.insert(at, sentence(draw.pick(&WORDS.fillers)));
        sentences.join(" ")
    })
}

fn polar_question(event: &WorldEvent, draw: &mut Draw) -> String {
    let act = &WORDS.acts[event.act];
    match draw.below(4) {
        0 => format!("was {} {} by {}", event.thing, act.done, event.who),
        _ => format!("did {} {} {}", event.who, act.base, event.thing),
    }
}

/// Returns one question with two passages: the answer is yes for the first, no for the second.
pub(super) fn polar_pair(facts: &Facts, wanted: Share, draw: &mut Draw) -> [Polar; 2] {
    let count = 2 + draw.below(2);
    let (events, spare) = scene(facts, count, draw);
    let claim = events[draw.below(events.len())].clone();
    let question = polar_question(&claim, draw);
    let other = falsified(&claim, &events, &spare, draw);
    [(events, true), (other, false)].map(|(events, answer)| {
        let passage = passage(&events, wanted, draw);
        Polar { passage, question: question.clone(), answer }
    })
}

/// Formats a passage with questions as a quiz.
pub(super) fn polar_quiz(facts: &Facts, wanted: Share, draw: &mut Draw) -> String {
    let count = 2 + draw.below(2);
    let (events, spare) = scene(facts, count, draw);
    let mut text = passage(&events, wanted, draw);
    // Ask many questions per passage, because a small model learns to look up facts from the answers, not from the
    // passages.
    for at in draw.several(2 * count, 2 * count) {
        let at = at % count;
        let mut asked = events[at].clone();
        let answer = draw.chance(50);
        let mut truth = at;
        if !answer {
            let other = (at + 1 + draw.below(count - 1)) % count;
            let elsewhere = draw.chance(45);
            asked.thing = if elsewhere { events[other].thing.clone() } else { spare.clone() };
            truth = if elsewhere { other } else { at };
        }
        let yes = if answer { "yes" } else { "no" };
        text.push_str(&format!("\nQuestion: {}?\nAnswer: {yes}", polar_question(&asked, draw)));
        // Some answers also state the truth.
        if draw.chance(40) {
            text.push_str(&format!(", {}.", events[truth].plain()));
        }
    }
    text
}

fn premise(facts: &Facts, events: &[WorldEvent], wanted: Share, draw: &mut Draw) -> String {
    owned(wanted, || {
        let mut events = events.to_vec();
        draw.shuffle(&mut events);
        let link = draw.pick(&[", and ", ", while ", ", but ", "; "]);
        let clauses: Vec<String> = events
            .iter()
            .map(|event| match draw.below(3) {
                0 => event.plain(),
                1 => event.dated(draw),
                _ => {
                    let town = facts.name(Entity {
                        kind: RelationKind::Place,
                        index: draw.below(facts.count(RelationKind::Place)),
                    });
                    format!("{}, on the way to {town}, {} {}", event.who, WORDS.acts[event.act].past, event.thing)
                }
            })
            .collect();
        sentence(&clauses.join(link))
    })
}

fn hypothesis(event: &WorldEvent, draw: &mut Draw) -> String {
    sentence(&if draw.chance(25) { event.passive() } else { event.plain() })
}

/// Returns one hypothesis with two premises: it follows from the first, but not from the second.
pub(super) fn claim_pair(facts: &Facts, wanted: Share, draw: &mut Draw) -> [ClaimItem; 2] {
    let (events, spare) = scene(facts, 2, draw);
    let claim = events[draw.below(events.len())].clone();
    let hypothesis = hypothesis(&claim, draw);
    let other = falsified(&claim, &events, &spare, draw);
    [(events, true), (other, false)].map(|(events, holds)| {
        let premise = premise(facts, &events, wanted, draw);
        ClaimItem { premise, hypothesis: hypothesis.clone(), holds }
    })
}

/// Formats a premise with claims about it as a quiz.
pub(super) fn claim_quiz(facts: &Facts, wanted: Share, draw: &mut Draw) -> String {
    let (events, spare) = scene(facts, 2, draw);
    let mut text = premise(facts, &events, wanted, draw);
    for at in draw.several(4, 4) {
        let mut claim = events[at % 2].clone();
        let holds = draw.chance(50);
        if !holds {
            claim.thing = if draw.chance(45) { events[(at + 1) % 2].thing.clone() } else { spare.clone() };
        }
        let claim = ClaimItem { premise: std::mem::take(&mut text), hypothesis: hypothesis(&claim, draw), holds };
        text = format!("{} {}", claim.prompt(), claim.right());
    }
    text
}

/// Returns an article of four events, and `count` problems whose answers are all in the article.
pub(super) fn article(facts: &Facts, wanted: Share, count: usize, draw: &mut Draw) -> Article {
    let same_act = draw.chance(50);
    let events = events(facts, 4, same_act, draw);
    let text = owned(wanted, || {
        let mut events = events.clone();
        draw.shuffle(&mut events);
        let mut sentences: Vec<String> = events.iter().map(|event| sentence(&event.dated(draw))).collect();
        sentences.insert(if draw.chance(50) { 0 } else { 4 }, sentence(draw.pick(&WORDS.fillers)));
        sentences.join(" ")
    });
    let problems = draw.several(count, count.max(4)).into_iter().map(|at| problem(&events, at % 4, draw)).collect();
    Article { text, problems }
}

fn problem(events: &[WorldEvent], at: usize, draw: &mut Draw) -> Problem {
    let event = &events[at];
    let act = &WORDS.acts[event.act];
    let who = &event.who;
    let thing = &event.thing;
    let things: fn(&WorldEvent) -> String = |event| event.thing.clone();
    let people: fn(&WorldEvent) -> String = |event| event.who.clone();
    let days: fn(&WorldEvent) -> String = |event| format!("on {}", event.day);
    let (question, option) = match draw.below(8) {
        0..=2 => (format!("What did {who} {}?", act.base), things),
        3..=4 => (format!("Who {} {thing}?", act.past), people),
        5..=6 => (format!("When did {who} {} {thing}?", act.base), days),
        _ => (format!("{who} {}  _  .", act.past), things),
    };
    let (options, answer) = offered(at, |other| option(&events[other]), draw);
    Problem { question, options, answer }
}

/// Returns four options in random order, and the position of the correct one, `option(right)`.
pub(super) fn offered(right: usize, option: impl Fn(usize) -> String, draw: &mut Draw) -> (Vec<String>, usize) {
    let mut order = [0, 1, 2, 3];
    draw.shuffle(&mut order);
    let answer = order.iter().position(|other| *other == right).unwrap_or(0);
    (order.map(option).to_vec(), answer)
}

/// Blank at the end of a question to be completed, as printed by RACE.
const BLANK: &str = "  _  .";

impl Article {
    /// Returns the harness's prompt before the last answer, which the corpora also use.
    pub(super) fn prompt(&self) -> String {
        let mut text = format!("Article: {}\n\n", self.text);
        let Some((last, earlier)) = self.problems.split_last() else { return text };
        for problem in earlier {
            match problem.question.strip_suffix(BLANK) {
                Some(stem) => text.push_str(&format!("{stem} {}\n", problem.right())),
                None => text.push_str(&format!("Question: {}\nAnswer: {}\n", problem.question, problem.right())),
            }
        }
        text.push_str(&last.question);
        text
    }

    pub(super) fn right(&self) -> &str {
        self.problems.last().map_or("", Problem::right)
    }
}

impl ClaimItem {
    pub(super) fn prompt(&self) -> String {
        format!("{}\nQuestion: {} True or False?\nAnswer:", self.premise, self.hypothesis)
    }

    pub(super) fn right(&self) -> &'static str {
        if self.holds { "True" } else { "False" }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_pair_differs_in_its_answer_only_by_the_passage() {
        let facts = Facts::new(0);
        let mut draw = Draw::new(&[5]);
        for _ in 0..200 {
            let [yes, no] = polar_pair(&facts, Share::Scored, &mut draw);
            assert_eq!((&yes.question, yes.answer, no.answer), (&no.question, true, false));
            assert_ne!(yes.passage, no.passage);
            if let Some((who, rest)) = yes.question.strip_prefix("did ").and_then(|rest| rest.split_once(' ')) {
                let (base, thing) = rest.split_once(' ').unwrap();
                let act = WORDS.acts.iter().find(|act| act.base == base).unwrap();
                let plain = format!("{who} {} {thing}", act.past);
                assert!(yes.passage.contains(&plain) && !no.passage.contains(&plain), "{yes:?} {no:?}");
            }
            let [holds, fails] = claim_pair(&facts, Share::Train, &mut draw);
            assert_eq!((&holds.hypothesis, holds.holds, fails.holds), (&fails.hypothesis, true, false));
        }
    }

    #[test]
    fn an_article_holds_all_options() {
        let facts = Facts::new(0);
        let mut draw = Draw::new(&[6]);
        for _ in 0..200 {
            let article = article(&facts, Share::Test, 3, &mut draw);
            for problem in &article.problems {
                assert!(
                    problem.options.iter().all(|option| article.text.to_lowercase().contains(&option.to_lowercase()))
                );
                assert_eq!(problem.options.len(), 4);
            }
        }
    }
}
