//! Built-in versions of lm-eval's `process_docs` hooks for four datasets. The key `prepare` of a definition selects a
//! hook, which derives columns for the templates from each row.

use ghostlab_core::error::Result;
use ghostlab_core::tasks::python::{capitalize, lower_first, strip};

use crate::literal;
use crate::row::Row;
use crate::value::Value;

/// Names and values of the columns that a hook derives from a row.
type DerivedColumns = Vec<(&'static str, Value)>;

/// Built-in hook that derives columns from a row.
#[derive(Debug, Clone, Copy)]
pub struct RowPreparation {
    /// Name by which definitions refer to the hook.
    pub name: &'static str,
    derive: fn(&Row) -> Result<DerivedColumns>,
}

pub const PREPARATIONS: [RowPreparation; 5] = [
    RowPreparation { name: "hellaswag", derive: derive_hellaswag },
    RowPreparation { name: "winogrande", derive: derive_winogrande },
    RowPreparation { name: "copa", derive: derive_copa },
    RowPreparation { name: "race", derive: derive_race },
    RowPreparation { name: "race_v2", derive: derive_race_v2 },
];

impl RowPreparation {
    /// Adds the derived columns to a row.
    ///
    /// # Errors
    /// Fails if a field is missing or invalid, or if the answer is not among the choices.
    pub(crate) fn apply(self, row: &mut Row) -> Result<()> {
        for (name, value) in (self.derive)(row)? {
            row.value.set(name, value);
        }
        Ok(())
    }
}

fn text_list(texts: Vec<String>) -> Value {
    Value::List(texts.into_iter().map(Value::Text).collect())
}

fn index_value(index: usize) -> Value {
    Value::Int(i64::try_from(index).unwrap_or(i64::MAX))
}

/// Returns the columns `query`, `choices` and `gold`.
fn derive_hellaswag(row: &Row) -> Result<DerivedColumns> {
    let ending = format!("{} {}", row.text("ctx_a")?, capitalize(row.text("ctx_b")?));
    let query = remove_brackets(&format!("{}: {ending}", row.text("activity_label")?));
    let endings = row.texts("endings")?;
    if endings.len() != 4 {
        return Err(row.value_error("endings", "four endings", &text_list(endings)));
    }
    let choices = endings.iter().map(|ending| remove_brackets(ending)).collect();
    let gold = Value::Int(row.parse_integer("label")?);
    Ok(vec![("query", query.into()), ("choices", text_list(choices)), ("gold", gold)])
}

/// Removes WikiHow markup from a HellaSwag text. Whitespace is stripped first, so an ending that starts with markup
/// keeps the space after it.
fn remove_brackets(text: &str) -> String {
    let text = strip(text).replace(" [title]", ". ");
    let mut retained = String::with_capacity(text.len());
    let mut rest = text.as_str();
    while let Some(open) = rest.find('[') {
        let (before, bracket) = rest.split_at(open);
        retained.push_str(before);
        // Remove up to the first `]` on the same line, like the regex `\[.*?\]`.
        match bracket.find([']', '\n']) {
            Some(end) if bracket[end..].starts_with(']') => rest = &bracket[end + 1..],
            // No opening bracket on the rest of this line has a closing bracket.
            Some(end) => {
                retained.push_str(&bracket[..end]);
                rest = &bracket[end..];
            }
            None => {
                retained.push_str(bracket);
                rest = "";
            }
        }
    }
    retained.push_str(rest);
    // A single pass turns three spaces into two, as in lm-evaluation-harness.
    retained.replace("  ", " ")
}

/// Returns the columns `contexts` (one per choice), `ending` (scored after each context) and `gold`.
fn derive_winogrande(row: &Row) -> Result<DerivedColumns> {
    let sentence = row.text("sentence")?;
    let Some((before, after)) = sentence.split_once('_') else {
        return Err(row.value_error("sentence", "a sentence with a blank `_`", &sentence.into()));
    };
    let answer = row.text("answer")?;
    let gold = match answer {
        "1" => 0,
        "2" => 1,
        other => return Err(row.value_error("answer", "\"1\" or \"2\"", &other.into())),
    };
    let contexts = vec![append_option("option1", before, row)?, append_option("option2", before, row)?];
    Ok(vec![("contexts", text_list(contexts)), ("ending", strip(after).into()), ("gold", Value::Int(gold))])
}

fn append_option(option: &str, before: &str, row: &Row) -> Result<String> {
    Ok(format!("{before}{}", row.text(option)?))
}

/// Returns the columns `query`, `choices` and `gold`.
fn derive_copa(row: &Row) -> Result<DerivedColumns> {
    let connector = match row.text("question")? {
        "cause" => "because",
        "effect" => "therefore",
        other => return Err(row.value_error("question", "\"cause\" or \"effect\"", &other.into())),
    };
    // Drop the last character, which is usually the full stop.
    let mut premise = strip(row.text("premise")?).chars();
    premise.next_back();
    let query = format!("{} {connector}", premise.as_str());
    let choices: Vec<String> = vec![read_choice("choice1", row)?, read_choice("choice2", row)?];
    // lm-evaluation-harness treats every nonzero label as the second choice, even -1, which marks a hidden answer.
    // Reject such labels instead.
    let label = row.integer("label")?;
    let index = usize::try_from(label).ok().filter(|index| *index < choices.len());
    let index = index.ok_or_else(|| row.value_error("label", "0 or 1", &Value::Int(label)))?;
    // If both choices are equal, the first one is the gold choice.
    let gold = choices.iter().position(|text| *text == choices[index]).unwrap_or(index);
    Ok(vec![("query", query.into()), ("choices", text_list(choices)), ("gold", index_value(gold))])
}

fn read_choice(field: &str, row: &Row) -> Result<String> {
    let text = row.text(field)?;
    // With the delimiter, this space produces two spaces, as in lm-evaluation-harness.
    let lowered = lower_first(text).ok_or_else(|| row.value_error(field, "a nonempty string", &text.into()))?;
    Ok(format!(" {lowered}"))
}

/// Returns the columns for version 3.0 of the RACE task, which removes the blank at the end of an earlier question.
fn derive_race(row: &Row) -> Result<DerivedColumns> {
    build_passage_columns(row, |question| &question[..question.len() - CUT_CHARS])
}

/// Returns the columns for versions of the RACE task before 3.0. If an earlier question ends in a blank, these versions
/// keep only the blank. The bug affects all results published with them.
fn derive_race_v2(row: &Row) -> Result<DerivedColumns> {
    build_passage_columns(row, |question| &question[question.len() - CUT_CHARS..])
}

/// Returns the columns `query`, `choices` and `gold`. `query` consists of the passage, its earlier questions with
/// answers, and the last question. `cloze` shortens an earlier question that ends in [`CLOZE_BLANK`].
fn build_passage_columns(row: &Row, cloze: fn(&str) -> &str) -> Result<DerivedColumns> {
    let problems = split_problems(row)?;
    let Some((last, earlier)) = problems.split_last() else {
        return Err(row.value_error("problems", "at least one problem", row.get("problems")?));
    };
    let mut query = format!("Article: {}\n\n", row.text("article")?);
    for problem in earlier {
        let question = problem.text("question")?;
        let (options, answer) = read_options_and_answer(problem)?;
        let option = &options[answer];
        match question.ends_with(CLOZE_BLANK) {
            true => query.push_str(&format!("{}{option}\n", cloze(question))),
            false => query.push_str(&format!("Question: {question}\nAnswer: {option}\n")),
        }
    }
    // The last question is not modified, even if it ends in a blank.
    query.push_str(last.text("question")?);
    let (options, answer) = read_options_and_answer(last)?;
    Ok(vec![("query", query.into()), ("choices", text_list(options)), ("gold", index_value(answer))])
}

/// Exact ending of a cloze question.
const CLOZE_BLANK: &str = "  _  .";
/// Number of trailing characters that lm-eval cuts off: [`CLOZE_BLANK`] without its first space.
const CUT_CHARS: usize = 5;

/// Splits a passage into rows that contain one problem each. The Hub dataset stores all problems of a passage as one
/// Python literal.
fn split_problems(row: &Row) -> Result<Vec<Row>> {
    let text = row.text("problems")?;
    let value = literal::read(text).map_err(|error| error.at("field `problems`").at(&row.location))?;
    let Value::List(problems) = value else { return Err(row.value_error("problems", "a list of dicts", &value)) };
    problems
        .into_iter()
        .zip(1..)
        .map(|(value, number)| match value {
            Value::Map(_) => Ok(Row { location: format!("{}, problem {number}", row.location), value }),
            other => Err(row.value_error("problems", "a list of dicts", &other)),
        })
        .collect()
}

/// Returns the first four options for a problem and the index of the correct one.
fn read_options_and_answer(problem: &Row) -> Result<(Vec<String>, usize)> {
    let mut options = problem.texts("options")?;
    if options.len() < 4 {
        return Err(problem.value_error("options", "four options", &text_list(options)));
    }
    options.truncate(4);
    let answer = problem.text("answer")?;
    let index = ["A", "B", "C", "D"].iter().position(|letter| *letter == answer);
    let index = index.ok_or_else(|| problem.value_error("answer", "a letter A to D", &answer.into()))?;
    Ok((options, index))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn hellaswag_brackets_are_removed_as_in_the_harness() {
        for (text, wanted) in [
            ("  a [title] b [step] c  ", "a. b c"),
            ("[title] Wipe. [step] Move.", " Wipe. Move."),
            ("x [a [b] c] y", "x c] y"),
            ("open [ bracket only", "open [ bracket only"),
            ("line [a\nb] break", "line [a\nb] break"),
            ("line [a\n[b] break [c", "line [a\n break [c"),
            ("[substeps]", ""),
            ("a   b    c", "a  b  c"),
            ("\u{1c}a[é]\u{a0}", "a"),
            ("[]]", "]"),
        ] {
            assert_eq!(remove_brackets(text), wanted, "{text:?}");
        }
        // The runtime is linear, because unclosed brackets are scanned only once.
        assert_eq!(remove_brackets(&"[".repeat(200_000)).len(), 200_000);
    }
}
