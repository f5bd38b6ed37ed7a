//! Passages about facts of the world. Their questions can be answered from the passage or from knowledge of the world;
//! those of [`reading`](super::reading) only from the passage.

use super::draw::Draw;
use super::facts::{Fact, Facts};
use super::reading::{Article, ClaimItem, Polar, Problem, offered, owned};
use super::relation::{RELATIONS, RelationKind};
use super::share::Share;
use super::text::{bare, capital, fill, sentence};
use super::words::WORDS;

/// Returns `count` facts of one relation with distinct subjects and values. `fits` selects the subject kinds.
pub(super) fn known(facts: &Facts, count: usize, fits: impl Fn(RelationKind) -> bool, draw: &mut Draw) -> Vec<Fact> {
    // Skip relations with few subjects, which would be asked about repeatedly.
    let links: Vec<usize> = (0..RELATIONS)
        .filter(|link: &usize| facts.of_link(*link).count() >= 20 && fits(WORDS.relations[*link].subject))
        .collect();
    let link = draw.pick(&links);
    let mut all: Vec<Fact> = facts.of_link(link).collect();
    draw.shuffle(&mut all);
    let mut known: Vec<Fact> = Vec::with_capacity(count);
    for fact in all {
        if known.len() < count && known.iter().all(|other| facts.value(*other) != facts.value(fact)) {
            known.push(fact);
        }
    }
    known
}

/// Returns two facts of one relation, and a wording that the corpora may use for both.
fn contrast(facts: &Facts, draw: &mut Draw) -> (Fact, Fact, usize) {
    loop {
        let known = known(facts, 2, |_| true, draw);
        if let Some(wording) = facts.wording_of_both(known[0], known[1], draw) {
            return (known[0], known[1], wording);
        }
    }
}

/// Content of a passage: facts, and optionally a claim with whether it is true.
struct Content {
    facts: Vec<Fact>,
    claimed: Option<(String, bool)>,
}

/// Returns the content as clauses in random order. Some facts come with another fact about their subject.
fn clauses(facts: &Facts, content: &Content, draw: &mut Draw) -> Vec<String> {
    let mut groups: Vec<Vec<String>> = Vec::new();
    if let Some((claim, holds)) = &content.claimed {
        let opening = draw.pick(&WORDS.stances);
        let closing = draw.pick(&WORDS.closings);
        let (opening, closing) = if *holds { (opening.0, closing.0) } else { (opening.1, closing.1) };
        groups.push(vec![fill(opening, &[("c", claim)]), closing.to_owned()]);
    }
    for fact in &content.facts {
        let mut group: Vec<String> = facts.statement(*fact, false, draw).into_iter().collect();
        let about = facts.about(facts.subject(*fact));
        let more = about[draw.below(about.len())];
        if more != *fact && draw.chance(35) {
            group.extend(facts.statement(more, true, draw));
        }
        groups.push(group);
    }
    draw.shuffle(&mut groups);
    groups.concat()
}

fn passage(facts: &Facts, content: &Content, wanted: Share, draw: &mut Draw) -> String {
    owned(wanted, || {
        let mut sentences: Vec<String> = clauses(facts, content, draw).iter().map(|clause| sentence(clause)).collect();
        if draw.chance(40) {
            let at = if draw.chance(50) { 0 } else { sentences.len() };
            sentences.insert(at, sentence(draw.pick(&WORDS.fillers)));
        }
        sentences.join(" ")
    })
}

fn premise(facts: &Facts, content: &Content, wanted: Share, draw: &mut Draw) -> String {
    owned(wanted, || {
        let link = draw.pick(&[", and ", ", while ", ", but ", "; "]);
        let mut clauses = clauses(facts, content, draw).join(link);
        // A fact has few wordings, possibly none in this share, so add variation.
        if draw.chance(50) {
            clauses.push_str(&format!(", said {}", facts.person(draw.below(facts.count(RelationKind::Person)))));
        }
        sentence(&clauses)
    })
}

/// Percentage of task passages that state a verdict on the claim itself; the others state facts.
const DISPUTED: usize = 75;

/// Percentage of corpus passages with a verdict. Judging a claim by facts requires a comparison; too many such examples
/// would drown out the others for a backbone that cannot compare.
const PRINTED_DISPUTED: usize = 85;

/// Returns four claims: for each of two subjects, its own value and the other's. Each subject, value and word is in as
/// many true as false claims.
fn claims(facts: &Facts, draw: &mut Draw) -> [(Content, String, bool); 4] {
    let (a, b, wording) = contrast(facts, draw);
    let both = draw.chance(50);
    let disputed = draw.chance(DISPUTED);
    [(a, a), (a, b), (b, b), (b, a)].map(|(fact, source)| {
        let holds = fact == source;
        let value = facts.value(source);
        let other = if fact == a { b } else { a };
        let claimed = facts.wording_of_both(a, b, draw).filter(|_| disputed);
        let content = Content {
            claimed: claimed.map(|wording| (facts.claim(fact, wording, value), holds)),
            facts: [Some(fact).filter(|_| !disputed), Some(other).filter(|_| both)].into_iter().flatten().collect(),
        };
        (content, facts.claim(fact, wording, value), holds)
    })
}

fn polar_question(claim: &str) -> String {
    format!("is it true that {claim}")
}

/// Returns four yes/no questions with their passages; two answers are yes.
pub(super) fn polar_items(facts: &Facts, wanted: Share, draw: &mut Draw) -> [Polar; 4] {
    claims(facts, draw).map(|(content, claim, answer)| {
        let passage = passage(facts, &content, wanted, draw);
        Polar { passage, question: polar_question(&claim), answer }
    })
}

/// Returns four hypotheses with their premises; two are true.
pub(super) fn claim_items(facts: &Facts, wanted: Share, draw: &mut Draw) -> [ClaimItem; 4] {
    claims(facts, draw).map(|(content, claim, holds)| {
        let premise = premise(facts, &content, wanted, draw);
        ClaimItem { premise, hypothesis: sentence(&claim), holds }
    })
}

/// A claim, whether it is true, and the true statement.
struct JudgedClaim {
    claim: String,
    holds: bool,
    truth: String,
}

/// Judges the claim that the fact's subject has this value, in a random wording.
fn verdict(facts: &Facts, fact: Fact, value: &str, draw: &mut Draw) -> JudgedClaim {
    let wording = facts.wording_of_both(fact, fact, draw).unwrap_or_default();
    JudgedClaim {
        claim: facts.claim(fact, wording, value),
        holds: value == facts.value(fact),
        truth: facts.statement(fact, false, draw).unwrap_or_default(),
    }
}

/// Returns the fact's value or, with equal probability, a wrong one: that of another fact in the passage, or any.
fn said_value<'f>(facts: &'f Facts, fact: Fact, present: &[Fact], draw: &mut Draw) -> &'f str {
    if draw.chance(50) {
        return facts.value(fact);
    }
    let wrong = |other: &Fact| facts.value(*other) != facts.value(fact);
    let near: Vec<Fact> = present.iter().copied().filter(wrong).collect();
    if near.is_empty() || draw.chance(50) {
        let all: Vec<Fact> = facts.of_link(fact.link).filter(wrong).collect();
        return facts.value(draw.pick(&all));
    }
    facts.value(draw.pick(&near))
}

/// Returns the content of a passage with judged claims about it.
fn quizzed(facts: &Facts, draw: &mut Draw) -> (Content, Vec<JudgedClaim>) {
    let count = 1 + draw.below(2);
    let present = known(facts, count, |_| true, draw);
    if draw.chance(PRINTED_DISPUTED) {
        let value = said_value(facts, present[0], &present, draw);
        let JudgedClaim { claim, holds, .. } = verdict(facts, present[0], value, draw);
        let verdicts = vec![verdict(facts, present[0], value, draw)];
        return (Content { claimed: Some((claim, holds)), facts: present[1..].to_vec() }, verdicts);
    }
    let verdicts = (0..2 * count).map(|at| {
        let fact = present[at % count];
        let value = said_value(facts, fact, &present, draw);
        verdict(facts, fact, value, draw)
    });
    let verdicts = verdicts.collect();
    (Content { claimed: None, facts: present }, verdicts)
}

/// Formats a passage with questions as a quiz.
pub(super) fn polar_quiz(facts: &Facts, wanted: Share, draw: &mut Draw) -> String {
    let (content, verdicts) = quizzed(facts, draw);
    let mut text = passage(facts, &content, wanted, draw);
    for JudgedClaim { claim, holds, truth } in verdicts {
        let answer = if holds { "yes" } else { "no" };
        text.push_str(&format!("\nQuestion: {}?\nAnswer: {answer}", polar_question(&claim)));
        if draw.chance(30) {
            text.push_str(&format!(", {truth}."));
        }
    }
    text
}

/// Formats a premise with claims about it as a quiz.
pub(super) fn claim_quiz(facts: &Facts, wanted: Share, draw: &mut Draw) -> String {
    let (content, verdicts) = quizzed(facts, draw);
    let mut text = premise(facts, &content, wanted, draw);
    for JudgedClaim { claim, holds, .. } in verdicts {
        let claim = ClaimItem { premise: std::mem::take(&mut text), hypothesis: sentence(&claim), holds };
        text = format!("{} {}", claim.prompt(), claim.right());
    }
    text
}

/// Returns an article about four subjects of one kind, and `count` problems about it.
pub(super) fn article(facts: &Facts, wanted: Share, count: usize, draw: &mut Draw) -> Article {
    let present = known(facts, 4, |_| true, draw);
    let text = passage(facts, &Content { facts: present.clone(), claimed: None }, wanted, draw);
    let first = draw.below(4);
    let mut problem = |at: usize| {
        let (options, answer) = offered(at, |other| facts.value(present[other]).to_owned(), draw);
        Problem { question: facts.question(present[at], draw).unwrap_or_default(), options, answer }
    };
    let problems = (0..count).map(|at| problem((first + at) % 4)).collect();
    Article { text, problems }
}

/// Two named subjects, and for each a sentence ending that refers to it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meeting {
    pub(super) opening: String,
    pub(super) names: [String; 2],
    pub(super) endings: [String; 2],
}

/// Creates a meeting of two people, or of two animals or objects, with endings from facts about them.
pub(super) fn meeting(facts: &Facts, draw: &mut Draw) -> Meeting {
    loop {
        let (people, template) = draw.pick(&WORDS.meetings);
        let known = known(
            facts,
            2,
            |kind| {
                if people {
                    kind == RelationKind::Person
                } else {
                    matches!(kind, RelationKind::Animal | RelationKind::Object)
                }
            },
            draw,
        );
        let names = [0, 1].map(|at: usize| bare(facts.name(facts.subject(known[at]))).to_owned());
        let endings = [0, 1].map(|at: usize| facts.predicate(known[at], draw));
        if let [Some(first), Some(second)] = endings {
            let opening = capital(&fill(template, &[("x", &names[0]), ("y", &names[1])]));
            return Meeting { opening, names, endings: [first, second] };
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::text::bare;
    use super::*;

    #[test]
    fn a_claim_holds_where_the_world_has_it_so() {
        let facts = Facts::new(0);
        let mut draw = Draw::new(&[7]);
        for _ in 0..200 {
            let items = polar_items(&facts, Share::Scored, &mut draw);
            assert_eq!(items.iter().filter(|item| item.answer).count(), 2);
            let claims = claim_items(&facts, Share::Train, &mut draw);
            assert!(claims[0].holds && claims[2].holds && !claims[1].holds && !claims[3].holds);
            assert_ne!(claims[0].hypothesis, claims[1].hypothesis);
        }
    }

    #[test]
    fn an_article_has_the_answer_to_each_of_its_questions() {
        let facts = Facts::new(0);
        let mut draw = Draw::new(&[8]);
        for _ in 0..200 {
            let article = article(&facts, Share::Test, 4, &mut draw);
            for problem in &article.problems {
                let text = article.text.to_lowercase();
                assert!(
                    problem.options.iter().all(|option| text.contains(&bare(option).to_lowercase())),
                    "{article:?}"
                );
            }
        }
    }

    #[test]
    fn who_is_meant_is_told_by_the_world() {
        let facts = Facts::new(0);
        let mut draw = Draw::new(&[9]);
        for _ in 0..200 {
            let Meeting { opening, names, endings } = meeting(&facts, &mut draw);
            assert!(names.iter().all(|name| opening.contains(name)), "{opening}");
            assert_ne!(endings[0], endings[1]);
        }
    }
}
