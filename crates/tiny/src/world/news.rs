//! The newswire register: lower case, a sentence a row, `N` for every number.

use super::facts::{Entity, Fact};
use super::lexicon::{CROPS, DAYS, PRODUCTS};
use super::reading::owned;
use super::relation::{CLIMATE, CROP, HOME, JOB, LANDMARK, PRODUCT, REGION, RelationKind};
use super::story;
use super::text::{bare, fill, wire, words};
use super::voice::Voice;

/// Sentences until there are so many words.
pub(super) fn rows(voice: &mut Voice<'_>, size: usize) -> Vec<String> {
    let (mut rows, mut count) = (Vec::new(), 0);
    while count < size {
        let text = owned(voice.share, || wire(&line(voice)));
        count += words(&text);
        rows.push(text);
    }
    rows
}

/// What markets do.
const MARKETS: [&str; 20] = [
    "the price of {product} {move} N % to $ N a ton",
    "shares of the {product} trade {move} N % in heavy trading on {day}",
    "{place} sold N tons of {product} in the last quarter",
    "the {product} makers of {place} expect a loss of $ N million this year",
    "profit from {product} {move} to $ N million from $ N million a year ago",
    "{place} plans to build a new hall for its {product} at a cost of $ N million",
    "farmers in {region} brought in N tons of {crop} and the price {move} N %",
    "sales of {crop} from {region} {move} N % in the week that ended on {day}",
    "the council of {place} voted N to N to close the {product} market",
    "about N of N workers in {place} left their jobs in the {product} trade",
    "a bank in {place} cut its rate to N % from N %",
    "the {product} index closed at N after it {move} N points",
    "buyers paid $ N for {product} from {place} and $ N for {crop}",
    "{region} exports N % of its {crop} and uses the rest at home",
    "the town of {place} sold bonds worth $ N million due in N years",
    "analysts said that {product} {move} because {crop} {move} first",
    "more than N people came to the market in {place} on {day}",
    "a strike in {place} stopped all {product} for N days",
    "after a {climate} month in {region} {crop} prices {move} by N %",
    "traders of {product} in {place} had their best year since N",
];

const MOVES: [&str; 8] = ["rose", "fell", "climbed", "dropped", "jumped", "slipped", "gained", "lost"];

/// Who speaks, before or after what is said.
const SPEAKERS: [&str; 8] = [
    "{name} a {job} from {home} said {clause}",
    "{name} the best known {job} in {home} said that {clause}",
    "according to {name} of {home} {clause}",
    "{clause} said {name} a {job}",
    "{clause} {name} told reporters on {day}",
    "{name}'s report says that {clause}",
    "a spokesman for {home} said {clause}",
    "in {home} the {job} {name} thinks that {clause}",
];

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

/// One or two sentences about a subject, as one.
fn pair(voice: &mut Voice<'_>, subject: Entity) -> String {
    let mut known = voice.known(subject);
    known.truncate(2);
    voice.sentences(subject, &known).join(" and ")
}

fn value<'w>(voice: &Voice<'w>, link: usize, subject: usize) -> &'w str {
    voice.facts.value(Fact { link, subject })
}

fn market(voice: &mut Voice<'_>) -> String {
    let (place, region) = (voice.any(RelationKind::Place), voice.any(RelationKind::Region));
    // Half of the time a town trades what it makes, and a region what it grows.
    let own = voice.draw.chance(50);
    let product = if own { value(voice, PRODUCT, place.index) } else { voice.pick(&PRODUCTS) };
    let crop = if own { value(voice, CROP, region.index) } else { voice.pick(&CROPS) };
    let climate = value(voice, CLIMATE, region.index);
    let slots = [
        ("product", product),
        ("crop", crop),
        ("climate", climate),
        ("place", voice.name(place)),
        ("region", voice.name(region)),
        ("move", voice.pick(&MOVES)),
        ("day", voice.pick(&DAYS)),
    ];
    fill(voice.draw.pick(&MARKETS), &slots)
}

fn speech(voice: &mut Voice<'_>, clause: &str) -> String {
    let person = voice.person();
    let (trade, home) = (value(voice, JOB, person.index), value(voice, HOME, person.index));
    let clause = clause.trim_end_matches('.');
    let slots = [
        ("name", voice.name(person)),
        ("job", bare(trade)),
        ("home", home),
        ("day", voice.pick(&DAYS)),
        ("clause", clause),
    ];
    fill(voice.draw.pick(&SPEAKERS), &slots)
}

/// A town with what is known of it packed into one sentence.
fn town(voice: &mut Voice<'_>) -> String {
    let place = voice.any(RelationKind::Place);
    let (region, product) = (value(voice, REGION, place.index), value(voice, PRODUCT, place.index));
    let landmark = value(voice, LANDMARK, place.index);
    let name = voice.name(place);
    let (move_, day) = (voice.pick(&MOVES), voice.pick(&DAYS));
    match voice.draw.below(4) {
        0 => format!("{name} a town in {region} known for {product} said sales {move_} N % to $ N million"),
        1 => format!("{name} in {region} closed {landmark} to visitors on {day} after N years"),
        2 => format!("the {product} town of {name} will pay $ N for {landmark} in its middle"),
        _ => format!("N visitors came to {name} in {region} to see {landmark} and to buy {product}"),
    }
}
