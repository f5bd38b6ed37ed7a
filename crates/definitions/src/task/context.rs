//! Prompts for documents, including few-shot examples, and the requests built from them.

use ghostlab_core::error::{Error, Result};

use super::{PromptSettings, RequestKind, Task};
use crate::document::Columns;
use crate::metric::{Kind, Output};
use crate::prompt::{
    Message, QuestionTurn, Role, check_label, choice_at, concatenate_messages, ends_with_whitespace,
    join_with_delimiter, merge_turns,
};
use crate::rows::{Rows, filtered_rows, prepare_rows};
use crate::value::Value;

impl Task {
    /// Returns the documents from which few-shot examples are sampled: the prepared rows of the example split, or the
    /// examples that the definition lists.
    pub(super) fn example_documents(&self, rows: &dyn Rows) -> Result<Vec<Value>> {
        let definition = &self.definition;
        match (definition.example_split(), &definition.examples.samples) {
            (Some(split), _) => Ok(prepare_rows(definition, filtered_rows(definition, rows, split)?)?
                .into_iter()
                .map(|row| row.value)
                .collect()),
            (None, samples) => Ok(samples.clone().unwrap_or_default()),
        }
    }

    /// Builds the prompt for a document, or one prompt per choice if each choice has its own context.
    pub(super) fn build_contexts(
        &self,
        document: &Value,
        examples: &[Value],
        choices: Option<&[Value]>,
        settings: &PromptSettings<'_>,
    ) -> Result<Vec<String>> {
        let definition = &self.definition;
        let prefix = definition.prefix.as_ref().map(|field| Columns::plain(field, document)).transpose()?;
        let description = definition.description.as_ref().map(|field| Columns::plain(field, document)).transpose()?;
        let system = join_with_delimiter(
            settings.system.as_deref().unwrap_or(""),
            description.as_deref().unwrap_or(""),
            &definition.fewshot_delimiter,
        );
        let mut messages = Vec::new();
        if !system.is_empty() {
            messages.push(Message { role: Role::System, content: system, delimiter: String::new() });
        }
        for example in examples {
            messages.extend(self.build_example(example)?);
        }
        let turn = |text: &Value, delimiter: &str| {
            let turn = QuestionTurn {
                text,
                choices,
                answer: None,
                prefix: prefix.as_deref(),
                target_delimiter: delimiter,
                delimiter: "",
            };
            turn.messages()
        };
        let turns = if self.has_several_contexts {
            choices.into_iter().flatten().map(|text| turn(text, "")).collect::<Result<Vec<_>>>()?
        } else {
            vec![turn(&self.columns.text(&definition.text, document)?, &definition.target_delimiter)?]
        };
        let continued = prefix.as_ref().is_some_and(|prefix| !prefix.is_empty());
        turns
            .into_iter()
            .map(|turn| {
                let all = [messages.as_slice(), &turn].concat();
                match settings.chat {
                    None => Ok(concatenate_messages(&all)),
                    Some(chat) if settings.multiturn => chat.render(&all, continued),
                    Some(chat) => chat.render(&merge_turns(&all), continued),
                }
            })
            .collect()
    }

    fn build_example(&self, example: &Value) -> Result<Vec<Message>> {
        let fields = &self.definition.examples;
        let mut text = self.columns.text(&fields.text, example)?;
        let mut choices = fields.choices.as_ref().map(|field| self.columns.choices(field, example)).transpose()?;
        let answer = self.columns.target(&fields.target, example)?;
        check_label(choices.as_deref(), &answer).map_err(|error| error.at("an example"))?;
        let prefix = fields.prefix.as_ref().map(|field| Columns::plain(field, example)).transpose()?;
        if self.has_several_contexts {
            check_label(choices.as_deref(), &text).map_err(|error| error.at("an example"))?;
            let number = text.as_int().unwrap_or(i64::MAX);
            let found = choices.as_deref().and_then(|choices| choice_at(choices, number)).cloned();
            text = found.ok_or_else(|| {
                Error::bad_input("the context of an example is not the index of a choice").found(text.repr())
            })?;
            choices = None;
        }
        let turn = QuestionTurn {
            text: &text,
            choices: choices.as_deref(),
            answer: Some(&answer),
            prefix: prefix.as_deref(),
            target_delimiter: &fields.target_delimiter,
            delimiter: &fields.delimiter,
        };
        turn.messages().map_err(|error| error.at("an example"))
    }

    fn target_text(&self, document: &Value) -> Result<String> {
        let target = self.columns.target(&self.definition.target, document)?;
        target.as_text().map(str::to_owned).ok_or_else(|| {
            Error::bad_input("the target is not text").expected("a string from `doc_to_target`").found(target.repr())
        })
    }

    pub(super) fn build_request_kinds(
        &self,
        document: &Value,
        contexts: Vec<String>,
        choices: Option<&[Value]>,
        chat: bool,
    ) -> Result<Vec<RequestKind>> {
        let definition = &self.definition;
        let mut contexts = contexts.into_iter();
        let mut first = || contexts.next().unwrap_or_default();
        match definition.output {
            Output::LogLikelihood => Ok(vec![build_likelihood(first(), self.target_text(document)?)?]),
            Output::Rolling => match self.target_text(document)? {
                text if text.is_empty() => Err(Error::bad_input("no text to score").found("an empty `doc_to_target`")),
                text => Ok(vec![RequestKind::Rolling { text }]),
            },
            Output::Generate => {
                Ok(vec![RequestKind::Generate { context: first(), settings: definition.generation.clone() }])
            }
            Output::MultipleChoice => {
                let prefix = match &definition.prefix {
                    Some(crate::definition::Field::Text(_, prefix)) => prefix.as_str(),
                    _ => "",
                };
                // A chat template separates messages itself, so only a partial answer and its continuation need the
                // delimiter.
                let delimiter = if !chat || !prefix.is_empty() && !ends_with_whitespace(prefix) {
                    definition.target_delimiter.as_str()
                } else {
                    ""
                };
                let Some(choices) = choices else { return Ok(Vec::new()) };
                let mut kinds = if self.has_several_contexts {
                    let target = self.columns.target(&definition.target, document)?.text();
                    std::iter::once(first())
                        .chain(contexts)
                        .map(|context| build_likelihood(context, format!("{delimiter}{target}")))
                        .collect::<Result<Vec<_>>>()?
                } else {
                    let context = first();
                    choices
                        .iter()
                        .map(|choice| build_likelihood(context.clone(), format!("{delimiter}{}", choice.text())))
                        .collect::<Result<Vec<_>>>()?
                };
                if definition.metrics.iter().any(|metric| metric.kind == Kind::AccMutualInfo) {
                    for choice in choices {
                        kinds.push(build_likelihood(String::new(), format!("{delimiter}{}", choice.text()))?);
                    }
                }
                Ok(kinds)
            }
        }
    }
}

/// Builds a log-likelihood request. Trailing whitespace in the context is scored as part of the continuation.
fn build_likelihood(context: String, continuation: String) -> Result<RequestKind> {
    if continuation.is_empty() && !ends_with_whitespace(&context) {
        return Err(Error::bad_input("nothing to score after the context")
            .expected("a continuation of at least one character")
            .found("an empty continuation")
            .hint("check `doc_to_target`, `doc_to_choice` and `target_delimiter`"));
    }
    Ok(RequestKind::LogLikelihood { context, continuation })
}
