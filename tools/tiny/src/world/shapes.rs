//! Tests of the tasks' rows: the fields of the hub's data sets, parsed like the harness.

use serde_json::Value;

use super::World;
use super::text::capital;

/// A row as the harness presents it.
pub(super) struct Asked {
    /// Prompt of each choice, which only differs between choices in WinoGrande.
    pub(super) prompts: Vec<String>,
    pub(super) choices: Vec<String>,
    pub(super) gold: usize,
    tails: Vec<String>,
}

impl Asked {
    /// Returns the prompt with the correct answer.
    pub(super) fn right_text(&self) -> String {
        format!("{} {}", self.prompts[self.gold], self.tails[self.gold])
    }
}

fn text(row: &Value, field: &str) -> String {
    let value = row[field].as_str().unwrap_or_else(|| panic!("no {field} in {row}"));
    assert!(!value.trim().is_empty());
    value.to_owned()
}

fn texts(value: &Value) -> Vec<String> {
    value.as_array().unwrap().iter().map(|text| text.as_str().unwrap().to_owned()).collect()
}

fn with(prompt: String, choices: Vec<String>, gold: usize) -> Asked {
    Asked { prompts: vec![prompt; choices.len()], tails: choices.clone(), choices, gold }
}

fn labelled(row: &Value, prompt: String) -> Asked {
    let choices = texts(&row["choices"]["text"]);
    let labels = texts(&row["choices"]["label"]);
    assert_eq!(labels, ["A", "B", "C", "D"]);
    let gold = labels.iter().position(|label| *label == text(row, "answerKey")).unwrap();
    assert_eq!(choices.len(), 4);
    text(row, "id");
    with(prompt, choices, gold)
}

/// Parses RACE's literal, which contains no escaped quotes.
fn problems(literal: &str) -> Vec<(String, Vec<String>, usize)> {
    let inner = literal.strip_prefix("[{").unwrap().strip_suffix("}]").unwrap();
    inner
        .split("}, {")
        .map(|problem: &str| {
            let parts: Vec<&str> = problem.split('\'').collect();
            // 'question' : 'Q' , 'options' : [ 'A' … 'D' ] , 'answer' : 'X'
            assert_eq!(
                (parts.len(), parts[1], parts[5], parts[15]),
                (19, "question", "options", "answer"),
                "{problem}"
            );
            let options = [7, 9, 11, 13].map(|at| parts[at].to_owned()).to_vec();
            let answer = "ABCD".find(parts[17]).unwrap();
            (parts[3].to_owned(), options, answer)
        })
        .collect()
}

/// Converts the row to a question, by the specification of the harness.
pub(super) fn asked(task: &str, row: &Value) -> Asked {
    let label = |count: u64| row["label"].as_u64().filter(|label| *label < count).unwrap() as usize;
    match task {
        "arc_easy" | "arc_challenge" => labelled(row, format!("Question: {}\nAnswer:", text(row, "question"))),
        "openbookqa" => labelled(row, text(row, "question_stem")),
        "hellaswag" => {
            let a = text(row, "ctx_a");
            let b = text(row, "ctx_b");
            assert_eq!(text(row, "ctx"), format!("{a} {b}"));
            let gold = text(row, "label").parse().unwrap();
            let endings = texts(&row["endings"]);
            assert_eq!(endings.len(), 4);
            with(format!("{}: {a} {}", text(row, "activity_label"), capital(&b)), endings, gold)
        }
        "winogrande" => {
            let sentence = text(row, "sentence");
            let (before, after) = sentence.split_once('_').unwrap();
            let options = [text(row, "option1"), text(row, "option2")];
            let gold = ["1", "2"].iter().position(|answer| *answer == text(row, "answer")).unwrap();
            Asked {
                prompts: options.iter().map(|option| format!("{before}{option}")).collect(),
                tails: vec![after.trim().to_owned(); 2],
                choices: options.to_vec(),
                gold,
            }
        }
        "boolq" => {
            let question = text(row, "question");
            assert!(!question.ends_with('?'));
            let prompt = format!("{}\nQuestion: {question}?\nAnswer:", text(row, "passage"));
            with(prompt, vec!["no".to_owned(), "yes".to_owned()], label(2))
        }
        "rte" => {
            let prompt =
                format!("{}\nQuestion: {} True or False?\nAnswer:", text(row, "sentence1"), text(row, "sentence2"));
            with(prompt, vec!["True".to_owned(), "False".to_owned()], label(2))
        }
        "copa" => {
            let connector = if text(row, "question") == "cause" { "because" } else { "therefore" };
            let premise = text(row, "premise");
            let premise = premise.strip_suffix('.').unwrap();
            with(
                format!("{premise} {connector}"),
                vec![lowered_choice(row, "choice1"), lowered_choice(row, "choice2")],
                label(2),
            )
        }
        _ => {
            let problems = problems(&text(row, "problems"));
            let mut prompt = format!("Article: {}\n\n", text(row, "article"));
            let (last, earlier) = problems.split_last().unwrap();
            for (question, options, answer) in earlier {
                match question.strip_suffix(" _  .") {
                    Some(stem) => prompt.push_str(&format!("{stem}{}\n", options[*answer])),
                    None => prompt.push_str(&format!("Question: {question}\nAnswer: {}\n", options[*answer])),
                }
            }
            prompt.push_str(&last.0);
            with(prompt, last.1.clone(), last.2)
        }
    }
}

fn lowered_choice(row: &Value, field: &str) -> String {
    let choice = text(row, field);
    format!(" {}{}", choice[..1].to_lowercase(), &choice[1..])
}

#[test]
fn rows_have_the_shape_of_the_hub() {
    let world = World::new(0);
    for task in World::TASKS {
        let rows = world.task(task).unwrap();
        if task == "copa" {
            assert_eq!(rows.len(), 100);
        } else {
            assert!((300..=420).contains(&rows.len()), "{task} {}", rows.len());
        }
        for row in rows {
            let asked = asked(task, &row);
            assert!(asked.gold < asked.choices.len());
            let mut different = asked.choices.clone();
            different.sort();
            different.dedup();
            assert_eq!(different.len(), asked.choices.len(), "{row}");
        }
    }
}
