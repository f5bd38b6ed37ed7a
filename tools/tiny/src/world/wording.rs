//! Wordings of facts as statements and questions, including those reserved for the tasks.

use super::draw::Draw;
use super::facts::{Fact, Facts, Free, is_hop};
use super::relation::RELATIONS;
use super::share::{Share, drawn, share};
use super::text::{bare, capital, fill};
use super::words::WORDS;

fn wordings(link: usize) -> (&'static [&'static str], &'static [&'static str]) {
    if is_hop(link) {
        let hop = &WORDS.hops[link - RELATIONS];
        return (&hop.statements, &hop.questions);
    }
    (&WORDS.relations[link].statements, &WORDS.relations[link].questions)
}

impl Facts {
    /// Returns the clause of one wording, with the name or a pronoun.
    fn clause(&self, fact: Fact, template: &str, pronoun: bool) -> String {
        self.clause_with(fact, template, pronoun, self.value(fact))
    }

    fn clause_with(&self, fact: Fact, template: &str, pronoun: bool, value: &str) -> String {
        let subject = self.subject(fact);
        let name = self.name(subject);
        let (they, their, _) = self.pronouns(subject);
        if pronoun {
            return fill(template, &[("s", they), ("p", their), ("n", name), ("v", value), ("b", bare(value))]);
        }
        let owner = if template.contains("{p}") { format!("{name}'s") } else { String::new() };
        fill(template, &[("s", name), ("p", &owner), ("n", name), ("v", value), ("b", bare(value))])
    }

    /// Returns a statement of the fact without a full stop, or `None` if the fact is reserved for the tasks.
    pub(super) fn statement(&self, fact: Fact, pronoun: bool, draw: &mut Draw) -> Option<String> {
        let (statements, _) = wordings(fact.link);
        let free = self.free[fact.link][fact.subject].statements;
        match any(
            statements.len(),
            |at: &usize| free >> at & 1 == 1 && !(pronoun && statements[*at].contains("{n}")),
            draw,
        ) {
            None if pronoun => self.statement(fact, false, draw),
            None => None,
            Some(at) => Some(self.clause(fact, statements[at], pronoun)),
        }
    }

    /// Returns the rest of a statement after its subject, as in `lives in Dorvel`.
    pub(super) fn predicate(&self, fact: Fact, draw: &mut Draw) -> Option<String> {
        let (statements, _) = wordings(fact.link);
        let free = self.free[fact.link][fact.subject].statements;
        let at = any(statements.len(), |at: &usize| free >> at & 1 == 1 && statements[*at].starts_with("{s} "), draw)?;
        Some(self.clause(fact, &statements[at]["{s} ".len()..], false))
    }

    /// Returns a wording that the corpora may use for both facts, which have the same link.
    pub(super) fn wording_of_both(&self, one: Fact, two: Fact, draw: &mut Draw) -> Option<usize> {
        let (statements, _) = wordings(one.link);
        let free = self.free[one.link][one.subject].statements & self.free[two.link][two.subject].statements;
        any(statements.len(), |at| free >> at & 1 == 1, draw)
    }

    /// Returns the clause that states `value`, which may be false, of the fact's subject.
    pub(super) fn claim(&self, fact: Fact, wording: usize, value: &str) -> String {
        let (statements, _) = wordings(fact.link);
        self.clause_with(fact, statements[wording], false, value)
    }

    /// Returns a question about the fact that the corpora may contain, or `None` if the fact is reserved for the tasks.
    pub(super) fn question(&self, fact: Fact, draw: &mut Draw) -> Option<String> {
        let (_, questions) = wordings(fact.link);
        let free = self.free[fact.link][fact.subject].questions;
        let usable: Vec<&str> = (0..questions.len()).filter(|at| free >> at & 1 == 1).map(|at| questions[at]).collect();
        if usable.is_empty() { None } else { Some(self.clause(fact, draw.pick(&usable), false)) }
    }

    /// Returns the questions about the fact that occur in no corpus.
    pub(super) fn kept_questions(&self, fact: Fact) -> Vec<String> {
        let (_, questions) = wordings(fact.link);
        let free = self.free[fact.link][fact.subject].questions;
        let kept = (0..questions.len()).filter(|at| free >> at & 1 == 0);
        kept.map(|at| self.clause(fact, questions[at], false)).collect()
    }

    /// Returns the statements that occur in no corpus, each split into the text before the value and the value.
    pub(super) fn kept_stems(&self, fact: Fact) -> Vec<(String, String)> {
        let (statements, _) = wordings(fact.link);
        let free = self.free[fact.link][fact.subject].statements;
        let value = self.value(fact);
        let kept = (0..statements.len()).filter(|at| free >> at & 1 == 0);
        kept.filter_map(|at| {
            let stem = ending(statements[at])?;
            Some((capital(&self.clause(fact, stem, false)), value.to_owned()))
        })
        .collect()
    }

    /// Returns the wordings of a link that the corpora may use, by subject. They may use at least one statement and one
    /// question of each fact, except for a quarter of the hops, which are reserved entirely.
    pub(super) fn free_wordings(&self, link: usize) -> Vec<Free> {
        let kept = self.kept_hops(link);
        let (statements, questions) = wordings(link);
        self.of_link(link)
            .map(|fact: Fact| {
                if kept.contains(&fact.subject) {
                    return Free::default();
                }
                if is_hop(link) {
                    return Free { statements: u32::MAX, questions: u32::MAX };
                }
                let name = self.name(self.subject(fact));
                let value = self.value(fact);
                let mut free = Free::default();
                for (at, template) in statements.iter().enumerate() {
                    let clause = self.clause(fact, template, false);
                    // "The sky is blue" also occurs within "the colour of the sky is blue".
                    let inside = statements
                        .iter()
                        .enumerate()
                        .any(|(other, template)| other != at && self.clause(fact, template, false).contains(&clause));
                    let open = inside
                        || ending(template).is_none()
                        || at == drawn(&format!("say {link} {name}"), statements.len());
                    if open || share(&clause) != Share::Scored {
                        free.statements |= 1 << at;
                    }
                }
                for (at, template) in questions.iter().enumerate() {
                    let open = at == drawn(&format!("ask {link} {name}"), questions.len());
                    let asked = format!("{} {value}", self.clause(fact, template, false));
                    if open || share(&asked) != Share::Scored {
                        free.questions |= 1 << at;
                    }
                }
                free
            })
            .collect()
    }

    /// Returns the subjects of a hop that are reserved for the tasks: every fourth in the order of the values, so that
    /// all values are reserved equally often.
    fn kept_hops(&self, link: usize) -> Vec<usize> {
        if !is_hop(link) {
            return Vec::new();
        }
        let mut subjects: Vec<(String, usize, usize)> = self
            .of_link(link)
            .map(|fact| (self.value(fact).to_owned(), drawn(self.name(self.subject(fact)), 1 << 20), fact.subject))
            .collect();
        subjects.sort();
        subjects.into_iter().skip(link % 4).step_by(4).map(|(_, _, subject)| subject).collect()
    }
}

/// Draws a number below `limit` that is usable.
fn any(limit: usize, usable: impl Fn(&usize) -> bool, draw: &mut Draw) -> Option<usize> {
    let count = (0..limit).filter(&usable).count();
    if count == 0 { None } else { (0..limit).filter(usable).nth(draw.below(count)) }
}

/// Returns the template without its final value, if it ends with the value.
fn ending(template: &str) -> Option<&str> {
    template.strip_suffix(" {v}")
}

#[cfg(test)]
mod tests {
    use super::super::facts::LINKS;
    use super::*;

    #[test]
    fn a_fact_can_be_stated_and_asked_and_a_kept_hop_cannot() {
        let facts = Facts::new(0);
        let mut draw = Draw::new(&[1]);
        let mut kept = 0;
        for link in 0..LINKS {
            for fact in facts.of_link(link) {
                let statement = facts.statement(fact, true, &mut draw);
                let asked = facts.question(fact, &mut draw);
                assert_eq!(statement.is_some(), asked.is_some());
                assert!(statement.is_some() || is_hop(link));
                kept += usize::from(statement.is_none());
                for text in statement.iter().chain(&asked) {
                    assert!(!text.contains('{'), "{text}");
                }
            }
        }
        assert!((150..180).contains(&kept), "{kept}");
    }
}
