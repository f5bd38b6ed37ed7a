//! Tasks, their documents, and the requests that lm-evaluation-harness would build from them.

mod context;

use ghostlab_core::error::{Error, Result};
use ghostlab_core::tasks::DocumentLimit;
use rayon::prelude::*;

use crate::activity;
use crate::bounds::{MAX_ANSWERS, check_text};
use crate::chat::ChatTemplate;
use crate::definition::Definition;
use crate::document::Columns;
use crate::prompt::{FewShotPool, check_label, choice_at};
use crate::row::Row;
use crate::rows::{Rows, filtered_rows, prepare_rows};
use crate::value::Value;

/// lm-eval's default seed for sampling few-shot examples.
pub const DEFAULT_FEWSHOT_SEED: u64 = 1234;

/// Number of documents rendered in parallel. If one document fails, the other documents of its batch are still
/// rendered.
const BATCH_DOCUMENTS: usize = 64;

/// Settings for building requests.
#[derive(Debug, Clone)]
pub struct PromptSettings<'a> {
    /// Number of few-shot examples. An explicit 0 in the definition takes precedence. `None` selects the number in the
    /// definition, or 0 if it has none.
    pub shots: Option<usize>,
    /// Seed for sampling few-shot examples.
    pub seed: u64,
    /// System message, if any.
    pub system: Option<String>,
    /// Chat template to apply, if any.
    pub chat: Option<&'a ChatTemplate>,
    /// Whether few-shot examples are separate chat messages.
    pub multiturn: bool,
}

impl Default for PromptSettings<'_> {
    fn default() -> Self {
        Self { shots: None, seed: DEFAULT_FEWSHOT_SEED, system: None, chat: None, multiturn: true }
    }
}

/// Content of a request.
#[derive(Debug, Clone, PartialEq)]
pub enum RequestKind {
    /// Log-likelihood of a continuation.
    LogLikelihood {
        /// Text before the continuation.
        context: String,
        /// Scored text.
        continuation: String,
    },
    /// Log-likelihood of an entire text.
    Rolling {
        /// Scored text.
        text: String,
    },
    /// Generation of text after a context.
    Generate {
        context: String,
        /// Stop sequences, length limits and sampling parameters from the definition.
        settings: Value,
    },
}

/// Request to the model.
#[derive(Debug, Clone, PartialEq)]
pub struct Request {
    /// Index in [`Task::documents`].
    pub document: usize,
    /// Index among the requests for the document.
    pub index: usize,
    pub kind: RequestKind,
    /// Number of times to repeat the request.
    pub repeats: usize,
}

/// Task definition together with its documents.
#[derive(Debug, Clone)]
pub struct Task {
    pub definition: Definition,
    /// Number of documents in the split before any limit is applied.
    pub original: usize,
    /// Evaluated documents in split order.
    pub documents: Vec<Value>,
    /// Locations of the documents, for error messages. Empty if the task was built by [`Task::with_documents`].
    places: Vec<String>,
    pub(crate) columns: Columns,
    /// Whether each choice has its own context, as determined by the first document.
    pub(crate) has_several_contexts: bool,
    /// Whether documents may have several correct answers, as determined by the first document.
    pub(crate) has_several_targets: bool,
}

impl Task {
    /// Builds a task from all rows of the evaluated split. The first document determines whether documents have several
    /// contexts or targets, as in lm-evaluation-harness.
    ///
    /// # Errors
    /// Fails if there are no documents or the first one lacks required fields.
    pub fn new(definition: Definition, rows: &dyn Rows) -> Result<Self> {
        Self::with_limit(definition, rows, None)
    }

    /// Builds a task from the first rows of the evaluated split, up to a limit. Rows beyond the limit are parsed but
    /// not checked.
    ///
    /// # Errors
    /// Fails in the same cases as [`Task::new`], or if a row lacks a required column.
    pub fn with_limit(definition: Definition, rows: &dyn Rows, limit: Option<DocumentLimit>) -> Result<Self> {
        let rows = filtered_rows(&definition, rows, definition.evaluated_split())?;
        Self::from_rows(definition, rows, limit)
    }

    /// Builds a task from rows of the evaluated split, which must already be filtered by `keep_rows`. Uses only the
    /// first rows, up to `limit`.
    ///
    /// # Errors
    /// Fails in the same cases as [`Task::with_limit`].
    pub fn from_rows(definition: Definition, mut rows: Vec<Row>, limit: Option<DocumentLimit>) -> Result<Self> {
        let original = rows.len();
        rows.truncate(limit.map_or(original, |limit| limit.apply(original)));
        let prepared = prepare_rows(&definition, rows)?;
        let (places, documents) = prepared.into_iter().map(|row| (row.location, row.value)).unzip();
        Self::from_prepared(definition, documents, places, original)
    }

    /// Builds a task from prepared documents of the evaluated split, or from a prefix of them.
    ///
    /// # Errors
    /// Fails in the same cases as [`Task::new`].
    pub fn with_documents(definition: Definition, documents: Vec<Value>) -> Result<Self> {
        let original = documents.len();
        Self::from_prepared(definition, documents, Vec::new(), original)
    }

    /// Determines the field types from the first document, and checks its choices and answer.
    fn from_prepared(
        definition: Definition,
        documents: Vec<Value>,
        places: Vec<String>,
        original: usize,
    ) -> Result<Self> {
        let split = definition.evaluated_split();
        let place = |error: Error| error.at(location_of(&definition, &places, 0));
        let Some(first) = documents.first() else {
            return Err(
                Error::bad_input("the task has no documents").at(format!("task {}, split {split}", definition.name))
            );
        };
        let Value::Map(pairs) = first else {
            return Err(place(Error::bad_input("a row is not a map").found(first.repr())));
        };
        let names = pairs.iter().map(|(name, _)| name.text()).collect();
        let columns = Columns { names, choices: definition.choices.is_some() };
        let text = columns.text(&definition.text, first).map_err(place)?;
        let target = columns.target(&definition.target, first).map_err(place)?;
        let mut has_several_contexts = false;
        if let Some(field) = &definition.choices {
            let choices = columns.choices(field, first).map_err(place)?;
            has_several_contexts = text.as_int().is_some();
            if let Some(number) = target.as_int().filter(|number| choice_at(&choices, *number).is_none()) {
                let error = Error::bad_input("the answer is not the index of a choice");
                return Err(place(error.expected(format!("0 to {}", choices.len() - 1)).found(number)));
            }
            if let Some(odd) = choices.iter().find(|one| one.as_text().is_none_or(str::is_empty)) {
                return Err(place(Error::bad_input("a choice is empty or not text").found(odd.repr())));
            }
        }
        let has_several_targets = matches!(target, Value::List(_));
        Ok(Self { columns, has_several_contexts, has_several_targets, original, documents, places, definition })
    }

    /// Builds all requests, document by document.
    ///
    /// # Errors
    /// Fails if a document lacks required fields, there are too few examples, or the chat template fails.
    pub fn requests(&self, rows: &dyn Rows, settings: &PromptSettings<'_>) -> Result<Vec<Request>> {
        let mut requests = Vec::new();
        self.for_each_request(rows, settings, |some| requests.extend(some))?;
        Ok(requests)
    }

    /// Renders all requests and gold answers and discards them. Uses the same batches as [`Task::requests`].
    ///
    /// # Errors
    /// Fails in the same cases as [`Task::requests`]. Gold answers that cannot be rendered are ignored, because not
    /// every score needs them.
    pub fn dry_run(&self, rows: &dyn Rows, settings: &PromptSettings<'_>) -> Result<()> {
        self.for_each_request(rows, settings, drop)?;
        self.documents.par_iter().enumerate().for_each(|(at, document)| {
            self.target(document).ok();
            if self.definition.choices.is_some() {
                self.solution(at).ok();
            }
            activity::record_finish();
        });
        Ok(())
    }

    /// Checks the number of answers and the labels, then passes the requests for each document to `visit` in order.
    fn for_each_request(
        &self,
        rows: &dyn Rows,
        settings: &PromptSettings<'_>,
        mut visit: impl FnMut(Vec<Request>),
    ) -> Result<()> {
        let definition = &self.definition;
        self.check_answers()?;
        self.check_labels()?;
        let shots = definition.shots(settings.shots);
        let mut pool = FewShotPool::new(
            if shots > 0 { self.example_documents(rows)? } else { Vec::new() },
            settings.seed,
            definition.examples.first,
        );
        let all: Vec<usize> = (0..self.documents.len()).collect();
        for batch in all.chunks(BATCH_DOCUMENTS) {
            // Sampling is sequential because documents share the random state, whereas each document is rendered
            // independently.
            let drawn = batch.iter().map(|at| {
                // Exclude the document itself if the example split and the test split have the same name or are both
                // unset.
                let excluded = (definition.examples.split == definition.test).then_some(&self.documents[*at]);
                (*at, if shots > 0 { pool.sample(shots, excluded) } else { Ok(Vec::new()) })
            });
            let drawn: Vec<(usize, Result<Vec<Value>>)> = drawn.collect();
            // Collect all results first, so that the error of the first failing document is reported.
            let results: Vec<Result<Vec<Request>>> = drawn
                .into_par_iter()
                .map(|(at, examples)| {
                    let requests = self.build_requests(at, examples, settings);
                    requests.inspect(|_| activity::record_finish()).map_err(|error| error.at(self.place(at)))
                })
                .collect();
            for document_requests in results {
                visit(document_requests?);
            }
        }
        Ok(())
    }

    /// Builds the requests for one document.
    fn build_requests(
        &self,
        at: usize,
        examples: Result<Vec<Value>>,
        settings: &PromptSettings<'_>,
    ) -> Result<Vec<Request>> {
        let document = &self.documents[at];
        let field = self.definition.choices.as_ref();
        let choices = field.map(|field| self.columns.choices(field, document)).transpose()?;
        let contexts = self.build_contexts(document, &examples?, choices.as_deref(), settings)?;
        let kinds = self.build_request_kinds(document, contexts, choices.as_deref(), settings.chat.is_some())?;
        let kinds = (0..).zip(self.check_prompts(kinds, settings)?);
        Ok(kinds.map(|(index, kind)| Request { document: at, index, kind, repeats: self.definition.repeats }).collect())
    }

    /// Rejects prompts that are too long.
    fn check_prompts(&self, kinds: Vec<RequestKind>, settings: &PromptSettings<'_>) -> Result<Vec<RequestKind>> {
        for kind in &kinds {
            let bytes = match kind {
                RequestKind::LogLikelihood { context, continuation } => context.len() + continuation.len(),
                RequestKind::Rolling { text } => text.len(),
                RequestKind::Generate { context, .. } => context.len(),
            };
            check_text(bytes).map_err(|error| match settings.chat {
                Some(chat) => error.at(format!("a prompt from {}", chat.location())),
                None => error.at(format!("a prompt from {}", self.definition.location)),
            })?;
        }
        Ok(kinds)
    }

    /// Returns an error for each document without a label. Many test splits on the Hub have the label -1 in every row.
    /// Skips documents whose choices or answer cannot be evaluated.
    fn label_errors(&self) -> Vec<Error> {
        let Some(field) = &self.definition.choices else { return Vec::new() };
        self.documents
            .iter()
            .enumerate()
            .filter_map(|(at, document): (usize, &Value)| {
                let choices = self.columns.choices(field, document).ok()?;
                let answer = self.gold(document).ok()?;
                check_label(Some(&choices), &answer).err().map(|error| error.at(self.place(at)))
            })
            .collect()
    }

    /// Rejects tasks in which no document has a label. If only some labels are missing, the documents without one are
    /// scored as wrong, as in lm-eval (see [`Task::unlabeled`]).
    fn check_labels(&self) -> Result<()> {
        let mut errors = self.label_errors();
        if errors.is_empty() || errors.len() < self.documents.len() { Ok(()) } else { Err(errors.swap_remove(0)) }
    }

    /// Describes how many documents have no label, and where the first one is. Returns `None` if all have labels.
    pub fn unlabeled(&self) -> Option<String> {
        let errors = self.label_errors();
        let first = errors.first()?.parts().location.clone()?;
        let count = errors.len();
        let all = self.documents.len();
        let verb = if count == 1 { "has" } else { "have" };
        Some(format!(
            "{count} of {all} documents {verb} no label and count as wrong, as in lm-eval; the first is {first}"
        ))
    }

    /// Rejects tasks with more than [`MAX_ANSWERS`] answers.
    fn check_answers(&self) -> Result<()> {
        let definition = &self.definition;
        match self.documents.len().checked_mul(definition.repeats) {
            Some(0..=MAX_ANSWERS) => Ok(()),
            _ => Err(Error::bad_input("`repeats` is too large")
                .at(format!("task {}, {}", definition.name, definition.location))
                .expected(format!("at most {MAX_ANSWERS} answers for all documents"))
                .found(format!("{} documents × {}", self.documents.len(), definition.repeats))),
        }
    }

    /// Returns the target of a document, as recorded in the sample logs of lm-evaluation-harness.
    ///
    /// # Errors
    /// Fails if the target cannot be evaluated.
    pub fn target(&self, document: &Value) -> Result<Value> {
        self.columns.target(&self.definition.target, document)
    }

    /// Returns the location of a document for error messages, such as `task arc_easy, test.jsonl:3`. `tools/tiny` also
    /// calls this method.
    pub fn place(&self, document: usize) -> String {
        location_of(&self.definition, &self.places, document)
    }

    /// Returns the choices of a document and the correct answer.
    ///
    /// # Errors
    /// Fails if the choices or the answer cannot be evaluated, or if the task has no choices.
    pub fn solution(&self, document: usize) -> Result<(Vec<Value>, Value)> {
        let definition = &self.definition;
        let row = &self.documents[document];
        let field = definition.choices.as_ref().ok_or_else(|| Error::job("the task has no choices"))?;
        let choices = self.columns.choices(field, row);
        choices.and_then(|choices| Ok((choices, self.gold(row)?))).map_err(|error| error.at(self.place(document)))
    }

    /// Returns the correct choice of a document as an index or text, or a list of all correct choices.
    pub(crate) fn gold(&self, document: &Value) -> Result<Value> {
        match self.has_several_contexts {
            true => self.columns.text(&self.definition.text, document),
            false => self.columns.target(&self.definition.target, document),
        }
    }
}

fn location_of(definition: &Definition, places: &[String], document: usize) -> String {
    let place = places.get(document).filter(|place| !place.is_empty());
    format!("task {}, {}", definition.name, place.cloned().unwrap_or_else(|| format!("document {}", document + 1)))
}
