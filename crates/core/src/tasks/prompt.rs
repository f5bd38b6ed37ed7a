//! What a row of each task asks: contexts, continuations and the right answer.

use serde_json::Value;

use super::literal;
use super::python::{capitalize, lower_first, strip, strip_start};
use super::row::TaskRow;
use crate::error::{Error, Result};

/// One row as a question with choices.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Prompt {
    pub choices: Vec<Choice>,
    /// The index of the right choice. An index that there is not, such as -1 in a split with hidden answers, is never
    /// matched (the harness counts such a document as wrong in silence; here it is counted, see
    /// [`TaskResult::unanswered`](super::TaskResult::unanswered)).
    pub gold: i64,
}

/// One choice, and the two strings that it is scored by.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// The choice as the task gives it: what `acc_norm` takes the length of.
    pub text: String,
    /// What the model has read.
    pub context: String,
    /// What is scored after it: one space and the choice.
    pub continuation: String,
}

impl Prompt {
    /// The usual form: one context, and continuations that are a space and the choice, even if it starts with a space.
    fn new(context: &str, choices: Vec<String>, gold: i64) -> Self {
        let choice = |text: String| Choice { context: context.to_owned(), continuation: format!(" {text}"), text };
        Self { choices: choices.into_iter().map(choice).collect(), gold }
    }
}

/// arc_easy and arc_challenge.
pub(super) fn arc(row: &TaskRow) -> Result<Prompt> {
    let context = format!("Question: {}\nAnswer:", row.text("question")?);
    labelled(row, &context, row.text("answerKey")?)
}

pub(super) fn openbookqa(row: &TaskRow) -> Result<Prompt> {
    labelled(row, row.text("question_stem")?, strip_start(row.text("answerKey")?))
}

/// Choices with labels beside them, and the right one's label: letters or digits, three to five of them.
fn labelled(row: &TaskRow, context: &str, key: &str) -> Result<Prompt> {
    let (choices, labels) = (row.texts("choices.text")?, row.texts("choices.label")?);
    let wrong = |expected: String| row.wrong("answerKey", &expected, &Value::from(key));
    if choices.len() != labels.len() {
        return Err(Error::bad_input("the field `choices` is not as expected")
            .at(&row.place)
            .expected("as many labels as texts")
            .found(format!("{} texts and {} labels", choices.len(), labels.len())));
    }
    let index = labels.iter().position(|label| label == key);
    let gold = index.ok_or_else(|| wrong(format!("one of the labels {labels:?}")))?;
    Ok(Prompt::new(context, choices, signed(gold)))
}

pub(super) fn hellaswag(row: &TaskRow) -> Result<Prompt> {
    let ending = format!("{} {}", row.text("ctx_a")?, capitalize(row.text("ctx_b")?));
    let context = without_brackets(&format!("{}: {ending}", row.text("activity_label")?));
    let endings = row.texts("endings")?;
    if endings.len() != 4 {
        return Err(row.wrong("endings", "four endings", &Value::from(endings)));
    }
    let choices = endings.iter().map(|ending| without_brackets(ending)).collect();
    Ok(Prompt::new(&context, choices, row.integer_or_text("label")?))
}

/// WikiHow's marks taken out of a HellaSwag text. The order of the steps matters: nothing is stripped at the end, so an
/// ending that began with a mark keeps the space after it.
fn without_brackets(text: &str) -> String {
    let text = strip(text).replace(" [title]", ". ");
    let mut kept = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(open) = rest.find('[') {
        let (before, bracket) = rest.split_at(open);
        kept.push_str(before);
        // The shortest run up to a closing bracket on the same line.
        match bracket.find([']', '\n']) {
            Some(end) if bracket[end..].starts_with(']') => rest = &bracket[end + 1..],
            // No bracket before the line's end can be closed, nor can any after the last closing one.
            Some(end) => {
                kept.push_str(&bracket[..end]);
                rest = &bracket[end..];
            }
            None => {
                kept.push_str(bracket);
                rest = "";
            }
        }
    }
    kept.push_str(rest);
    // One pass from left to right: three spaces become two.
    kept.replace("  ", " ")
}

/// The odd one out: what differs is the context, and the same ending is scored after each.
pub(super) fn winogrande(row: &TaskRow) -> Result<Prompt> {
    let sentence = row.text("sentence")?;
    let Some((before, after)) = sentence.split_once('_') else {
        return Err(row.wrong("sentence", "a sentence with a blank `_`", &Value::from(sentence)));
    };
    let answer = row.text("answer")?;
    let gold = match answer {
        "1" => 0,
        "2" => 1,
        other => return Err(row.wrong("answer", "\"1\" or \"2\"", &Value::from(other))),
    };
    let continuation = format!(" {}", strip(after));
    let choice = |option: &str| {
        let context = format!("{before}{option}");
        Choice { text: context.clone(), context, continuation: continuation.clone() }
    };
    Ok(Prompt { choices: vec![choice(row.text("option1")?), choice(row.text("option2")?)], gold })
}

pub(super) fn boolq(row: &TaskRow) -> Result<Prompt> {
    let context = format!("{}\nQuestion: {}?\nAnswer:", row.text("passage")?, row.text("question")?);
    Ok(Prompt::new(&context, words(["no", "yes"]), row.integer("label")?))
}

pub(super) fn rte(row: &TaskRow) -> Result<Prompt> {
    let (first, second) = (row.text("sentence1")?, row.text("sentence2")?);
    let context = format!("{first}\nQuestion: {second} True or False?\nAnswer:");
    Ok(Prompt::new(&context, words(["True", "False"]), row.integer("label")?))
}

fn words(words: [&str; 2]) -> Vec<String> {
    words.map(str::to_owned).to_vec()
}

pub(super) fn copa(row: &TaskRow) -> Result<Prompt> {
    let connector = match row.text("question")? {
        "cause" => "because",
        "effect" => "therefore",
        other => return Err(row.wrong("question", "\"cause\" or \"effect\"", &Value::from(other))),
    };
    // The last character goes, whatever it is: usually the full stop.
    let mut premise = strip(row.text("premise")?).chars();
    premise.next_back();
    let context = format!("{} {connector}", premise.as_str());
    let choice = |field: &str| -> Result<String> {
        let text = row.text(field)?;
        // The space here and the delimiter make two.
        let lowered = lower_first(text).ok_or_else(|| row.wrong(field, "some text", &Value::from(text)))?;
        Ok(format!(" {lowered}"))
    };
    let choices: Vec<String> = vec![choice("choice1")?, choice("choice2")?];
    // The harness takes any label but 0 for the second choice, hidden answers (-1) too: a guess dressed as an answer.
    let label = row.integer("label")?;
    let right = usize::try_from(label).ok().filter(|right| *right < choices.len());
    let right = right.ok_or_else(|| row.wrong("label", "0 or 1", &Value::from(label)))?;
    // The right choice is looked up by its text.
    let gold = choices.iter().position(|text| *text == choices[right]).unwrap_or(right);
    Ok(Prompt::new(&context, choices, signed(gold)))
}

/// RACE 3.0: an earlier question that ends in a blank keeps its text and loses the blank.
pub(super) fn race(row: &TaskRow) -> Result<Prompt> {
    passage(row, |question| &question[..question.len() - 5])
}

/// RACE before 3.0: such a question was reduced to its blank, by a mistake that all older numbers share.
pub(super) fn race_v2(row: &TaskRow) -> Result<Prompt> {
    passage(row, |question| &question[question.len() - 5..])
}

/// A passage with its earlier questions answered, and the last one open. `cloze` is what stays of a question that ends
/// in [`BLANK`].
fn passage(row: &TaskRow, cloze: fn(&str) -> &str) -> Result<Prompt> {
    let problems = problems(row)?;
    let Some((last, earlier)) = problems.split_last() else {
        return Err(row.wrong("problems", "at least one problem", &Value::from(row.text("problems")?)));
    };
    let mut context = format!("Article: {}\n\n", row.text("article")?);
    for problem in earlier {
        let question = problem.text("question")?;
        let (options, answer) = answered(problem)?;
        let option = &options[answer];
        match question.ends_with(BLANK) {
            true => context.push_str(&format!("{}{option}\n", cloze(question))),
            false => context.push_str(&format!("Question: {question}\nAnswer: {option}\n")),
        }
    }
    // The last question stands raw, with its blank if it has one.
    context.push_str(last.text("question")?);
    let (options, answer) = answered(last)?;
    Ok(Prompt::new(&context, options, signed(answer)))
}

/// How a question to be completed ends, exactly.
const BLANK: &str = "  _  .";

/// The problems of a passage, each as a row of its own. On the hub they are one string that holds a Python literal.
fn problems(row: &TaskRow) -> Result<Vec<TaskRow>> {
    let text = row.text("problems")?;
    let value = literal::parse(text).map_err(|error| error.at("field `problems`").at(&row.place))?;
    let Value::Array(problems) = value else { return Err(row.wrong("problems", "a list of dicts", &value)) };
    let problem = |(problem, number): (Value, usize)| match problem {
        Value::Object(fields) => Ok(TaskRow { place: format!("{}, problem {number}", row.place), fields }),
        other => Err(row.wrong("problems", "a list of dicts", &other)),
    };
    problems.into_iter().zip(1..).map(problem).collect()
}

/// The four options of a problem and the index of the right one.
fn answered(problem: &TaskRow) -> Result<(Vec<String>, usize)> {
    let mut options = problem.texts("options")?;
    if options.len() < 4 {
        return Err(problem.wrong("options", "four options", &Value::from(options)));
    }
    options.truncate(4);
    let answer = problem.text("answer")?;
    let index = ["A", "B", "C", "D"].iter().position(|letter| *letter == answer);
    let index = index.ok_or_else(|| problem.wrong("answer", "a letter A to D", &Value::from(answer)))?;
    Ok((options, index))
}

fn signed(index: usize) -> i64 {
    i64::try_from(index).unwrap_or(i64::MAX)
}

#[cfg(test)]
#[path = "prompt_tests.rs"]
mod tests;
