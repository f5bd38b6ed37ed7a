//! Events (who did what, when), each valid only in its own passage.

use super::draw::Draw;
use super::facts::{Entity, Facts};
use super::relation::{FOOD, RelationKind};
use super::words::{ThingKind, WORDS};

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct WorldEvent {
    pub(super) who: String,
    pub(super) act: usize,
    pub(super) thing: String,
    pub(super) day: &'static str,
}

impl WorldEvent {
    pub(super) fn plain(&self) -> String {
        format!("{} {} {}", self.who, WORDS.acts[self.act].past, self.thing)
    }

    /// Returns the event as a clause, possibly with its day at either end.
    pub(super) fn told(&self, draw: &mut Draw) -> String {
        let plain = self.plain();
        match draw.below(4) {
            0 => plain,
            1 => format!("on {} {plain}", self.day),
            _ => format!("{plain} on {}", self.day),
        }
    }

    /// Returns the event as a clause with its day, which a question needs.
    pub(super) fn dated(&self, draw: &mut Draw) -> String {
        let plain = self.plain();
        if draw.chance(50) { format!("on {} {plain}", self.day) } else { format!("{plain} on {}", self.day) }
    }

    pub(super) fn passive(&self) -> String {
        format!("{} was {} by {}", self.thing, WORDS.acts[self.act].done, self.who)
    }
}

/// Returns `count` events that differ in person, object and day, but not in the kind of object. With `same_act`, all
/// have the same act.
pub(super) fn events(facts: &Facts, count: usize, same_act: bool, draw: &mut Draw) -> Vec<WorldEvent> {
    let first = draw.below(WORDS.acts.len());
    let alike: Vec<usize> =
        (0..WORDS.acts.len()).filter(|act| WORDS.acts[*act].thing == WORDS.acts[first].thing).collect();
    let (people, days) =
        (draw.several(count, facts.count(RelationKind::Person)), draw.several(count, WORDS.days.len()));
    let things = things(facts, WORDS.acts[first].thing, count, draw);
    let mut events = Vec::with_capacity(count);
    for ((person, thing), day) in people.into_iter().zip(things).zip(days) {
        let act = if same_act { first } else { draw.pick(&alike) };
        events.push(WorldEvent { who: facts.person(person).to_owned(), act, thing, day: WORDS.days[day] });
    }
    events
}

pub(super) fn things(facts: &Facts, thing: ThingKind, count: usize, draw: &mut Draw) -> Vec<String> {
    let (limit, kind) = match thing {
        ThingKind::Object => (WORDS.objects.len(), RelationKind::Object),
        ThingKind::Place => (facts.count(RelationKind::Place), RelationKind::Place),
        ThingKind::Animal => (facts.count(RelationKind::Animal), RelationKind::Animal),
        ThingKind::Food => {
            let foods = WORDS.relations[FOOD].words();
            return draw.several(count, foods.len()).into_iter().map(|at| format!("the {}", foods[at])).collect();
        }
    };
    draw.several(count, limit).into_iter().map(|index| facts.name(Entity { kind, index }).to_owned()).collect()
}
