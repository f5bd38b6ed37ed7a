//! Web register: pages of several topics, in the styles of blogs, forums, shops, guides and quizzes.

use super::draw::{Deck, Draw};
use super::facts::Facts;
use super::reading::{article, claim_quiz, polar_quiz};
use super::relation::{HOME, MATERIAL, ROOM, RelationKind, USE};
use super::share::{Share, share};
use super::text::{capital, sentence, words};
use super::voice::Voice;
use super::words::WORDS;
use super::{lore, story, wiki};

/// Frequency of a kind of section, and its generator.
type Genre = (usize, fn(&mut Voice<'_>) -> Vec<String>);

/// Prose sections with their frequencies.
const GENRES: [Genre; 12] = [
    (46, portrait),
    (9, forum),
    (8, product),
    (9, questions),
    // Paragraphs about subjects with a common property.
    (6, |voice| vec![voice.paragraph(story::common), voice.paragraph(story::common)]),
    (8, |voice| vec![voice.paragraph(story::journey)]),
    (10, |voice| vec![voice.paragraph(story::handovers), voice.paragraph(story::counts)]),
    (8, |voice| vec![voice.paragraph(story::procedure)]),
    (8, |voice| vec![voice.paragraph(story::incidents)]),
    (12, reprint),
    (16, mirror),
    (12, quotes),
];

/// Returns pages with at least `size` words in total.
pub(super) fn rows(voice: &mut Voice<'_>, size: usize) -> Vec<String> {
    let mut genres = Deck::weighted(&GENRES.map(|(weight, _)| weight));
    let mut forms = Deck::weighted(&FORMS.map(|(weight, _)| weight));
    let mut rows = Vec::new();
    let mut count = 0;
    while count < size {
        let enough = 130 + voice.draw.below(420);
        let mut sections: Vec<String> = Vec::new();
        let mut length = 0;
        // A page is a quiz, prose, or prose followed by part of a quiz.
        let quizzes = voice.draw.below(100);
        while length < enough {
            let quiz = match quizzes {
                0..=29 => true,
                30..=59 => length * 2 > enough,
                _ => false,
            };
            let (lines, gap) = match quiz {
                true => (FORMS[forms.draw(&mut voice.draw)].1(voice), "\n\n"),
                false => (GENRES[genres.draw(&mut voice.draw)].1(voice), "\n"),
            };
            let section = lines.join(gap);
            length += words(&section);
            sections.push(section);
        }
        count += length;
        rows.push(sections.join("\n\n"));
    }
    rows
}

/// Generates a page about an entity, and possibly about a related one.
fn portrait(voice: &mut Voice<'_>) -> Vec<String> {
    let entity = voice.entity();
    let title = match voice.draw.below(6) {
        0 => Some(format!("All about {}", voice.name(entity))),
        1 => Some(format!("{}: what you should know", capital(voice.name(entity)))),
        2 => Some(format!("A short note on {}", voice.name(entity))),
        _ => None,
    };
    let known = voice.known(entity);
    let text = voice.paragraph(|voice| {
        let mut text = voice.sentences(entity, &known).join(" ");
        // Continue with the home town, the trade or the material.
        let next = known.iter().filter_map(|fact| voice.facts.object_of(*fact)).next();
        if let Some(next) = next {
            let mut known = voice.known(next);
            known.truncate(2 + voice.draw.below(3));
            text.push(' ');
            text.push_str(&voice.sentences(next, &known).join(" "));
        }
        text
    });
    title.into_iter().chain([text]).collect()
}

/// Generates a forum thread of questions and answers.
fn forum(voice: &mut Voice<'_>) -> Vec<String> {
    let (asker, helper) = voice.couple(true);
    let mut lines = Vec::new();
    for _ in 0..2 + voice.draw.below(2) {
        let entity = voice.entity();
        let known = voice.known(entity);
        let Some(asked) = known.first() else { continue };
        let Some(question) = voice.facts.question(*asked, &mut voice.draw) else { continue };
        let opener = voice.pick(&WORDS.greetings);
        lines.push(format!("{asker} wrote: {opener} {question}"));
        let answer = voice.paragraph(|voice| {
            let mut sentences = vec![voice.pick(&WORDS.helpers).to_owned(), sentence(&voice.clause(*asked, false))];
            let rest = 2 + voice.draw.below(2);
            sentences.extend(voice.sentences(entity, &known[1..known.len().min(1 + rest)]));
            format!("{helper} wrote: {}", sentences.join(" "))
        });
        lines.push(answer);
        lines.push(format!("{asker} wrote: {}", voice.pick(&WORDS.thanks)));
    }
    lines
}

/// Generates a shop page with customer reviews.
fn product(voice: &mut Voice<'_>) -> Vec<String> {
    let entity = voice.any(RelationKind::Object);
    let title = format!("For sale: {}", voice.name(entity));
    let text = voice.paragraph(|voice| {
        let mut known = voice.known(entity);
        known.sort_by_key(|fact| fact.link != MATERIAL && fact.link != USE && fact.link != ROOM);
        let mut sentences = voice.sentences(entity, &known);
        let price = voice.draw.below(11);
        let first = voice.draw.below(11);
        let second = voice.person();
        sentences.push(format!("It costs {} crowns.", WORDS.numbers[1 + price]));
        let opinion = voice.pick(&WORDS.opinions);
        sentences.push(format!("{} of twelve customers like it.", capital(WORDS.numbers[1 + first])));
        sentences.push(format!(
            "{} from {} says: {opinion}.",
            voice.name(second),
            voice.facts.value(super::facts::Fact { link: HOME, subject: second.index })
        ));
        sentences.join(" ")
    });
    vec![title, text]
}

/// Generates questions with answers in full sentences.
fn questions(voice: &mut Voice<'_>) -> Vec<String> {
    let mut lines = vec![voice.pick(&WORDS.headings).to_owned()];
    for _ in 0..4 + voice.draw.below(3) {
        lines.push(voice.paragraph(|voice| {
            let entity = voice.entity();
            let known = voice.known(entity);
            let Some(fact) = known.first() else { return String::new() };
            let question = voice.facts.question(*fact, &mut voice.draw).unwrap_or_default();
            let answer = voice.clause(*fact, false);
            let more =
                known.get(1).map(|fact| format!(" {}", sentence(&voice.clause(*fact, true)))).unwrap_or_default();
            format!("{question} {}{more}", sentence(&answer))
        }));
    }
    lines
}

/// Reprints part of a newswire. Like a real crawl, the web register must contain text of other registers, so that it
/// represents them if it is used for calibration.
fn reprint(voice: &mut Voice<'_>) -> Vec<String> {
    let size = 50 + voice.draw.below(40);
    super::news::rows(voice, size)
}

/// Mirrors an encyclopedia article in the format of its dump (see `wiki::rows`).
fn mirror(voice: &mut Voice<'_>) -> Vec<String> {
    let lines = wiki::article(voice).into_iter().flat_map(|(text, blank)| wiki::laid_out(&text, blank));
    vec![lines.collect::<Vec<_>>().join("\n\n")]
}

/// Generates a post, and others that quote it. Only the post determines the content of a quote, so this teaches a
/// backbone to look back.
fn quotes(voice: &mut Voice<'_>) -> Vec<String> {
    let count = 3 + voice.draw.below(3);
    let poster = voice.person();
    let (sentences, post) = loop {
        let events = super::episode::events(voice.facts, count, false, &mut voice.draw);
        let sentences: Vec<String> = events.iter().map(|event| sentence(&event.told(&mut voice.draw))).collect();
        let post = format!("{} wrote: {}", voice.name(poster), sentences.join(" "));
        if share(&post) == voice.share {
            break (sentences, post);
        }
    };
    let mut lines = vec![post];
    for _ in 0..2 + voice.draw.below(2) {
        let reader = voice.person();
        let from = voice.draw.below(count);
        let to = (from + 1 + voice.draw.below(2)).min(count);
        let comment = voice.pick(&WORDS.comments);
        lines.push(format!("{} wrote: > {}\n{comment}", voice.name(reader), sentences[from..to].join(" ")));
    }
    lines
}

type Quiz = fn(&Facts, Share, &mut Draw) -> String;

/// Task formats with their frequencies. Their content or wording differs from the tasks.
const FORMS: [Genre; 7] = [
    (16, facts),
    (7, reasons),
    (12, |voice| lines(voice, Voice::reference)),
    (6, |voice| lines(voice, Voice::free_scene)),
    (22, |voice| quizzes(voice, polar_quiz, lore::polar_quiz)),
    (22, |voice| quizzes(voice, claim_quiz, lore::claim_quiz)),
    (14, articles),
];

/// Returns quiz lines with at least 60 words in total.
fn lines<'w>(voice: &mut Voice<'w>, item: impl Fn(&mut Voice<'w>) -> String) -> Vec<String> {
    let mut lines = Vec::new();
    let mut count = 0;
    let enough = 60 + voice.draw.below(60);
    while count < enough {
        let text = item(voice);
        count += words(&text);
        lines.push(text);
    }
    lines
}

fn facts(voice: &mut Voice<'_>) -> Vec<String> {
    lines(voice, |voice| {
        let (question, answer) = voice.question();
        format!("Question: {question}\nAnswer: {answer}")
    })
}

fn reasons(voice: &mut Voice<'_>) -> Vec<String> {
    // The harness joins with two spaces, people with one.
    let gap = if voice.draw.chance(60) { "  " } else { " " };
    let mut all = lines(voice, |voice| {
        let (reason, ..) = voice.free_reason();
        format!("{} {}\t{}.", reason.premise, reason.connector, reason.choice)
    });
    for line in &mut all {
        *line = line.replace('\t', gap);
    }
    all
}

/// Generates questions about events, and more often about facts.
fn quizzes(voice: &mut Voice<'_>, of_events: Quiz, of_facts: Quiz) -> Vec<String> {
    lines(voice, |voice| {
        let quiz = if voice.draw.chance(15) { of_events } else { of_facts };
        quiz(voice.facts, voice.share, &mut voice.draw)
    })
}

fn articles(voice: &mut Voice<'_>) -> Vec<String> {
    lines(voice, |voice| {
        let problems = 4 + voice.draw.below(5);
        let make = if voice.draw.chance(50) { article } else { lore::article };
        let article = make(voice.facts, voice.share, problems, &mut voice.draw);
        format!("{} {}", article.prompt(), article.right())
    })
}
