//! Answer key of a task, which is stored with its tokens: the correct choices, or the documents of a user-defined task.

use std::ops::Range;
use std::sync::Arc;

use ghostlab_definitions::metric::Output;
use ghostlab_definitions::results::{StandardError, score_task};
use ghostlab_definitions::{Answer, Definition, Task, Value};
use serde::{Deserialize, Serialize};

use crate::error::{Error, Result};
use crate::evaluate::choices::scores_of_choices;
use crate::generate::End;
use crate::pipeline::env::backbone::{EvalTarget, Evaluation};
use crate::pipeline::stage::task_scores::{Answers, TaskScores};
use crate::pipeline::stage::{from_json, generations, scores};
use crate::tasks::{ScoredTask, Solutions};
use ghostlab_store::{Lookup, Store, StoredObject};

/// Payload that contains the correct choices of a built-in task.
pub(super) const SOLUTIONS: &str = "sheet.json";
/// Payload that contains the documents of a user-defined task.
pub(super) const DOCUMENTS: &str = "documents.json";

/// Documents of a user-defined task, and the number of texts (choices or prompts) that are scored for each of them.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Documents {
    /// Number of documents before the limit was applied.
    pub original: usize,
    rows: Vec<Value>,
    /// Number of texts that are scored for each document.
    counts: Vec<usize>,
    /// Number of texts whose context was truncated.
    pub truncated: usize,
}

/// Data with which the answers to a task are scored.
pub enum AnswerKey {
    /// Correct choices of a built-in task.
    Builtin(Arc<Solutions>),
    /// Documents of a task whose answers are scored according to its definition.
    Defined(Documents),
}

/// Answers of a variant: scores that this process has just computed, or the stored object.
pub(crate) enum AnswerSource<'a> {
    Fresh(Vec<f64>),
    Stored(&'a StoredObject),
}

impl AnswerSource<'_> {
    fn values(self) -> Result<Vec<f64>> {
        match self {
            Self::Fresh(values) => Ok(values),
            Self::Stored(object) => scores::read(object),
        }
    }
}

impl AnswerKey {
    /// Reads the answer key of an evaluation. Returns `None` for a text, or for a task that is not stored.
    ///
    /// # Errors
    /// Fails if the object is damaged.
    pub(crate) fn read(evaluation: &Evaluation, store: &Store) -> Result<Option<Self>> {
        let (EvalTarget::Task(task), Lookup::Intact(object)) = (&evaluation.target, store.lookup(&evaluation.tokens))
        else {
            return Ok(None);
        };
        if task.defined {
            return Ok(Some(Self::Defined(from_json(&object, DOCUMENTS)?)));
        }
        let all: Solutions = from_json(&object, SOLUTIONS)?;
        let solutions = match task.how.draw {
            None => all,
            Some(draw) => all.subset(&draw.indices(all.documents())?),
        };
        Ok(Some(Self::Builtin(Arc::new(solutions))))
    }

    /// Returns the number of documents that are scored, and the total number of documents in the split.
    pub(crate) fn documents(&self) -> [usize; 2] {
        match self {
            Self::Builtin(solutions) => [solutions.documents(), solutions.original],
            Self::Defined(documents) => [documents.len(), documents.original],
        }
    }

    /// Scores the answers of a variant. `label` is the task as written in the grid. `error` computes standard errors.
    ///
    /// # Errors
    /// Fails if the answers are damaged or too few, or under the same conditions as [`score_task`].
    pub(crate) fn judge(
        &self,
        label: String,
        definition: &Definition,
        source: AnswerSource<'_>,
        error: &StandardError<'_>,
    ) -> Result<TaskScores> {
        let documents = match self {
            Self::Builtin(solutions) => {
                let answered = ScoredTask::new(solutions, scores_of_choices(&source.values()?))?;
                return Ok(TaskScores::builtin(label, answered));
            }
            Self::Defined(documents) => documents,
        };
        let (answers, non_finite) = documents.read_answers(definition, source)?;
        let mut judged = score_task(&documents.task(definition)?, &answers, error)?;
        let chosen = judged.iter_mut().map(|judged| std::mem::take(&mut judged.chosen)).collect();
        let (scores, items) = judged.into_iter().map(|judged| (judged.score, judged.items)).unzip();
        Ok(TaskScores {
            label,
            original: documents.original,
            effective: documents.len(),
            truncated: documents.truncated,
            non_finite,
            unanswered: 0,
            scores,
            answers: Answers::Defined { answers, items, chosen },
        })
    }
}

impl Documents {
    pub(super) fn new(task: &Task, counts: Vec<usize>, truncated: usize) -> Self {
        Self { original: task.original, rows: task.documents.clone(), counts, truncated }
    }

    pub fn len(&self) -> usize {
        self.rows.len()
    }

    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// Returns the task with the stored documents.
    ///
    /// # Errors
    /// Fails if the documents do not match the definition.
    pub fn task(&self, definition: &Definition) -> Result<Task> {
        Task::with_documents(definition.clone(), self.rows.clone())
    }

    /// Iterates over the documents, and yields the range of each document's texts among all scored texts.
    pub fn spans(&self) -> impl Iterator<Item = Range<usize>> {
        self.counts.iter().scan(0, |at, count| {
            *at += count;
            Some(*at - count..*at)
        })
    }

    /// Converts scores into answers, by document.
    ///
    /// # Errors
    /// Fails if the number of scores differs from the number of texts.
    pub fn answers(&self, definition: &Definition, values: &[f64]) -> Result<Vec<Vec<Answer>>> {
        let scored = scores_of_choices(values);
        let error = Error::job("wrong number of scores for a task").at(&definition.name);
        self.check_count(scored.len(), "scores", error)?;
        let each = self.spans().map(|span| match (definition.output, &scored[span]) {
            (Output::Rolling, scores) => vec![Answer::Rolling(scores.iter().map(|score| score.log_likelihood).sum())],
            (_, scores) => {
                scores.iter().map(|score| Answer::LogLikelihood(score.log_likelihood, score.greedy)).collect()
            }
        });
        Ok(each.collect())
    }

    fn check_count(&self, answers: usize, unit: &str, error: Error) -> Result<()> {
        let texts = self.counts.iter().sum::<usize>();
        match answers == texts {
            true => Ok(()),
            false => Err(error.expected(format!("{texts} {unit}")).found(format!("{answers} {unit}"))),
        }
    }

    /// Reads the answers of a variant, by document. Also returns how many documents (or generated texts) have no finite
    /// score.
    ///
    /// # Errors
    /// Fails if the object is damaged or contains the wrong number of answers.
    fn read_answers(&self, definition: &Definition, source: AnswerSource<'_>) -> Result<(Vec<Vec<Answer>>, usize)> {
        // Generated texts are always stored before they are read, so they are never a fresh source.
        let (Output::Generate, AnswerSource::Stored(object)) = (definition.output, &source) else {
            let answers = self.answers(definition, &source.values()?)?;
            let non_finite = answers.iter().filter(|answer| !answer.iter().all(is_finite_answer)).count();
            return Ok((answers, non_finite));
        };
        let texts = generations::read(object)?;
        let damaged = Error::damaged("wrong number of stored answers");
        self.check_count(texts.len(), "texts", damaged.at(object.folder().display().to_string()))?;
        let non_finite = texts.iter().filter(|generated| generated.end == End::NotFinite).count();
        let texts: Vec<&str> = texts.iter().map(|generated| generated.text.as_str()).collect();
        Ok((self.generated(definition, &texts)?, non_finite))
    }

    /// Converts generated texts into answers, by document.
    ///
    /// # Errors
    /// Fails if the number of texts differs from the number of prompts.
    pub fn generated(&self, definition: &Definition, texts: &[&str]) -> Result<Vec<Vec<Answer>>> {
        let error = Error::job("wrong number of generated texts for a task").at(&definition.name);
        self.check_count(texts.len(), "texts", error)?;
        let each = self.spans().map(|span| {
            let count = definition.repeats.max(span.len());
            vec![Answer::Texts(texts[span].iter().map(|text| (*text).to_owned()).cycle().take(count).collect())]
        });
        Ok(each.collect())
    }
}

fn is_finite_answer(answer: &Answer) -> bool {
    match answer {
        Answer::LogLikelihood(number, _) | Answer::Rolling(number) => number.is_finite(),
        Answer::Texts(_) => true,
    }
}
