//! Two that meet, and something that is true of one of them only: what they are tells which.

use super::draw::Draw;
use super::facts::Facts;
use super::lore::known;
use super::relation::RelationKind;
use super::text::{bare, capital, fill};
use super::words::WORDS;

/// Two that are named, and for each how the sentence ends if it is the one that is meant.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Meeting {
    pub(super) opening: String,
    pub(super) names: [String; 2],
    pub(super) endings: [String; 2],
}

/// Two people, or two animals or objects, by what is known of them.
pub(super) fn meeting(facts: &Facts, draw: &mut Draw) -> Meeting {
    loop {
        let (people, template) = draw.pick(&WORDS.meetings);
        let fits = |kind| {
            if people {
                kind == RelationKind::Person
            } else {
                matches!(kind, RelationKind::Animal | RelationKind::Object)
            }
        };
        let known = known(facts, 2, fits, draw);
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
    use super::*;

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
