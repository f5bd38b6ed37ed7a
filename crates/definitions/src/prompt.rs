//! Few-shot sampling, the messages of a prompt, and their concatenation into one text.

use ghostlab_core::corpus::PythonRandom;
use ghostlab_core::error::{Error, Result};
use ghostlab_core::tasks::python::is_space;

use crate::value::Value;

/// Author of a message.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Role {
    System,
    User,
    Assistant,
}

ghostlab_core::names!(Role: System = "system", User = "user", Assistant = "assistant");

#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Message {
    pub role: Role,
    pub content: String,
    /// Separator that follows the message if no chat template is used.
    pub delimiter: String,
}

/// Returns whether `before` is nonempty and there is no whitespace between `before` and `after`.
fn is_tight(before: &str, after: &str) -> bool {
    !before.is_empty() && !before.ends_with(is_space) && !after.starts_with(is_space)
}

/// Concatenates two texts. Inserts the delimiter if both texts are nonempty and there is no whitespace between them.
pub fn join_with_delimiter(before: &str, after: &str, delimiter: &str) -> String {
    let tight = !after.is_empty() && is_tight(before, after);
    format!("{before}{}{after}", if tight { delimiter } else { "" })
}

pub fn ends_with_whitespace(text: &str) -> bool {
    text.ends_with(is_space)
}

/// Question of a document or few-shot example, with an optional answer.
#[derive(Debug, Clone, Copy)]
pub struct QuestionTurn<'a> {
    pub text: &'a Value,
    /// Choices, if any. The answer may be an index into them.
    pub choices: Option<&'a [Value]>,
    pub answer: Option<&'a Value>,
    /// Start of the answer, which the model continues if there is no answer (`gen_prefix`).
    pub prefix: Option<&'a str>,
    /// Separator between the question and the answer.
    pub target_delimiter: &'a str,
    /// Separator after the answer.
    pub delimiter: &'a str,
}

impl QuestionTurn<'_> {
    /// Returns the messages of this turn.
    ///
    /// # Errors
    /// Fails if the question is not a string, or the answer is neither a string nor the index of a choice.
    pub fn messages(&self) -> Result<Vec<Message>> {
        let text = self
            .text
            .as_text()
            .ok_or_else(|| missing_text_error("the question", self.text).expected("a string from `doc_to_text`"))?;
        let prefix = self.prefix.filter(|prefix| !prefix.is_empty());
        let answer = self.answer.filter(|answer| !matches!(answer, Value::None) && answer.as_text() != Some(""));
        let delimiter = match prefix {
            None if answer.is_some() => self.target_delimiter,
            Some(prefix) if is_tight(text, prefix) => self.target_delimiter,
            _ => "",
        };
        let mut messages =
            vec![Message { role: Role::User, content: text.to_owned(), delimiter: delimiter.to_owned() }];
        if let Some(answer) = answer {
            let chosen = match (self.choices, answer.as_int(), answer) {
                (Some(choices), Some(number), _) if !choices.is_empty() => {
                    let found = choice_at(choices, number);
                    found.ok_or_else(|| Error::bad_input("the answer is not the index of a choice").found(number))?
                }
                (_, _, Value::List(items)) => {
                    items.first().ok_or_else(|| Error::bad_input("an example has no answer").found("[]"))?
                }
                _ => answer,
            };
            let chosen = chosen.as_text().ok_or_else(|| missing_text_error("the answer of an example", chosen))?;
            let content = join_with_delimiter(prefix.unwrap_or(""), chosen, " ");
            messages.push(Message { role: Role::Assistant, content, delimiter: self.delimiter.to_owned() });
        } else if let Some(prefix) = prefix {
            messages.push(Message { role: Role::Assistant, content: prefix.to_owned(), delimiter: String::new() });
        }
        Ok(messages)
    }
}

fn missing_text_error(subject: &str, found: &Value) -> Error {
    Error::bad_input(format!("{subject} is not text")).found(found.repr())
}

/// Returns the choice with the given index. Negative indices count from the end, as in Python.
pub fn choice_at(choices: &[Value], number: i64) -> Option<&Value> {
    let length = i64::try_from(choices.len()).ok()?;
    choices.get(usize::try_from(if number < 0 { number + length } else { number }).ok()?)
}

/// Rejects a negative label if there are choices. Python would count it from the end of the choices, but datasets on
/// the Hub use -1 to mark rows without a label.
///
/// # Errors
/// Fails if the answer is negative or contains a negative index.
pub(crate) fn check_label(choices: Option<&[Value]>, answer: &Value) -> Result<()> {
    let Some(choices) = choices else { return Ok(()) };
    let answers = answer.as_list().unwrap_or(std::slice::from_ref(answer));
    match answers.iter().find_map(|answer| answer.as_int().filter(|number| *number < 0)) {
        Some(number) => Err(label_error(&format!("0 to {}", choices.len().saturating_sub(1)), number)),
        None => Ok(()),
    }
}

/// Creates the error for a row without a label.
pub(crate) fn label_error(expected: &str, found: impl std::fmt::Display) -> Error {
    Error::bad_input("the row has no label")
        .expected(expected)
        .found(found)
        .hint("use the validation split: many test splits on the Hub have no labels")
}

pub fn concatenate_messages(messages: &[Message]) -> String {
    messages.iter().flat_map(|message| [message.content.as_str(), message.delimiter.as_str()]).collect()
}

/// Merges all messages except the system message and a partial answer at the end into one user message.
pub fn merge_turns(messages: &[Message]) -> Vec<Message> {
    let system = usize::from(messages.first().is_some_and(|message| message.role == Role::System));
    let end = messages.len() - usize::from(messages.last().is_some_and(|message| message.role == Role::Assistant));
    let mut content = concatenate_messages(&messages[system..end.max(system)]);
    let last = messages[system..end.max(system)].last().map_or(0, |last| last.delimiter.len());
    content.truncate(content.len() - last);
    let mut all = messages[..system].to_vec();
    all.push(Message { role: Role::User, content, delimiter: String::new() });
    all.extend_from_slice(&messages[end.max(system)..]);
    all
}

/// Source of few-shot examples. All documents of a task share its random state.
#[derive(Debug, Clone)]
pub struct FewShotPool {
    documents: Vec<Value>,
    random: PythonRandom,
    /// Whether examples are taken in order instead of being sampled.
    first: bool,
}

impl FewShotPool {
    /// Creates a pool from documents in the order of their split. If `first` is set, examples are taken in order
    /// instead of being sampled.
    pub fn new(documents: Vec<Value>, seed: u64, first: bool) -> Self {
        Self { documents, random: PythonRandom::new(seed), first }
    }

    /// Returns the examples for one document, without those that are equal to `excluded`. If `excluded` is given,
    /// random sampling draws one extra example as a substitute.
    ///
    /// # Errors
    /// Fails if there are too few examples.
    pub fn sample(&mut self, count: usize, excluded: Option<&Value>) -> Result<Vec<Value>> {
        let is_other = |document: &&Value| excluded.is_none_or(|excluded| *document != excluded);
        let drawn: Vec<Value> = if self.first {
            self.documents.iter().filter(is_other).take(count).cloned().collect()
        } else {
            let extra = usize::from(excluded.is_some());
            let indices =
                self.random.sample(self.documents.len(), count + extra).map_err(|_| self.too_few_error(count))?;
            indices.iter().map(|index| &self.documents[*index]).filter(is_other).take(count).cloned().collect()
        };
        if drawn.len() < count { Err(self.too_few_error(count)) } else { Ok(drawn) }
    }

    fn too_few_error(&self, requested: usize) -> Error {
        Error::bad_input("too few examples for the number of shots")
            .expected(format!("at least {requested} examples other than the scored document"))
            .found(format!("{} in total", self.documents.len()))
            .hint("use fewer shots, or remove duplicate rows from the data")
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn pool(count: i64, first: bool) -> FewShotPool {
        FewShotPool::new((0..count).map(Value::Int).collect(), 1234, first)
    }

    fn numbers(values: &[Value]) -> Vec<i64> {
        values.iter().filter_map(Value::as_int).collect()
    }

    /// The expected samples are those of `random.Random(1234)` in Python 3.11. When a document is excluded, one extra
    /// example is drawn.
    #[test]
    fn few_shot_examples_are_drawn_as_in_the_harness() {
        let mut drawn = pool(100, false);
        assert_eq!(numbers(&drawn.sample(5, None).unwrap()), [99, 56, 14, 0, 11]);
        assert_eq!(numbers(&drawn.sample(5, None).unwrap()), [74, 4, 85, 88, 10]);
        let mut excluded = pool(100, false);
        assert_eq!(numbers(&excluded.sample(4, Some(&Value::Int(14))).unwrap()), [99, 56, 0, 11]);
        assert_eq!(numbers(&pool(9, true).sample(3, Some(&Value::Int(1))).unwrap()), [0, 2, 3]);
        assert!(pool(3, false).sample(3, Some(&Value::Int(7))).unwrap_err().to_string().contains("too few"));
        assert!(pool(3, true).sample(4, None).is_err());
        assert!(pool(0, false).sample(1, None).is_err());
    }

    #[test]
    fn error_for_too_few_examples_states_the_shot_count() {
        for first in [false, true] {
            let error = pool(3, first).sample(3, Some(&Value::Int(1))).unwrap_err();
            assert_eq!(error.parts().expected.as_deref(), Some("at least 3 examples other than the scored document"));
            assert_eq!(error.parts().found.as_deref(), Some("3 in total"));
        }
    }
}
