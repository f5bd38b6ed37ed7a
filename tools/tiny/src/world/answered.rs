//! Two tasks without choices, derived from multiple-choice tasks: short answers in the format of GSM8K, and last words
//! in that of LAMBADA. Both have the same content as the multiple-choice rows, so the effects of a cut on either form
//! can be compared.

use serde_json::{Value, json};

use super::exam;
use super::facts::Facts;

/// Names of the tasks: short answers to questions alternating between `arc_easy` and `arc_challenge`; last words of
/// `openbookqa`'s sentences.
pub(super) const ANSWERED: [&str; 2] = ["short_answers", "last_word"];

/// Returns the rows of a task in order, or `None` for an unknown name.
pub(super) fn rows(facts: &Facts, seed: u64, name: &str) -> Option<Vec<Value>> {
    let of = |task: &str| exam::rows(facts, seed, task).unwrap_or_default();
    match name {
        "short_answers" => {
            let easy = of("arc_easy");
            let hard = of("arc_challenge");
            let turns = easy.iter().zip(&hard).flat_map(|(one, other)| [one, other]);
            let row =
                |row: &Value| Some(json!({"question": row["question"], "answer": format!("#### {}", right(row)?)}));
            turns.map(row).collect()
        }
        "last_word" => {
            let text =
                |row: &Value| Some(json!({"text": format!("{} {}", row["question_stem"].as_str()?, right(row)?)}));
            of("openbookqa").iter().map(text).collect()
        }
        _ => None,
    }
}

fn right(row: &Value) -> Option<&str> {
    let place = row["choices"]["label"].as_array()?.iter().position(|label| *label == row["answerKey"])?;
    row["choices"]["text"][place].as_str()
}

#[cfg(test)]
mod tests {
    use super::super::World;

    #[test]
    fn what_is_asked_without_choices_is_what_the_right_choice_says() {
        let world = World::new(0);
        let [easy, short, stems, words] =
            ["arc_easy", "short_answers", "openbookqa", "last_word"].map(|name| world.task(name).unwrap());
        for (at, row) in easy.iter().enumerate().take(100) {
            assert_eq!(short[2 * at]["question"], row["question"]);
            let answer = short[2 * at]["answer"].as_str().unwrap().strip_prefix("#### ").unwrap();
            let choices = row["choices"]["text"].as_array().unwrap();
            assert_eq!(choices.iter().filter(|choice| *choice == answer).count(), 1);
        }
        for (word, stem) in words.iter().zip(&stems) {
            assert!(word["text"].as_str().unwrap().starts_with(stem["question_stem"].as_str().unwrap()));
        }
        assert!(short.len() >= 700 && words.len() == stems.len());
    }
}
