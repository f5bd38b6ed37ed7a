//! Small things that happen: who did what, when. They hold only in the passage that tells them.

use super::draw::Draw;
use super::facts::{Entity, Facts};
use super::lexicon::{DAYS, FOODS, OBJECTS};
use super::relation::RelationKind;

/// What an act is done to.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Thing {
    Object,
    Food,
    Place,
    Animal,
}

#[derive(Debug)]
pub(super) struct Act {
    pub(super) thing: Thing,
    pub(super) base: &'static str,
    pub(super) past: &'static str,
    /// The past participle.
    pub(super) done: &'static str,
}

const fn act(thing: Thing, base: &'static str, past: &'static str, done: &'static str) -> Act {
    Act { thing, base, past, done }
}

pub(super) static ACTS: [Act; 18] = [
    act(Thing::Object, "buy", "bought", "bought"),
    act(Thing::Object, "find", "found", "found"),
    act(Thing::Object, "lose", "lost", "lost"),
    act(Thing::Object, "mend", "mended", "mended"),
    act(Thing::Object, "paint", "painted", "painted"),
    act(Thing::Object, "hide", "hid", "hidden"),
    act(Thing::Object, "borrow", "borrowed", "borrowed"),
    act(Thing::Object, "clean", "cleaned", "cleaned"),
    act(Thing::Object, "want", "wanted", "wanted"),
    act(Thing::Food, "cook", "cooked", "cooked"),
    act(Thing::Food, "order", "ordered", "ordered"),
    act(Thing::Food, "serve", "served", "served"),
    act(Thing::Place, "visit", "visited", "visited"),
    act(Thing::Place, "leave", "left", "left"),
    act(Thing::Place, "reach", "reached", "reached"),
    act(Thing::Animal, "feed", "fed", "fed"),
    act(Thing::Animal, "chase", "chased", "chased"),
    act(Thing::Animal, "catch", "caught", "caught"),
];

/// Someone did something.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Event {
    pub(super) who: String,
    pub(super) act: usize,
    pub(super) thing: String,
    pub(super) day: &'static str,
}

impl Event {
    pub(super) fn plain(&self) -> String {
        format!("{} {} {}", self.who, ACTS[self.act].past, self.thing)
    }

    /// The event as a clause, its day perhaps said, before or after.
    pub(super) fn told(&self, draw: &mut Draw) -> String {
        let plain = self.plain();
        match draw.below(4) {
            0 => plain,
            1 => format!("on {} {plain}", self.day),
            _ => format!("{plain} on {}", self.day),
        }
    }

    /// The event with its day, which a question needs.
    pub(super) fn dated(&self, draw: &mut Draw) -> String {
        let plain = self.plain();
        if draw.chance(50) { format!("on {} {plain}", self.day) } else { format!("{plain} on {}", self.day) }
    }

    pub(super) fn passive(&self) -> String {
        format!("{} was {} by {}", self.thing, ACTS[self.act].done, self.who)
    }
}

/// `count` events that differ in everything but the kind of thing: who, what and when. The acts are the same or not.
pub(super) fn events(facts: &Facts, count: usize, same_act: bool, draw: &mut Draw) -> Vec<Event> {
    let first = draw.below(ACTS.len());
    let alike: Vec<usize> = (0..ACTS.len()).filter(|act| ACTS[*act].thing == ACTS[first].thing).collect();
    let (people, days) = (draw.several(count, facts.count(RelationKind::Person)), draw.several(count, DAYS.len()));
    let things = things(facts, ACTS[first].thing, count, draw);
    let mut told = Vec::with_capacity(count);
    for ((person, thing), day) in people.into_iter().zip(things).zip(days) {
        let act = if same_act { first } else { draw.pick(&alike) };
        told.push(Event { who: facts.person(person).to_owned(), act, thing, day: DAYS[day] });
    }
    told
}

/// `count` different things of a kind.
pub(super) fn things(facts: &Facts, thing: Thing, count: usize, draw: &mut Draw) -> Vec<String> {
    let (limit, kind) = match thing {
        Thing::Object => (OBJECTS.len(), RelationKind::Object),
        Thing::Place => (facts.count(RelationKind::Place), RelationKind::Place),
        Thing::Animal => (facts.count(RelationKind::Animal), RelationKind::Animal),
        Thing::Food => {
            return draw.several(count, FOODS.len()).into_iter().map(|at| format!("the {}", FOODS[at])).collect();
        }
    };
    draw.several(count, limit).into_iter().map(|index| facts.name(Entity { kind, index }).to_owned()).collect()
}

/// Sentences that happen to nobody: they fill a passage without an answer in them.
pub(super) static FILLERS: [&str; 16] = [
    "It was a long week",
    "The weather was fine",
    "The weather was bad",
    "Nobody was surprised",
    "The news spread quickly",
    "All of them were tired in the evening",
    "A few neighbours watched from the window",
    "It was the talk of the town",
    "Later they met and told each other about it",
    "The rest of the week was quiet",
    "Everyone had a different plan",
    "None of them was in a hurry",
    "This is what happened last week",
    "The old people of the town still speak of it",
    "There was much to do in those days",
    "Not much else happened",
];
