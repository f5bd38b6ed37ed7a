//! Newswire register: lower case, one sentence per row, `N` for every number.

use super::facts::{Entity, Fact};
use super::reading::owned;
use super::relation::{CLIMATE, CROP, HOME, JOB, LANDMARK, PRODUCT, REGION, RelationKind};
use super::story;
use super::text::{bare, fill, wire, words};
use super::voice::Voice;
use super::words::WORDS;

/// Returns sentences with at least `size` words in total.
pub(super) fn rows(voice: &mut Voice<'_>, size: usize) -> Vec<String> {
    let mut rows = Vec::new();
    let mut count = 0;
    while count < size {
        let text = owned(voice.share, || wire(&line(voice)));
        count += words(&text);
        rows.push(text);
    }
    rows
}

fn line(voice: &mut Voice<'_>) -> String {
    match voice.draw.below(10) {
        0..=2 => market(voice),
        3 => {
            let clause = market(voice);
            speech(voice, &clause)
        }
        4..=5 => {
            let (fact, subject) = some_fact(voice);
            let clause = match voice.draw.chance(50) {
                true => voice.clause(fact, false),
                false => pair(voice, subject),
            };
            speech(voice, &clause)
        }
        6 => story::incident(voice),
        7 => {
            let events = super::episode::events(voice.facts, 2, false, &mut voice.draw);
            let link = voice.pick(&["while", "and", "but"]);
            format!("{} {link} {}", events[0].told(&mut voice.draw), events[1].told(&mut voice.draw))
        }
        8 => town(voice),
        _ => {
            let subject = voice.entity();
            let clause = pair(voice, subject);
            let opener = voice.pick(&["meanwhile", "in other news", "separately", "as expected", "for the record"]);
            format!("{opener} {clause}")
        }
    }
}

fn some_fact(voice: &mut Voice<'_>) -> (Fact, Entity) {
    loop {
        let subject = voice.entity();
        if let Some(fact) = voice.known(subject).first() {
            return (*fact, subject);
        }
    }
}

/// Combines one or two sentences about a subject into one.
fn pair(voice: &mut Voice<'_>, subject: Entity) -> String {
    let mut known = voice.known(subject);
    known.truncate(2);
    voice.sentences(subject, &known).join(" and ")
}

fn value<'w>(voice: &Voice<'w>, link: usize, subject: usize) -> &'w str {
    voice.facts.value(Fact { link, subject })
}

fn market(voice: &mut Voice<'_>) -> String {
    let place = voice.any(RelationKind::Place);
    let region = voice.any(RelationKind::Region);
    // Half of the time a town trades its own products, and a region its own crops.
    let own = voice.draw.chance(50);
    let product = if own { value(voice, PRODUCT, place.index) } else { voice.pick(WORDS.relations[PRODUCT].words()) };
    let crop = if own { value(voice, CROP, region.index) } else { voice.pick(WORDS.relations[CROP].words()) };
    let climate = value(voice, CLIMATE, region.index);
    let slots = [
        ("product", product),
        ("crop", crop),
        ("climate", climate),
        ("place", voice.name(place)),
        ("region", voice.name(region)),
        ("move", voice.pick(&WORDS.moves)),
        ("day", voice.pick(&WORDS.days)),
    ];
    fill(voice.draw.pick(&WORDS.markets), &slots)
}

fn speech(voice: &mut Voice<'_>, clause: &str) -> String {
    let person = voice.person();
    let trade = value(voice, JOB, person.index);
    let home = value(voice, HOME, person.index);
    let clause = clause.trim_end_matches('.');
    let slots = [
        ("name", voice.name(person)),
        ("job", bare(trade)),
        ("home", home),
        ("day", voice.pick(&WORDS.days)),
        ("clause", clause),
    ];
    fill(voice.draw.pick(&WORDS.speakers), &slots)
}

fn town(voice: &mut Voice<'_>) -> String {
    let place = voice.any(RelationKind::Place);
    let region = value(voice, REGION, place.index);
    let product = value(voice, PRODUCT, place.index);
    let landmark = value(voice, LANDMARK, place.index);
    let name = voice.name(place);
    let move_ = voice.pick(&WORDS.moves);
    let day = voice.pick(&WORDS.days);
    match voice.draw.below(4) {
        0 => format!("{name} a town in {region} known for {product} said sales {move_} N % to $ N million"),
        1 => format!("{name} in {region} closed {landmark} to visitors on {day} after N years"),
        2 => format!("the {product} town of {name} will pay $ N for {landmark} in its middle"),
        _ => format!("N visitors came to {name} in {region} to see {landmark} and to buy {product}"),
    }
}
