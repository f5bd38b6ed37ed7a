//! Tokenizes the requests of tasks, and stores their tokens with the answer keys.

use std::collections::BTreeSet;

use ghostlab_definitions::generation::GenerationConfig;
use ghostlab_definitions::metric::Output;
use ghostlab_definitions::tokens::tokenize_requests;
use ghostlab_definitions::{PromptSettings, Request, RequestKind, Task, builtin};
use rayon::prelude::*;

use super::answer_key::{DOCUMENTS, Documents, SOLUTIONS};
use super::{Prompts, store_requests};
use crate::corpus::Tokenizer;
use crate::error::{Error, Result};
use crate::evaluate::{TaskEncoder, end_tokens};
use crate::generate::{Prompt, Sampling, Settings};
use crate::grid::EvalTask;
use crate::pipeline::env::backbone::BackbonePlan;
use crate::pipeline::env::inputs::GridInputs;
use crate::pipeline::stage::to_json;
use crate::tasks::{self, DocumentLimit, TokenizedRequest};
use ghostlab_store::{Key, Store};

/// Loads a task with the documents to evaluate.
///
/// # Errors
/// Fails if rows are missing or do not match the definition.
pub(crate) fn load_task(grid_inputs: GridInputs<'_>, eval_task: &EvalTask) -> Result<Task> {
    let data = grid_inputs.grid.task(eval_task);
    let definition = data.definition()?;
    let rows = data.rows()?;
    let files: Vec<_> = rows.evaluated(definition).iter().map(AsRef::as_ref).collect();
    let limit = eval_task.how.limit.map(DocumentLimit::new).transpose()?;
    grid_inputs.inputs.read_unchanged(&files, || Task::with_limit(definition.clone(), &*rows, limit))
}

/// Builds all requests of a task, in the order of its documents.
///
/// # Errors
/// Fails under the same conditions as [`Task::requests`], or if a chat template is required but missing.
pub(crate) fn build_requests(
    grid_inputs: GridInputs<'_>,
    backbone: &BackbonePlan,
    eval_task: &EvalTask,
    task: &Task,
) -> Result<Vec<Request>> {
    let how = &eval_task.how;
    let rows = grid_inputs.grid.task(eval_task).rows()?;
    let chat = how.chat.map(|_| grid_inputs.inputs.read_chat_template(&backbone.folder)).transpose()?;
    let settings = PromptSettings {
        shots: how.shots,
        seed: how.seed,
        system: how.system.clone(),
        chat: chat.as_ref(),
        multiturn: how.chat.unwrap_or(true),
    };
    let files: Vec<_> = rows.examples(&task.definition, how.shots).iter().map(AsRef::as_ref).collect();
    grid_inputs.inputs.read_unchanged(&files, || task.requests(&*rows, &settings))
}

/// Store key under which tokens will be stored, with the tokenizer that produces them.
#[derive(Clone, Copy)]
pub(super) struct TokensTarget<'a> {
    pub(super) grid_inputs: GridInputs<'a>,
    pub(super) backbone: &'a BackbonePlan,
    pub(super) tokenizer: &'a Tokenizer,
    pub(super) store: &'a Store,
    pub(super) key: &'a Key,
}

impl<'a> TokensTarget<'a> {
    fn task_encoder(&self, max_length: Option<usize>) -> Result<(TaskEncoder<'a>, usize)> {
        let [config, tokenizer_config] = self.grid_inputs.inputs.read_configs(&self.backbone.folder)?;
        let length = max_length.map_or_else(|| tasks::max_length(&config, Some(&tokenizer_config)), Ok)?;
        Ok((TaskEncoder::new(self.tokenizer, &tokenizer_config, &config)?, length))
    }
}

/// Tokenizes the requests of a task, and stores the tokens with the answer key.
pub(super) fn store_task(
    target: TokensTarget<'_>,
    eval_task: &EvalTask,
    task: &Task,
    seconds: impl Fn() -> f64,
) -> Result<()> {
    if task.definition.output == Output::Generate {
        return store_prompts(target, eval_task, task, seconds);
    }
    let requests = build_requests(target.grid_inputs, target.backbone, eval_task, task)?;
    let (encoder, length) = target.task_encoder(eval_task.how.max_length)?;
    let all = tokenize_requests(task, &requests, &encoder, eval_task.how.bos, length)?;
    let builtin = target.grid_inputs.grid.task(eval_task).builtin();
    let windows = task.definition.output == Output::Rolling;
    let mut ids = Vec::new();
    let mut lengths = Vec::new();
    let mut remaining = all.as_slice();
    while !remaining.is_empty() {
        // Windows and the documents of built-in tasks are scored one by one, because they share no few-shot examples or
        // other prefix.
        let count = if windows || builtin.is_some() { 1 } else { shared_document_count(remaining) };
        let (group, later) = remaining.split_at(count);
        remaining = later;
        let joined = append_ids(&mut ids, group.iter().flatten());
        match windows {
            true => lengths.extend(joined.into_iter().map(|length| vec![length])),
            false => lengths.push(joined),
        }
    }
    let answer_key = match builtin {
        Some(builtin) => (SOLUTIONS, to_json(&builtin::solutions(builtin, task, &all)?)?),
        None => {
            let truncated = all.iter().flatten().filter(|text| !text.cut_ids.is_empty()).count();
            let documents = Documents::new(task, all.iter().map(Vec::len).collect(), truncated);
            (DOCUMENTS, to_json(&documents)?)
        }
    };
    store_requests(target, (ids, &lengths), answer_key, seconds())
}

/// Appends the ids of texts to `ids`, and returns the lengths of their inputs and continuations.
fn append_ids<'a>(ids: &mut Vec<u32>, texts: impl Iterator<Item = &'a TokenizedRequest>) -> Vec<[usize; 2]> {
    texts
        .map(|text| {
            ids.extend(&text.input_ids);
            ids.extend(&text.continuation_ids);
            [text.input_ids.len(), text.continuation_ids.len()]
        })
        .collect()
}

/// Maximum number of tokens in documents that are scored together.
const MAX_SHARED_TOKENS: usize = 2048;

/// Returns how many leading documents to score together, so that their shared few-shot examples run only once.
fn shared_document_count(documents: &[Vec<TokenizedRequest>]) -> usize {
    let Some(first) = documents.first().and_then(|document| document.first()) else { return 1 };
    // Number of distinct inputs, their total length, and the length of their common prefix.
    let measure = |tokenized_texts: &[TokenizedRequest]| {
        let inputs: BTreeSet<&[u32]> = tokenized_texts.iter().map(|text| text.input_ids.as_slice()).collect();
        let shared = inputs
            .iter()
            .map(|input| input.iter().zip(&first.input_ids).take_while(|(a, b)| a == b).count())
            .min()
            .unwrap_or(0);
        (inputs.len(), inputs.iter().map(|input| input.len()).sum::<usize>(), shared)
    };
    let tokens = |(inputs, all, shared): (usize, usize, usize)| all - inputs.saturating_sub(1) * shared;
    let mut so_far = measure(&documents[0]);
    let mut count = 1;
    for document in &documents[1..] {
        let measured = measure(document);
        let with = (so_far.0 + measured.0, so_far.1 + measured.1, so_far.2.min(measured.2));
        // The texts of a single document may share a longer prefix.
        let inputs: BTreeSet<&[u32]> = document.iter().map(|text| text.input_ids.as_slice()).collect();
        let mut each = inputs.iter();
        let head = each.next().copied().unwrap_or_default();
        let alone = tokens((
            measured.0,
            measured.1,
            each.map(|input| input.iter().zip(head).take_while(|(a, b)| a == b).count()).min().unwrap_or(head.len()),
        ));
        if tokens(with) >= tokens(so_far) + alone || tokens(with) > MAX_SHARED_TOKENS {
            break;
        }
        (so_far, count) = (with, count + 1);
    }
    count
}

fn store_prompts(target: TokensTarget<'_>, eval_task: &EvalTask, task: &Task, seconds: impl Fn() -> f64) -> Result<()> {
    let requests = build_requests(target.grid_inputs, target.backbone, eval_task, task)?;
    let (encoder, context) = target.task_encoder(eval_task.how.max_length)?;
    let [config, tokenizer_config] = target.grid_inputs.inputs.read_configs(&target.backbone.folder)?;
    let generation = target.grid_inputs.inputs.read_generation_config(&target.backbone.folder, &config)?;
    generation.check_ids(target.backbone.config.vocab)?;
    let (end_of_text, end) = end_tokens(target.tokenizer, &tokenizer_config, generation.end_of_text)?;
    let GenerationConfig { until, max_tokens, sampling } = GenerationConfig::read(&task.definition.generation)?;
    if max_tokens >= context {
        return Err(Error::bad_input("the context is too short for a prompt and the new tokens")
            .at(format!("task {}", eval_task.name))
            .expected(format!("fewer than {context} new tokens (the context length)"))
            .found(format!("{max_tokens} new tokens"))
            .hint("set a smaller `max_gen_toks` in `generation_kwargs` of the definition"));
    }
    let all: Vec<Result<Vec<u32>>> = requests
        .par_iter()
        .map(|request: &Request| -> Result<Vec<u32>> {
            let RequestKind::Generate { context, .. } = &request.kind else {
                return Err(Error::job("expected a generation request, found a likelihood request"));
            };
            tasks::prompt(context, &encoder, eval_task.how.bos).map_err(|error| error.at(task.place(request.document)))
        })
        .collect();
    let all: Vec<Vec<u32>> = all.into_iter().collect::<Result<_>>()?;
    let times = |request: &Request| if sampling.is_some() { request.repeats } else { 1 };
    let prompts = requests.iter().zip(&all).flat_map(|(request, ids)| {
        let identity = move |time: usize| format!("{}.{time}", request.document);
        (0..times(request)).map(move |time| Prompt { identity: identity(time), ids: ids.clone() })
    });
    let truncated = all.iter().filter(|ids| ids.len() > context - max_tokens).count();
    let documents = Documents::new(task, requests.iter().map(times).collect(), truncated);
    let sampling = sampling.map(|sampling| Sampling {
        temperature: sampling.temperature,
        top_p: sampling.top_p,
        top_k: sampling.top_k,
        seed: eval_task.how.seed,
    });
    // Like lm-evaluation-harness, also stop at the text of the EOS token.
    let stops = until.into_iter().chain(end).collect();
    // Like lm-evaluation-harness, truncate prompts to leave space for `max_tokens`.
    let max_new_tokens = generation.max_new_tokens.unwrap_or(max_tokens);
    let plain = Settings::greedy(max_new_tokens, context - max_tokens + max_new_tokens);
    let settings = Settings { stops, end_of_text, processors: generation.processors, sampling, ..plain };
    let prompts = Prompts::new(prompts.collect(), settings, target.tokenizer.clone());
    prompts.store(target.store, target.key, vec![(DOCUMENTS, to_json(&documents)?)], seconds())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn requests(inputs: &[&[u32]]) -> Vec<TokenizedRequest> {
        inputs
            .iter()
            .map(|input| TokenizedRequest { input_ids: input.to_vec(), continuation_ids: vec![1], cut_ids: Vec::new() })
            .collect()
    }

    #[test]
    fn documents_with_common_prefix_are_grouped_if_cheaper() {
        let head: Vec<u32> = (0..50).collect();
        let a = concatenate(&head, &[60, 61]);
        let b = concatenate(&head, &[70, 71, 72]);
        let c = concatenate(&head, &[80]);
        let row = |inputs: &[&[u32]]| requests(inputs);
        assert_eq!(shared_document_count(&[row(&[&a, &a]), row(&[&b, &b]), row(&[&c])]), 3);
        let other: Vec<u32> = (100..140).collect();
        assert_eq!(shared_document_count(&[row(&[&a]), row(&[&other]), row(&[&b])]), 1);
        // If both documents were scored together, the long question of the second one would run twice.
        let long: Vec<u32> = (200..290).collect();
        let [one, two] = [[&[0][..], &long, &[1]].concat(), [&[0][..], &long, &[2]].concat()];
        assert_eq!(shared_document_count(&[row(&[&[0, 5]]), row(&[&one, &two])]), 1);
        let large: Vec<u32> = (0..2000).collect();
        assert_eq!(
            shared_document_count(&[row(&[&append_repeated(&large, 1)]), row(&[&append_repeated(&large, 2)])]),
            1,
            "too many tokens"
        );
        assert_eq!(shared_document_count(&[row(&[])]), 1);
    }

    fn concatenate(head: &[u32], rest: &[u32]) -> Vec<u32> {
        [head, rest].concat()
    }

    fn append_repeated(tokens: &[u32], token: u32) -> Vec<u32> {
        [tokens, &[token; 40]].concat()
    }
}
