//! Two that meet, and something that is true of one of them only: what they are tells which.

use super::draw::Draw;
use super::facts::Facts;
use super::lore::known;
use super::relation::RelationKind;
use super::text::{bare, capital, fill};

/// How two are brought together; what follows is true of one of them only.
static MEETINGS: [(bool, &str); 8] = [
    (true, "{x} sat down beside {y}, and someone said that "),
    (true, "{x} wrote a letter to {y}, and in it was that "),
    (true, "{x} and {y} came to the market, and people know that "),
    (true, "{x} talked with {y} for an hour, and it turned out that "),
    (false, "nobody mixes up the {x} and the {y}, since the "),
    (false, "a book shows the {x} beside the {y} and says that the "),
    (false, "the teacher spoke of the {x} and of the {y}, and told that the "),
    (false, "here is the {x} and there is the {y}, and we know that the "),
];

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
        let (people, template) = draw.pick(&MEETINGS);
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
