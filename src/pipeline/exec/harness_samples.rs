//! Requests and answers for each document, in the format of lm-evaluation-harness's `samples_TASK_….jsonl` files.

use ghostlab_definitions::aggregate::Item;
use ghostlab_definitions::filter::Pipeline;
use ghostlab_definitions::results::score_task;
use ghostlab_definitions::{Answer, Request, RequestKind, Task, Value as DefinitionValue};
use serde_json::{Map, Value, json};

use crate::error::{Error, Result};
use crate::files::sha256;
use crate::grid::Grid;
use crate::pipeline::env::inputs::GridInputs;
use crate::pipeline::env::run_env::RunEnv;
use crate::pipeline::outcome::{Answers, GridOutcome};
use crate::pipeline::plan::Plan;
use crate::pipeline::stage::tokens::request_tokens;

/// Returns the label and the samples of each task in the first cell of a grid. Only user-defined tasks have samples.
///
/// # Errors
/// Fails if the inputs have changed since the tasks were scored.
pub fn harness_samples(grid: &Grid, env: &RunEnv<'_>, outcome: &GridOutcome) -> Result<Vec<(String, Vec<Value>)>> {
    let RunEnv { store, settings, .. } = *env;
    let plan = Plan::new(grid, store, settings)?;
    let (Some(backbone), Some(result)) = (plan.backbones.first(), outcome.cells.first()) else { return Ok(Vec::new()) };
    let grid_inputs = GridInputs { grid, inputs: &plan.inputs };
    let mut samples_by_task = Vec::new();
    for measured in &result.tasks {
        let Some(scores) = &measured.sample else { continue };
        let Answers::Defined { answers, .. } = &scores.answers else { continue };
        let task = request_tokens::load_task(grid_inputs, &measured.requested)?;
        let requests = request_tokens::build_requests(grid_inputs, backbone, &measured.requested, &task)?;
        let by_document: Vec<&[Request]> = requests.chunk_by(|a, b| a.document == b.document).collect();
        if by_document.len() != answers.len() {
            return Err(Error::job("the stored answers do not match the requests")
                .at(scores.label.clone())
                .expected(format!("answers to {} documents", by_document.len()))
                .found(format!("answers to {}", answers.len())));
        }
        samples_by_task.push((scores.label.clone(), build_task_samples(&task, &by_document, answers)?));
    }
    Ok(samples_by_task)
}

/// Returns one sample per filter and document of a task. `requests` and `answers` are indexed by document.
fn build_task_samples(task: &Task, requests: &[&[Request]], answers: &[Vec<Answer>]) -> Result<Vec<Value>> {
    let metric_scores = score_task(task, answers, &|_, _| Ok(None))?;
    let mut samples = Vec::new();
    for filter in &task.definition.filters {
        for (index, (requests, answers)) in requests.iter().zip(answers).enumerate() {
            let metrics: Vec<(&str, Value)> = metric_scores
                .iter()
                .filter(|scored| scored.score.filter == filter.name)
                .map(|scored| (scored.score.metric.as_str(), scored.items.get(index).map_or(Value::Null, encode_item)))
                .collect();
            let document = &task.documents[index];
            let target = task.target(document)?.text();
            let prompt = requests.first().map_or("", |request| request_texts(request)[0]);
            let filtered =
                answers.iter().map(|answer| apply_filter(filter, answer, document)).collect::<Result<Vec<_>>>()?;
            let mut sample = json!({
                "doc_id": index,
                "doc": document,
                "target": target,
                "arguments": build_arguments(requests),
                "resps": answers.iter().map(build_responses).collect::<Vec<_>>(),
                "filtered_resps": filtered,
                "filter": filter.name,
                "metrics": metrics.iter().map(|(name, _)| *name).collect::<Vec<_>>(),
                "doc_hash": sha256::of_bytes(document.json(Some(2))),
                "prompt_hash": sha256::of_bytes(prompt),
                "target_hash": sha256::of_bytes(&target),
            });
            for (name, value) in metrics {
                sample[name] = value;
            }
            samples.push(sample);
        }
    }
    Ok(samples)
}

/// Returns the arguments of a document's requests, named as in lm-evaluation-harness.
fn build_arguments(requests: &[Request]) -> Map<String, Value> {
    requests
        .iter()
        .enumerate()
        .map(|(index, request)| {
            let [context, continuation] = request_texts(request);
            let arguments = match &request.kind {
                RequestKind::Generate { settings, .. } => json!({"arg_0": context, "arg_1": settings}),
                _ if continuation.is_empty() => json!({"arg_0": context}),
                _ => json!({"arg_0": context, "arg_1": continuation}),
            };
            (format!("gen_args_{index}"), arguments)
        })
        .collect()
}

/// Applies a filter to generated texts. Answers of other types are returned unfiltered.
fn apply_filter(filter: &Pipeline, answer: &Answer, document: &DefinitionValue) -> Result<Value> {
    match answer {
        Answer::Texts(texts) => {
            let texts = texts.iter().map(|text| DefinitionValue::Text(text.clone())).collect();
            Ok(json!(filter.apply(DefinitionValue::List(texts), document)?))
        }
        other => Ok(encode_answer(other)),
    }
}

fn request_texts(request: &Request) -> [&str; 2] {
    match &request.kind {
        RequestKind::LogLikelihood { context, continuation } => [context, continuation],
        RequestKind::Rolling { text } => [text, ""],
        RequestKind::Generate { context, .. } => [context, ""],
    }
}

fn build_responses(answer: &Answer) -> Value {
    match answer {
        Answer::Texts(texts) => json!(texts),
        other => json!([encode_answer(other)]),
    }
}

/// Encodes an answer like lm-evaluation-harness, with numbers as strings.
fn encode_answer(answer: &Answer) -> Value {
    match answer {
        Answer::LogLikelihood(likelihood, greedy) => {
            json!([format_number(*likelihood), if *greedy { "True" } else { "False" }])
        }
        Answer::Rolling(likelihood) => json!(format_number(*likelihood)),
        Answer::Texts(texts) => json!(texts),
    }
}

fn format_number(number: f64) -> String {
    DefinitionValue::Float(number).text()
}

fn encode_item(item: &Item) -> Value {
    match item {
        Item::Number(number) => json!(number),
        Item::Weighted(number, weight) => json!([number, weight]),
        Item::Labels(right, predicted) => json!([right, predicted]),
        Item::Probabilities(gold, all) => json!([gold, all]),
        Item::Texts(reference, text) => json!([reference, text]),
    }
}
