//! Tasks by definitions as tokens: what a backbone is asked, and what answers are judged by.

use std::collections::HashMap;

use ghostlab_definitions::metric::Output;
use ghostlab_definitions::results::{Judged, judged};
use ghostlab_definitions::{Answer, Ask, Definition, Request, Setting, Task, Value};
use rayon::prelude::*;
use serde::{Deserialize, Serialize};

use super::{IDS, LOAD, REQUESTS, TaskTokens, id_bytes, load_bytes, places, put};
use crate::corpus::Tokenizer;
use crate::error::{Error, Result};
use crate::evaluate::choices::{MultipleChoiceEval, scored};
use crate::evaluate::{EvalSet, TaskEncoder};
use crate::grid::DefinitionUse;
use crate::stage::payload::{from_json, to_json};
use crate::tasks::{self, DocumentLimit, Tokenised};
use crate::work::backbone::BackbonePlan;
use crate::work::inputs::Given;
use ghostlab_store::{Key, Store, StoredObject};

/// Of a definition's tokens: its documents, and which values are whose.
const DOCUMENTS: &str = "documents.json";

/// What the documents of a stored task are judged by.
#[derive(Debug, Clone, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Documents {
    /// Documents of the split, before the limit.
    pub original: usize,
    /// Those that are asked.
    rows: Vec<Value>,
    /// Of each, how many texts are scored: its requests, or the windows of its only one.
    counts: Vec<usize>,
    /// Texts whose context was cut.
    pub truncated: usize,
}

/// A definition with the rows that it evaluates.
///
/// # Errors
/// Rows that are not there, or that the definition cannot be applied to.
pub(super) fn task(given: Given<'_>, used: &DefinitionUse) -> Result<Task> {
    let of = &given.grid.definitions[&used.name];
    let files = of.files(of.definition.evaluated());
    let files: Vec<_> = files.iter().map(AsRef::as_ref).collect();
    given.inputs.guarded(&files, || Task::new(of.definition.clone(), &of.rows))
}

/// All that a backbone is asked by a definition, in the order of its documents: the one place where requests come from.
///
/// # Errors
/// As of [`Task::requests`]; a backbone without a chat template where one is to be used.
pub(crate) fn requests(
    given: Given<'_>,
    backbone: &BackbonePlan,
    used: &DefinitionUse,
    task: &Task,
) -> Result<Vec<Request>> {
    let how = &used.how;
    let of = &given.grid.definitions[&used.name];
    let chat = how.chat.map(|_| given.inputs.chat(&backbone.folder)).transpose()?;
    let limit = how.limit.map(DocumentLimit::new).transpose()?.map(|limit| limit.of(task.documents.len()));
    let setting = Setting {
        shots: how.shots,
        seed: how.seed,
        system: how.system.clone(),
        chat: chat.as_ref(),
        multiturn: how.chat.unwrap_or(true),
        limit,
    };
    let files: Vec<_> = of.example_files(how).iter().map(AsRef::as_ref).collect();
    given.inputs.guarded(&files, || task.requests(&of.rows, &setting))
}

/// Stores what a backbone is asked of likelihoods.
pub(super) fn store(
    given: Given<'_>,
    (backbone, tokenizer): (&BackbonePlan, &Tokenizer),
    (used, task): (&DefinitionUse, &Task),
    (store, key): (&Store, &Key),
    seconds: impl Fn() -> f64,
) -> Result<()> {
    let requests = requests(given, backbone, used, task)?;
    let [config, tokenizer_config] = given.inputs.configs(&backbone.folder)?;
    let encoder = TaskEncoder::new(tokenizer, &tokenizer_config, &config)?;
    let length = used.how.max_length.map_or_else(|| tasks::max_length(&config, Some(&tokenizer_config)), Ok)?;
    let of_documents: Vec<&[Request]> = requests.chunk_by(|a, b| a.document == b.document).collect();
    let tokenised = |of: &&[Request]| -> Result<Vec<Tokenised>> {
        // Nearly always all choices share one context.
        let mut known = HashMap::new();
        let mut texts = Vec::new();
        for request in *of {
            let place = |error: Error| {
                let part = format!("document {}, request {}", request.document + 1, request.index + 1);
                error.at(format!("task {}, {part}", used.name))
            };
            match &request.ask {
                Ask::LogLikelihood { context, continuation } => {
                    let texts_of = (context.as_str(), continuation.as_str());
                    texts.push(tasks::continuation(texts_of, &encoder, used.how.bos, length, &mut known).map_err(place)?);
                }
                Ask::Rolling { text } => {
                    texts.extend(tasks::rolling(text, &encoder, used.how.bos, length).map_err(place)?);
                }
                Ask::Generate { .. } => return Err(place(Error::job("a generation has no likelihood"))),
            }
        }
        Ok(texts)
    };
    let all: Vec<Result<Vec<Tokenised>>> = of_documents.par_iter().map(tokenised).collect();
    // Collected first, so that of several errors it is always the first document's that is shown.
    let all: Vec<Vec<Tokenised>> = all.into_iter().collect::<Result<_>>()?;
    let apart = task.definition.output == Output::Rolling;
    let (mut ids, mut lengths) = (Vec::new(), Vec::new());
    for of in &all {
        for text in of {
            ids.extend(&text.input_ids);
            ids.extend(&text.continuation_ids);
        }
        let own = of.iter().map(|text| [text.input_ids.len(), text.continuation_ids.len()]);
        // Windows of a text have nothing in common: each is scored by itself.
        match apart {
            true => lengths.extend(own.map(|of| vec![of])),
            false => lengths.push(own.collect()),
        }
    }
    let documents = Documents {
        original: task.documents.len(),
        rows: task.documents[..of_documents.len()].to_vec(),
        counts: all.iter().map(Vec::len).collect(),
        truncated: all.iter().flatten().filter(|text| text.truncated_left > 0).count(),
    };
    let tokens = TaskTokens { places: places(&lengths), ids };
    let choices = tokens.choices();
    let eval_set = MultipleChoiceEval::new(&choices, 1)?;
    let load = eval_set.load(&(0..eval_set.chunks()).collect::<Vec<_>>());
    let payloads = [
        (IDS, id_bytes(&tokens.ids)),
        (REQUESTS, to_json(&lengths)?),
        (DOCUMENTS, to_json(&documents)?),
        (LOAD, load_bytes(&load)),
    ];
    put(store, key, seconds(), &payloads)
}

/// What the documents of a stored task are judged by.
///
/// # Errors
/// Damage.
pub fn documents(object: &StoredObject) -> Result<Documents> {
    from_json(object, DOCUMENTS)
}

impl Documents {
    /// Documents that are asked.
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    /// Whether none is.
    pub fn is_empty(&self) -> bool {
        self.rows.is_empty()
    }

    /// The documents as their definition sees them.
    ///
    /// # Errors
    /// A definition that they are not of.
    pub fn task(&self, definition: &Definition) -> Result<Task> {
        Task::with_documents(definition.clone(), self.rows.clone())
    }

    /// The answers to each document's requests, by the values of all texts.
    ///
    /// # Errors
    /// When there are not as many values as texts.
    pub fn answers(&self, output: Output, values: &[f64]) -> Result<Vec<Vec<Answer>>> {
        let scored = scored(values);
        if scored.len() != self.counts.iter().sum::<usize>() {
            return Err(Error::job("the answers do not fit the questions")
                .expected(format!("{} scores", self.counts.iter().sum::<usize>()))
                .found(scored.len().to_string()));
        }
        let mut rest = scored.as_slice();
        let each = self.counts.iter().map(|count| {
            let (own, later) = rest.split_at(*count);
            rest = later;
            match output {
                Output::Rolling => vec![Answer::Rolling(own.iter().map(|of| of.log_likelihood).sum())],
                _ => own.iter().map(|of| Answer::LogLikelihood(of.log_likelihood, of.greedy)).collect(),
            }
        });
        Ok(each.collect())
    }

    /// What a definition makes of answers; `draws` as of [`judged`].
    ///
    /// # Errors
    /// As there.
    pub fn judge(&self, definition: &Definition, answers: &[Vec<Answer>], draws: usize) -> Result<Vec<Judged>> {
        judged(&self.task(definition)?, answers, draws)
    }
}
