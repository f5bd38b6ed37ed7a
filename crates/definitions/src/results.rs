//! Scoring of model answers.

use ghostlab_core::error::{Error, Result};
use ghostlab_core::tasks::python::is_space;

use crate::aggregate::{Aggregation, Item, TaskScore, aggregate_group};
use crate::library::Group;
use crate::metric::{Kind, Metric, Output};
use crate::prompt::choice_at;
use crate::task::Task;
use crate::value::Value;

/// Model answer to a request.
#[derive(Debug, Clone, PartialEq)]
pub enum Answer {
    /// Log-likelihood of a continuation, and whether the continuation is the greedy output.
    LogLikelihood(f64, bool),
    /// Log-likelihood of a text.
    Rolling(f64),
    /// Generated texts, one per repeat.
    Texts(Vec<String>),
}

/// Score of a task or group.
#[derive(Debug, Clone, PartialEq)]
pub struct Score {
    pub metric: String,
    /// Name of the filter pipeline.
    pub filter: String,
    pub score: f64,
    /// Standard error. `None` where lm-evaluation-harness reports `N/A`.
    pub error: Option<f64>,
    pub documents: usize,
}

/// Score, with the metric's value for each document.
#[derive(Debug, Clone, PartialEq)]
pub struct TaskScoreWithItems {
    pub score: Score,
    /// Values of the metric, one per document.
    pub items: Vec<Item>,
    /// Answers for which the values were computed, one per document ([`MetricItems::chosen`]).
    pub chosen: Vec<Value>,
}

/// Function that computes the standard error of an aggregate from its items.
pub type StandardError<'a> = dyn Fn(Aggregation, &[Item]) -> Result<Option<f64>> + 'a;

/// Computes the scores of a task, with per-document items. `documents` contains the answers for each document, in
/// request order. Standard errors come from the callback `error`, so that callers can cache slow ones.
///
/// # Errors
/// Fails in the same cases as [`metric_items`], or if an aggregate or its standard error cannot be computed.
pub fn score_task(
    task: &Task,
    documents: &[Vec<Answer>],
    error: &StandardError<'_>,
) -> Result<Vec<TaskScoreWithItems>> {
    let all = metric_items(task, &documents.iter().map(Vec::as_slice).enumerate())?;
    all.into_iter()
        .map(|MetricItems { metric, filter, items, chosen }| {
            let aggregated = metric.aggregation.score(&items);
            let (value, error) = aggregated
                .and_then(|value| Ok((value, error(metric.aggregation, &items)?)))
                .map_err(|error| error.at(format!("task {}, metric {}", task.definition.name, metric.kind.name())))?;
            let score = Score {
                metric: metric.kind.name().to_owned(),
                filter: filter.to_owned(),
                score: value,
                error,
                documents: items.len(),
            };
            Ok(TaskScoreWithItems { score, items, chosen })
        })
        .collect()
}

/// Items for one metric and filter pipeline, before aggregation.
#[derive(Debug, Clone)]
pub struct MetricItems<'a> {
    pub metric: &'a Metric,
    /// Name of the filter pipeline.
    pub filter: &'a str,
    /// One item per document.
    pub items: Vec<Item>,
    /// One answer per document: the index of the chosen choice, the filtered text without what `exact_match` ignores,
    /// or whether each continuation is the greedy output. `None` for the log-likelihood of a complete text.
    pub chosen: Vec<Value>,
}

/// Computes the items for every metric and filter pipeline. `documents` yields the index of each document and the
/// answers for it. All filtering and per-document scoring happens here.
///
/// # Errors
/// Fails if a document does not exist, its answers have the wrong type or number, or a filter or metric rejects them.
pub fn metric_items<'a, 'b>(
    task: &'a Task,
    documents: &(impl Iterator<Item = (usize, &'b [Answer])> + Clone),
) -> Result<Vec<MetricItems<'a>>> {
    let definition = &task.definition;
    let mut all = Vec::new();
    for pipeline in &definition.filters {
        let mut scored: Vec<(Vec<Item>, Vec<Value>)> = vec![(Vec::new(), Vec::new()); definition.metrics.len()];
        for (index, document_answers) in documents.clone() {
            let document = task.documents.get(index).ok_or_else(|| {
                Error::bad_input("answer for an unknown document")
                    .at(format!("task {}", definition.name))
                    .expected(format!("a document index below {}", task.documents.len()))
                    .found(index)
            })?;
            let document_items = match (definition.output, document_answers) {
                (Output::Generate, [Answer::Texts(texts)]) => {
                    let texts = Value::List(texts.iter().map(|text| Value::from(&**text)).collect());
                    pipeline.apply(texts, document).and_then(|result| score_generated(task, document, &result))
                }
                (Output::Generate, _) => Err(unexpected_answers_error(document_answers)),
                _ => score_likelihoods(task, document, document_answers),
            };
            let document_items = document_items.map_err(|error| error.at(task.place(index)))?;
            for ((items, chosen), (item, answer)) in scored.iter_mut().zip(document_items) {
                items.push(item);
                chosen.push(answer);
            }
        }
        let filter = pipeline.name.as_str();
        let metrics = definition.metrics.iter().zip(scored);
        all.extend(metrics.map(|(metric, (items, chosen))| MetricItems { metric, filter, items, chosen }));
    }
    Ok(all)
}

/// Computes the scores of a group from the scores of its tasks. Tasks without the metric are skipped.
pub fn group_scores(group: &Group, scores_of: &dyn Fn(&str) -> Vec<Score>) -> Vec<Score> {
    let tasks: Vec<Vec<Score>> = group.tasks.iter().map(|task| scores_of(task)).collect();
    let mut scores = Vec::new();
    for metric in &group.metrics {
        let mut filters: Vec<String> = metric.filters.clone().unwrap_or_else(|| {
            let all = tasks.iter().flatten().filter(|score| score.metric == metric.metric);
            all.map(|score| score.filter.clone()).collect()
        });
        if metric.filters.is_none() {
            filters.sort();
            filters.dedup();
        }
        for filter in filters {
            let parts: Vec<TaskScore> = tasks
                .iter()
                .filter_map(|scores| {
                    let found = scores.iter().find(|score| score.metric == metric.metric && score.filter == filter)?;
                    // lm-evaluation-harness uses the document count of the task's last metric.
                    let documents = scores.last().map_or(0, |last| last.documents);
                    Some(TaskScore { score: found.score, error: found.error, documents })
                })
                .collect();
            if let Some((score, error)) = aggregate_group(&parts, metric) {
                let documents = parts.iter().map(|part| part.documents).sum();
                scores.push(Score { metric: metric.metric.clone(), filter, score, error, documents });
            }
        }
    }
    scores
}

fn unexpected_answers_error(answers: &[Answer]) -> Error {
    Error::bad_input("the answers have the wrong type for the task").found(format!("{answers:?}"))
}

/// Value of a metric for one document, and the answer that it was computed from.
type ItemAnswer = (Item, Value);

fn score_likelihoods(task: &Task, document: &Value, answers: &[Answer]) -> Result<Vec<ItemAnswer>> {
    let definition = &task.definition;
    match (definition.output, answers) {
        (Output::LogLikelihood, [Answer::LogLikelihood(likelihood, greedy)]) => Ok(definition
            .metrics
            .iter()
            .map(|metric| match metric.kind {
                Kind::Perplexity => Item::Number(*likelihood),
                _ => Item::hit(*greedy),
            })
            .map(|item| (item, Value::Bool(*greedy)))
            .collect()),
        (Output::Rolling, [Answer::Rolling(likelihood)]) => {
            let text = task.columns.target(&definition.target, document)?.text();
            // Count words like `re.split(r"\s+")`, where leading or trailing whitespace adds an empty word.
            let mut words = 1;
            let mut blank = false;
            for c in text.chars() {
                words += usize::from(is_space(c) && !blank);
                blank = is_space(c);
            }
            Ok(definition
                .metrics
                .iter()
                .map(|metric| {
                    Item::Weighted(
                        *likelihood,
                        (if metric.kind == Kind::WordPerplexity { words } else { text.len() }) as f64,
                    )
                })
                .map(|item| (item, Value::None))
                .collect())
        }
        (Output::MultipleChoice, _) => score_choices(task, document, answers),
        _ => Err(unexpected_answers_error(answers)),
    }
}

fn score_choices(task: &Task, document: &Value, answers: &[Answer]) -> Result<Vec<ItemAnswer>> {
    let definition = &task.definition;
    let Some(field) = &definition.choices else { return Err(unexpected_answers_error(answers)) };
    let texts = task.columns.choices(field, document)?;
    let texts: Vec<&str> = texts
        .iter()
        .map(|text| text.as_text().ok_or_else(|| Error::bad_input("a choice is not text").found(text.repr())))
        .collect::<Result<_>>()?;
    let pairs: Option<Vec<(f64, bool)>> =
        answers.iter().map(|one| if let Answer::LogLikelihood(l, g) = one { Some((*l, *g)) } else { None }).collect();
    let count = texts.len();
    let pairs = pairs
        .filter(|pairs| pairs.len() == count || pairs.len() == 2 * count)
        .ok_or_else(|| unexpected_answers_error(answers))?;
    let gold = task.gold(document)?;
    let scored = ScoredChoices {
        task,
        likelihoods: pairs[..count].iter().map(|pair| pair.0).collect(),
        bare: pairs.get(count..2 * count),
        greedy: pairs.iter().map(|pair| Value::Bool(pair.1)).collect(),
        golds: gold_indices(task, &texts, &gold)?,
        texts: &texts,
        gold: &gold,
        answers,
    };
    definition.metrics.iter().map(|metric| scored.item(metric.kind)).collect()
}

/// Returns the indices of the correct choices. An answer that is not among the choices becomes -100.
fn gold_indices(task: &Task, texts: &[&str], gold: &Value) -> Result<Vec<i64>> {
    match (gold, task.has_several_targets) {
        (Value::List(items), true) => items.iter().map(|item| gold_index(task, texts, item)).collect(),
        (_, true) => Err(Error::bad_input("the first document has a list of correct answers, but this one does not")
            .found(gold.repr())),
        (gold, false) => Ok(vec![gold_index(task, texts, gold)?]),
    }
}

/// Choices of a document with their log-likelihoods.
struct ScoredChoices<'a> {
    task: &'a Task,
    texts: &'a [&'a str],
    likelihoods: Vec<f64>,
    /// Log-likelihoods of the choices without context, if the task requests them.
    bare: Option<&'a [(f64, bool)]>,
    /// Whether each choice is the greedy output.
    greedy: Vec<Value>,
    gold: &'a Value,
    /// Indices of the correct choices, or -100 for answers that are not among the choices.
    golds: Vec<i64>,
    answers: &'a [Answer],
}

impl ScoredChoices<'_> {
    fn item(&self, kind: Kind) -> Result<ItemAnswer> {
        let all = &self.likelihoods;
        let golds = &self.golds;
        let rule = self.task.definition.non_finite;
        let index = match kind {
            Kind::AccNorm => self.argmax_per_unit(|text| text.chars().count()),
            Kind::AccBytes => self.argmax_per_unit(str::len),
            Kind::AccMutualInfo => {
                let bare = self.bare.ok_or_else(|| unexpected_answers_error(self.answers))?;
                rule.best_choice(all.iter().zip(bare).map(|(with, bare)| (with - bare.0, 1)))
            }
            _ => rule.best_choice(all.iter().map(|number| (*number, 1))),
        };
        let number = index.and_then(|index| i64::try_from(index).ok()).unwrap_or(-100);
        let item = match kind {
            Kind::ExactMatch => {
                let greedy = Some(&Value::Bool(true));
                let hit = golds.iter().any(|gold| *gold != -100 && choice_at(&self.greedy, *gold) == greedy);
                return Ok((Item::hit(hit), Value::List(self.greedy.clone())));
            }
            Kind::F1 | Kind::Mcc => Item::Labels(Value::Int(self.single_gold()?), number),
            Kind::Brier => {
                let max = all.iter().copied().fold(f64::NEG_INFINITY, f64::max);
                let exponentials: Vec<f64> = all.iter().map(|number| (number - max).exp()).collect();
                let sum: f64 = exponentials.iter().sum();
                let gold = usize::try_from(self.single_gold()?).unwrap_or(usize::MAX);
                Item::Probabilities(gold, exponentials.iter().map(|power| power / sum).collect())
            }
            _ => Item::hit(index.is_some() && golds.contains(&number)),
        };
        Ok((item, Value::Int(number)))
    }

    /// Returns the index of the choice with the largest log-likelihood per unit of length.
    fn argmax_per_unit(&self, length: fn(&str) -> usize) -> Option<usize> {
        let texts = self.likelihoods.iter().zip(self.texts);
        self.task.definition.non_finite.best_choice(texts.map(|(number, text)| (*number, length(text))))
    }

    fn single_gold(&self) -> Result<i64> {
        match self.golds[..] {
            [gold] if !self.task.has_several_targets => Ok(gold),
            _ => Err(Error::bad_input("the metric requires exactly one correct answer").found(self.gold.repr())),
        }
    }
}

/// Returns the index of the gold choice. If it is not among the choices, returns -100, which is scored as wrong.
fn gold_index(task: &Task, texts: &[&str], gold: &Value) -> Result<i64> {
    match (gold.as_int(), gold.as_text()) {
        (Some(number), _) => Ok(if number < i64::try_from(texts.len()).unwrap_or(i64::MAX) { number } else { -100 }),
        (_, Some(text)) if !task.has_several_targets => Ok(texts
            .iter()
            .position(|choice| *choice == text)
            .and_then(|index| i64::try_from(index).ok())
            .unwrap_or(-100)),
        _ => {
            Err(Error::bad_input("the correct answer is neither the index nor the text of a choice").found(gold.repr()))
        }
    }
}

fn score_generated(task: &Task, document: &Value, result: &Value) -> Result<Vec<ItemAnswer>> {
    let definition = &task.definition;
    let target = task.columns.target(&definition.target, document)?;
    let gold = if let Some(field) = &definition.choices {
        let choices = task.columns.choices(field, document)?;
        let found = target.as_int().and_then(|number| choice_at(&choices, number)).cloned();
        found.ok_or_else(|| Error::bad_input("the answer is not the index of a choice").found(target.repr()))?
    } else if task.has_several_targets {
        match target {
            Value::List(items) => Value::List(items),
            // lm-evaluation-harness calls Python's `list()`, which splits a string into characters.
            Value::Text(text) => Value::List(text.chars().map(|c| Value::Text(c.to_string())).collect()),
            other => {
                return Err(Error::bad_input("the first document has a list of answers, but this one does not")
                    .found(other.repr()));
            }
        }
    } else {
        match result {
            Value::Text(_) => Value::Text(target.text()),
            Value::Int(_) => {
                target.as_int().or_else(|| target.text().parse().ok()).map(Value::Int).ok_or_else(|| {
                    Error::bad_input("a filter returns numbers, but `doc_to_target` is not a number")
                        .found(target.repr())
                })?
            }
            _ => target,
        }
    };
    let metrics = definition.metrics.iter();
    metrics.map(|metric| Ok((generated_item(task, metric, &gold, result)?, recorded_answer(metric, result)?))).collect()
}

fn generated_item(task: &Task, metric: &Metric, gold: &Value, result: &Value) -> Result<Item> {
    match (metric.kind, gold) {
        (Kind::ExactMatch, Value::List(references)) if task.has_several_targets => {
            // NumPy converts all items to strings if one is a string.
            let has_text = references.iter().any(|one| one.as_text().is_some());
            let mut hit = false;
            for one in references {
                hit |= if has_text {
                    same_text(metric, &Value::Text(one.text()), result)?
                } else {
                    same_text(metric, one, result)?
                };
            }
            Ok(Item::hit(hit))
        }
        (Kind::ExactMatch, gold) => Ok(Item::hit(same_text(metric, gold, result)?)),
        (_, Value::Text(gold)) if result.as_text().is_some() => Ok(Item::Texts(gold.clone(), result.text())),
        (kind, gold) => Err(Error::bad_input(format!("`{}` supports only one reference text", kind.name()))
            .found(format!("{} and {}", gold.repr(), result.repr()))),
    }
}

/// Returns the answer to record for a metric. For `exact_match`, ignored text is removed.
fn recorded_answer(metric: &Metric, result: &Value) -> Result<Value> {
    match (metric.kind, result) {
        (Kind::ExactMatch, Value::Text(text)) => Ok(Value::Text(metric.matching.remove_ignored(text)?)),
        _ => Ok(result.clone()),
    }
}

fn same_text(metric: &Metric, gold: &Value, result: &Value) -> Result<bool> {
    match (gold.as_text(), result.as_text()) {
        (Some(gold), Some(result)) => metric.matching.same(gold, result),
        _ => Ok(gold.as_text().is_none() && result.as_text().is_none() && gold == result),
    }
}
