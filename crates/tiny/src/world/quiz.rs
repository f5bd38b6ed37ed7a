//! The forms in which the tasks ask, printed in the corpora about other things, or in other words.

use super::lore;
use super::reading::{article, claim_quiz, polar_quiz};
use super::text::words;
use super::voice::Voice;

/// One kind of quiz each; the weights say how often.
type QuizForm = (usize, fn(&mut Voice<'_>) -> Vec<String>);

pub(super) const FORMS: [QuizForm; 7] =
    [(16, facts), (7, reasons), (12, references), (6, scenes), (22, polar), (22, claims), (14, articles)];

/// Lines of quiz, from 60 words on.
fn lines(voice: &mut Voice<'_>, item: fn(&mut Voice<'_>) -> String) -> Vec<String> {
    let (mut lines, mut count) = (Vec::new(), 0);
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
    // As the harness joins them there are two spaces, as people write it there is one.
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

fn references(voice: &mut Voice<'_>) -> Vec<String> {
    // A function of its own: the method is of one lifetime only.
    fn item(voice: &mut Voice<'_>) -> String {
        voice.reference()
    }
    lines(voice, item)
}

fn scenes(voice: &mut Voice<'_>) -> Vec<String> {
    fn item(voice: &mut Voice<'_>) -> String {
        voice.free_scene()
    }
    lines(voice, item)
}

fn polar(voice: &mut Voice<'_>) -> Vec<String> {
    lines(voice, |voice| {
        let quiz = if voice.draw.chance(15) { polar_quiz } else { lore::polar_quiz };
        quiz(voice.facts, voice.share, &mut voice.draw)
    })
}

fn claims(voice: &mut Voice<'_>) -> Vec<String> {
    lines(voice, |voice| {
        let quiz = if voice.draw.chance(15) { claim_quiz } else { lore::claim_quiz };
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
