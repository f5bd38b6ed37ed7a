//! Encyclopedia register: articles with headings, in rows like the hub's WikiText-2.

use super::facts::{Entity, Fact, Facts};
use super::relation::RelationKind;
use super::story;
use super::text::{capital, spaced, words};
use super::voice::Voice;

/// Returns articles with at least `size` words in total. A row is a line with its newline; an empty line is an empty
/// row.
pub(super) fn rows(voice: &mut Voice<'_>, size: usize) -> Vec<String> {
    let mut rows = Vec::new();
    let mut count = 0;
    while count < size {
        for (text, blank) in article(voice) {
            count += words(&text);
            rows.extend(laid_out(&text, blank));
        }
    }
    rows
}

/// Returns the rows of a line.
pub(super) fn laid_out(text: &str, blank: bool) -> Vec<String> {
    let row = format!(" {text} \n");
    if blank { vec![String::new(), row, String::new()] } else { vec![row] }
}

/// Returns the lines of an article, each with whether it is surrounded by empty lines.
pub(super) fn article(voice: &mut Voice<'_>) -> Vec<(String, bool)> {
    let subject = voice.entity();
    let title = capital(super::text::bare(voice.name(subject)));
    let mut lines = vec![(format!("= {title} ="), true)];
    let known = voice.known(subject);
    let introduction = voice.own(|voice| {
        let intro = kind_sentence(voice, subject);
        let sentences = voice.sentences(subject, &known).join(" ");
        format!("{intro} {sentences}")
    });
    lines.push((spaced(&introduction), false));
    let related: Vec<Entity> = known.iter().filter_map(|fact| voice.facts.object_of(*fact)).collect();
    for other in related {
        lines.push((format!("= = {} = =", capital(super::text::bare(voice.name(other)))), true));
        lines.push((section(voice, subject, other, &known), false));
    }
    let (heading, text): (&str, fn(&mut Voice<'_>) -> String) = match voice.draw.below(5) {
        0 => ("Comparison", story::common),
        1 => ("History", story::incidents),
        2 => ("Travel", story::journey),
        _ => return lines,
    };
    lines.push((format!("= = {heading} = ="), true));
    lines.push((spaced(&voice.paragraph(text)), false));
    lines
}

/// Describes the relation of the article's subject to another entity, and facts about that entity.
fn section(voice: &mut Voice<'_>, subject: Entity, other: Entity, known: &[Fact]) -> String {
    let link = known.iter().find(|fact| voice.facts.object_of(**fact) == Some(other)).copied();
    let text = voice.paragraph(|voice| {
        let mut sentences = Vec::new();
        if let Some(link) = link {
            sentences.push(super::text::sentence(&voice.clause(link, false)));
        }
        let mut facts = voice.known(other);
        facts.truncate(3 + voice.draw.below(3));
        sentences.extend(voice.sentences(other, &facts));
        // The fact that follows from both.
        if let Some(hop) = known
            .iter()
            .find(|fact: &&Fact| link.is_some_and(|link| Facts::start_of(fact.link) == Some(link.link)))
            .filter(|_| voice.draw.chance(60))
        {
            let then = voice.pick(&["So", "Therefore", "Thus", "This is why"]);
            sentences.push(format!("{then} {}.", voice.clause(*hop, false)));
        }
        if sentences.len() < 3 {
            sentences.push(kind_sentence(voice, subject));
        }
        sentences.join(" ")
    });
    spaced(&text)
}

/// Returns an opening sentence that states the subject's kind.
fn kind_sentence(voice: &mut Voice<'_>, subject: Entity) -> String {
    let name = capital(voice.name(subject));
    let (what, rest): (&[&'static str], &[&'static str]) = match subject.kind {
        RelationKind::Person => {
            (&["a person", "someone", "one of the people"], &["of whom much is known", "with many friends"])
        }
        RelationKind::Animal => {
            (&["an animal", "a wild animal", "a creature"], &["that many have seen", "of which books tell"])
        }
        RelationKind::Object => {
            (&["a thing", "an object", "a useful thing"], &["of daily life", "that most people own"])
        }
        RelationKind::Place => (&["a town", "an old town", "a small town"], &["of some size", "that travellers like"]),
        RelationKind::Job => (&["a worker", "someone with a trade"], &["found in most towns", "whom people need"]),
        RelationKind::Region => (&["a region", "a wide region"], &["of the land", "with several towns"]),
        RelationKind::Material => (&["a material", "a common material"], &["used in many things", "known to all"]),
        RelationKind::Class => (&["an animal", "a kind of animal"], &["of many forms", "known to all"]),
    };
    let what = voice.pick(what);
    let rest = voice.pick(rest);
    if voice.draw.chance(50) { format!("{name} is {what} {rest}.") } else { format!("{name} is {what}.") }
}
