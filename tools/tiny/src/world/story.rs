//! Paragraphs about events, for any register.

use super::episode::events;
use super::facts::{Entity, Fact, is_hop};
use super::relation::{FOOD, HOME, RelationKind};
use super::text::{bare, capital, list, sentence};
use super::voice::Voice;
use super::words::{STEPS, WORDS};

/// Lists the subjects that share a value: `Animals that eat moss: …`.
pub(super) fn common(voice: &mut Voice<'_>) -> String {
    loop {
        let entity = voice.entity();
        let known = voice.known(entity);
        let Some(fact) = known.iter().find(|fact| !is_hop(fact.link)).copied() else { continue };
        let facts = voice.facts;
        let value = facts.value(fact);
        let same: Vec<Fact> = facts.of_link(fact.link).filter(|other| facts.value(*other) == value).collect();
        if same.len() < 2 || same.len() > 8 {
            continue;
        }
        let names: Vec<&str> = same.iter().map(|other| facts.name(facts.subject(*other))).collect();
        let number = WORDS.numbers[names.len() - 1];
        let Some(asked) = facts.question(fact, &mut voice.draw) else { continue };
        let opener = voice.pick(&WORDS.puzzles);
        let mut text = format!("{opener} {asked} The answer is {value}. ");
        text.push_str(&match voice.draw.below(3) {
            0 => format!("The same is true of {number} in all: {}.", list(&names)),
            1 => format!("The same answer holds for {}, which makes {number}.", list(&names)),
            _ => format!("{} have this in common, {number} in all.", capital(&list(&names))),
        });
        for other in same.iter().take(1 + voice.draw.below(3)) {
            text.push(' ');
            text.push_str(&sentence(&voice.clause(*other, false)));
        }
        return text;
    }
}

/// Describes a trip to a town and its sights.
pub(super) fn journey(voice: &mut Voice<'_>) -> String {
    let person = voice.person();
    let town = voice.any(RelationKind::Place);
    let (they, their, _) = voice.facts.pronouns(person);
    let home = voice.facts.value(Fact { link: HOME, subject: person.index });
    let day = voice.pick(&WORDS.days);
    let name = voice.name(person);
    let mut sentences = vec![match voice.draw.below(3) {
        0 => format!("On {day}, {name} left {home} and took the train to {}.", voice.name(town)),
        1 => format!("{name} from {home} went to {} last {day}.", voice.name(town)),
        _ => format!("Last {day} {name} packed a bag and set off from {home} to {}.", voice.name(town)),
    }];
    let mut known = voice.known(town);
    known.truncate(2 + voice.draw.below(4));
    sentences.extend(voice.sentences(town, &known));
    let food = voice.pick(WORDS.relations[FOOD].words());
    sentences.push(match voice.draw.below(4) {
        0 => format!("In the evening {they} ate {food} and wrote a card to {their} friends."),
        1 => format!("There {they} bought {food} for {their} neighbours."),
        2 => format!("{} stayed for {} days.", capital(they), WORDS.numbers[1 + voice.draw.below(11)]),
        _ => format!("Then {they} went back home to {home}."),
    });
    sentences.join(" ")
}

/// Describes an object that changes hands; the reader must track its owner.
pub(super) fn handovers(voice: &mut Voice<'_>) -> String {
    let facts = voice.facts;
    let people: Vec<Entity> = voice
        .draw
        .several(4, facts.count(RelationKind::Person))
        .into_iter()
        .map(|index| Entity { kind: RelationKind::Person, index })
        .collect();
    let object = bare(voice.pick(&WORDS.objects));
    let mut owner = 0;
    let start = voice.pick(&["had", "owned", "had found", "had bought"]);
    let mut sentences = vec![format!("{} {start} a {object}.", facts.name(people[0]))];
    for _ in 0..2 + voice.draw.below(3) {
        let next = (owner + 1 + voice.draw.below(3)) % 4;
        let from = facts.name(people[owner]);
        let to = facts.name(people[next]);
        let day = voice.pick(&WORDS.days);
        sentences.push(match voice.draw.below(4) {
            0 => format!("On {day} {from} gave the {object} to {to}."),
            1 => format!("Then {from} sold it to {to}."),
            2 => format!("{to} asked {from} for the {object} and got it."),
            _ => format!("{from} did not need it any more, so {to} took the {object}."),
        });
        owner = next;
    }
    let last = facts.name(people[owner]);
    sentences.push(match voice.draw.below(3) {
        0 => format!("So in the end {last} had the {object}."),
        1 => format!("Who has the {object} now? It is {last}."),
        _ => format!("Today the {object} belongs to {last}."),
    });
    sentences.join(" ")
}

/// Describes someone who has, gets and gives away items, with the correct sum.
pub(super) fn counts(voice: &mut Voice<'_>) -> String {
    let person = voice.person();
    let other = voice.person();
    let (they, their, _) = voice.facts.pronouns(person);
    let fruit = voice.pick(&["plums", "pears", "beans", "carrots", "apples", "nuts", "stamps", "books"]);
    let mut count = 3 + voice.draw.below(4);
    let mut sentences =
        vec![format!("{} had {} {fruit} in {their} bag.", voice.name(person), WORDS.numbers[count - 1])];
    for step in 0..2 + voice.draw.below(2) {
        let moved = 1 + voice.draw.below(2);
        let gives = count > moved + 1 && (count + moved > 12 || voice.draw.chance(50));
        let then = if step == 0 { "First" } else { "Then" };
        let friend = voice.name(other);
        let number = WORDS.numbers[moved - 1];
        if gives {
            count -= moved;
            sentences.push(format!("{then} {they} gave {number} to {friend}."));
        } else {
            count += moved;
            sentences.push(format!("{then} {they} got {number} from {friend}."));
        }
        let left = WORDS.numbers[count - 1];
        sentences.push(match voice.draw.below(3) {
            0 => format!("That made {left}."),
            1 => format!("Now {they} had {left} {fruit}."),
            _ => format!("There were {left} in {their} bag."),
        });
    }
    sentences.join(" ")
}

pub(super) fn procedure(voice: &mut Voice<'_>) -> String {
    let (activity, person) = voice.activity();
    let (they, ..) = voice.facts.pronouns(person);
    let name = voice.name(person);
    let task = activity.label.to_lowercase();
    let opener = match voice.draw.below(4) {
        0 => format!("{name} knows all about {task}."),
        1 => format!("How does {name} go about {task}?"),
        2 => format!("On {} {name} is busy with {task}.", voice.pick(&WORDS.days)),
        _ => format!("{} is not hard, says {name}.", activity.label),
    };
    let mut sentences = vec![opener];
    for (at, step) in activity.steps.iter().enumerate() {
        let link = match at {
            0 => voice.pick(&["First", "To begin", "At the start"]),
            _ if at + 1 == STEPS => voice.pick(&["Finally", "In the end", "Last of all"]),
            _ => voice.pick(&["Then", "Next", "After that", "Now"]),
        };
        sentences.push(format!("{link} {they} {step}."));
    }
    sentences.join(" ")
}

/// Describes a day with a cause, its effect, and other events.
pub(super) fn incidents(voice: &mut Voice<'_>) -> String {
    let mut sentences = vec![format!("It was {}.", voice.pick(&WORDS.days))];
    for _ in 0..2 + voice.draw.below(2) {
        sentences.push(incident(voice));
    }
    let count = 1 + voice.draw.below(2);
    for event in events(voice.facts, count, false, &mut voice.draw) {
        sentences.push(sentence(&event.told(&mut voice.draw)));
    }
    sentences.push(sentence(voice.draw.pick(&WORDS.fillers)));
    sentences.join(" ")
}

/// Describes one cause and its effect, in one of many wordings.
pub(super) fn incident(voice: &mut Voice<'_>) -> String {
    if voice.draw.chance(15) {
        return voice.reference();
    }
    let (reason, pair, person) = voice.free_reason();
    let (cause, effect) = WORDS.causes[pair];
    if voice.draw.chance(30) {
        return format!("{} {} {}.", reason.premise, reason.connector, reason.choice);
    }
    let first = voice.personal(cause, person, false);
    let second = voice.personal(effect, person, cause.contains('{'));
    match voice.draw.below(5) {
        0 => format!("{}, so {second}.", capital(&first)),
        1 => format!("{}. As a result {second}.", capital(&first)),
        2 => format!("Since {first}, {second}."),
        3 => format!("{} and that is why {second}.", capital(&first)),
        _ => {
            let day = voice.pick(&WORDS.days);
            format!("On {day} {first}. Soon {second}.")
        }
    }
}
