//! Token ids in the store: the windows of a text, the requests of a task, or the prompts for generating answers.

use std::ops::Range;

use serde::{Deserialize, Serialize};
use serde_json::{Value, json};

use super::{Stage, from_json, to_json};
use crate::corpus::{Start, Tokenizer, Windows};
use crate::error::{Error, Result};
use crate::evaluate::choices::{MultipleChoiceEval, TokenizedChoice};
use crate::evaluate::damage_eval::DamageEval;
use crate::evaluate::generation::GenerationEval;
use crate::evaluate::{EvalSet, perplexity};
use crate::generate::{LogitsProcessors, Prompt, Sampling, Settings};
use crate::grid::Draw;
use crate::model::Load;
use crate::pipeline::env::backbone::{BackbonePlan, EvalTarget};
use crate::pipeline::identity::TextId;
use ghostlab_store::{Key, ObjectKind, Store, StoredObject};

mod answer_key;
mod make;
pub mod request_tokens;

pub(crate) use answer_key::AnswerSource;
pub use answer_key::{AnswerKey, Documents};
pub(crate) use make::{load_full_tokens, load_tokens, load_windows, tokenize_missing};

// Version 2: keys contain the file format. Version 3: windows record the number of bytes that they predict. Version 4:
// the versions of all kinds were incremented together, because keys now identify a backbone by the inputs of its
// forward pass. Keys also identify a task by the files of the backbone that it reads, and a method by its version. The
// tokens themselves are unchanged.
pub const KIND: ObjectKind = ObjectKind::new("tokens", 4);

/// Stage of tokens. All payloads are verified before use, because scores are computed from them.
pub const STAGE: Stage = Stage { inodes: |_| 7, ..Stage::new(KIND) };

const IDS: &str = "ids.u32";
const WINDOWS: &str = "windows.json";
const REQUESTS: &str = "requests.json";
/// Payload that contains the [`Load`] of the tokens for the cost model.
const LOAD: &str = "load.json";

/// Returns the key of a text's windows. `corpus` is the name of the text in the grid.
pub fn windows_key(corpus: &str, text: &TextId, tokenizer: &str, windows: &Value) -> Key {
    let TextId { bytes, format, column, rule, shards } = text;
    let mut identity = json!({
        "corpus": bytes, "format": format, "column": column, "rule": rule, "tokenizer": tokenizer, "windows": windows,
    });
    if let Some(shards) = shards {
        identity["shards"] = json!(shards);
    }
    Key::new(KIND, identity, []).with_input_name(corpus)
}

/// Returns the key of a task's requests. `identity` contains everything that the requests depend on, and `name` is
/// the name of the task in the grid.
pub fn requests_key(name: &str, identity: Value) -> Key {
    Key::new(KIND, identity, []).with_input_name(name)
}

/// Reads the [`Load`] of stored tokens for the cost model.
///
/// # Errors
/// Fails if the object is damaged.
pub fn load(object: &StoredObject) -> Result<Load> {
    let [tokens, scored, length] = from_json::<[usize; 3]>(object, LOAD)?;
    Ok(Load { tokens, scored, length })
}

fn encode_load(load: &Load) -> Vec<u8> {
    json!([load.tokens, load.scored, load.length]).to_string().into_bytes()
}

#[derive(Serialize, Deserialize)]
struct WindowsRecord {
    length: usize,
    corpus_tokens: usize,
    /// Length in bytes of the text covered by the predicted tokens.
    bytes: usize,
    /// Document and token at which each window starts.
    starts: Vec<(usize, usize)>,
}

fn encode_ids(ids: &[u32]) -> Vec<u8> {
    ids.iter().flat_map(|id| id.to_le_bytes()).collect()
}

fn read_ids(artifact: &StoredObject) -> Result<Vec<u32>> {
    Ok(bytemuck::pod_collect_to_vec::<u8, u32>(&artifact.read(IDS)?).into_iter().map(u32::from_le).collect())
}

pub fn store_windows(store: &Store, key: &Key, windows: &Windows, seconds: f64) -> Result<()> {
    let starts = windows.starts.iter().map(|start| (start.document, start.token)).collect();
    let record =
        WindowsRecord { length: windows.length, corpus_tokens: windows.corpus_tokens, bytes: windows.bytes, starts };
    let load = Load::windows(windows.ids.len(), windows.length);
    let payloads = [(IDS, encode_ids(&windows.ids)), (WINDOWS, to_json(&record)?), (LOAD, encode_load(&load))];
    put_payloads(store, key, seconds, &payloads)
}

fn put_payloads(store: &Store, key: &Key, seconds: f64, payloads: &[(&str, Vec<u8>)]) -> Result<()> {
    let payloads: Vec<(&str, &[u8])> = payloads.iter().map(|(name, bytes)| (*name, bytes.as_slice())).collect();
    store.put(key, seconds, &payloads).map(drop)
}

/// Reads the windows of a stored text.
///
/// # Errors
/// Fails if the object is damaged.
pub fn read_windows(artifact: &StoredObject) -> Result<Windows> {
    let WindowsRecord { length, corpus_tokens, bytes, starts } = from_json(artifact, WINDOWS)?;
    let starts: Vec<Start> = starts.into_iter().map(|(document, token)| Start { document, token }).collect();
    let windows = Windows { ids: read_ids(artifact)?, length, starts, corpus_tokens, bytes };
    check_record(artifact, windows.length > 0 && windows.ids.len() == windows.length * windows.count())?;
    Ok(windows)
}

/// Returns the numbers of windows, tokens and predicted bytes in a stored text.
///
/// # Errors
/// Fails if the object is damaged.
pub fn extent(artifact: &StoredObject) -> Result<(usize, usize, usize)> {
    let WindowsRecord { corpus_tokens, starts, bytes, .. } = from_json(artifact, WINDOWS)?;
    Ok((starts.len(), corpus_tokens, bytes))
}

fn check_record(artifact: &StoredObject, is_consistent: bool) -> Result<()> {
    if is_consistent {
        return Ok(());
    }
    Err(Error::damaged("stored tokens do not match their record").at(artifact.folder().display().to_string()))
}

/// Token ids in the requests of a task.
pub struct TaskTokens {
    ids: Vec<u32>,
    /// Ranges in `ids` of each input and continuation, by document and choice.
    ranges: Vec<Vec<[Range<usize>; 2]>>,
}

/// Stores the requests of a task: their token ids, and the lengths of inputs and continuations. `answer_key` is the
/// name and content of the payload with which answers are scored.
fn store_requests(
    target: request_tokens::TokensTarget<'_>,
    (ids, lengths): (Vec<u32>, &Vec<Vec<[usize; 2]>>),
    answer_key: (&str, Vec<u8>),
    seconds: f64,
) -> Result<()> {
    let tokens = TaskTokens { ranges: ranges_from_lengths(lengths), ids };
    let eval_set = MultipleChoiceEval::new(tokens.choices(), &target.backbone.config, 1)?;
    let load = eval_set.load(&(0..eval_set.chunks()).collect::<Vec<_>>());
    let payloads =
        [(IDS, encode_ids(&tokens.ids)), (REQUESTS, to_json(lengths)?), answer_key, (LOAD, encode_load(&load))];
    put_payloads(target.store, target.key, seconds, &payloads)
}

/// Converts the lengths of inputs and continuations into consecutive ranges of token ids.
fn ranges_from_lengths(lengths: &[Vec<[usize; 2]>]) -> Vec<Vec<[Range<usize>; 2]>> {
    let mut at = 0;
    let mut next = |length: usize| {
        at += length;
        at - length..at
    };
    lengths
        .iter()
        .map(|length| length.iter().map(|[input, continuation]| [next(*input), next(*continuation)]).collect())
        .collect()
}

impl TaskTokens {
    /// Reads the stored requests of a task.
    ///
    /// # Errors
    /// Fails if the object is damaged.
    pub fn read(artifact: &StoredObject) -> Result<Self> {
        let lengths: Vec<Vec<[usize; 2]>> = from_json(artifact, REQUESTS)?;
        let tokens = Self { ids: read_ids(artifact)?, ranges: ranges_from_lengths(&lengths) };
        let end = tokens.ranges.iter().flatten().last().map_or(0, |[_, continuation]| continuation.end);
        check_record(artifact, end == tokens.ids.len())?;
        Ok(tokens)
    }

    pub fn choices(&self) -> Vec<Vec<TokenizedChoice<'_>>> {
        self.ranges
            .iter()
            .map(|choices| {
                choices
                    .iter()
                    .map(|[input, continuation]| TokenizedChoice {
                        input: &self.ids[input.clone()],
                        continuation: &self.ids[continuation.clone()],
                    })
                    .collect()
            })
            .collect()
    }
}

/// Returns the error for a sample of generated answers, which grids cannot request.
fn generation_draw_error() -> Error {
    Error::job("cannot draw a subset of generated answers")
}

/// Stored tokens of a text, of likelihood requests, or of prompts for generation.
pub enum Text {
    Windows(Windows),
    Task(TaskTokens),
    Generation(Box<Prompts>),
}

impl Text {
    /// Returns the number of windows or documents.
    pub fn item_count(&self) -> usize {
        match self {
            Self::Windows(windows) => windows.count(),
            Self::Task(tokens) => tokens.ranges.len(),
            Self::Generation(prompts) => prompts.count(),
        }
    }

    /// Returns the number of scored tokens in each choice of a task. Empty for windows and prompts.
    pub(crate) fn scored_tokens(&self) -> Vec<usize> {
        match self {
            Self::Task(tokens) => tokens.ranges.iter().flatten().map(|[_, continuation]| continuation.len()).collect(),
            Self::Windows(_) | Self::Generation(_) => Vec::new(),
        }
    }

    /// Returns, for each drawn window or document, the range of its values among all scores. A window has one value,
    /// and a choice has two.
    ///
    /// # Errors
    /// Propagates errors from [`Draw::indices`].
    pub(crate) fn drawn_value_ranges(&self, draw: Draw) -> Result<Vec<Range<usize>>> {
        let mut at = 0;
        let mut next = |count: usize| {
            at += count;
            at - count..at
        };
        let all: Vec<Range<usize>> = match self {
            Self::Windows(windows) => (0..windows.count()).map(|_| next(1)).collect(),
            Self::Task(tokens) => tokens.ranges.iter().map(|choices| next(2 * choices.len())).collect(),
            Self::Generation(_) => return Err(generation_draw_error()),
        };
        Ok(draw.indices(all.len())?.into_iter().map(|item| all[item].clone()).collect())
    }

    /// Returns the drawn windows or documents, in the order in which they were drawn.
    ///
    /// # Errors
    /// Fails for prompts. Also propagates errors from [`Draw::indices`].
    pub fn subset(self, draw: Draw) -> Result<Self> {
        let drawn = draw.indices(self.item_count())?;
        Ok(match self {
            Self::Windows(all) => Self::Windows(Windows {
                ids: drawn.iter().flat_map(|&index| all.window(index)).copied().collect(),
                starts: drawn.iter().map(|&index| all.starts[index]).collect(),
                // The number of bytes is not needed for a subset.
                bytes: 0,
                ..all
            }),
            Self::Task(TaskTokens { ids, ranges }) => {
                Self::Task(TaskTokens { ids, ranges: drawn.iter().map(|&index| ranges[index].clone()).collect() })
            }
            Self::Generation(_) => return Err(generation_draw_error()),
        })
    }

    /// Returns these tokens as an evaluation set with the batch size of the backbone.
    ///
    /// # Errors
    /// Fails if a choice does not fit in the context of the backbone, or if the operators in its folder cannot be read.
    pub(crate) fn eval_set(&self, backbone: &BackbonePlan, target: &EvalTarget) -> Result<Box<dyn EvalSet + '_>> {
        let batch_tokens = backbone.batch_tokens;
        Ok(match self {
            Self::Windows(windows) => match target.read_reference(backbone)? {
                Some(dense) => Box::new(DamageEval::new(windows, batch_tokens, dense)),
                None => Box::new(perplexity::PerplexityEval::new(windows, batch_tokens)),
            },
            Self::Task(tokens) => Box::new(MultipleChoiceEval::new(tokens.choices(), &backbone.config, batch_tokens)?),
            Self::Generation(prompts) => Box::new(prompts.eval_set()),
        })
    }
}

const PROMPTS: &str = "prompts.json";

/// Prompts for which answers are generated, and the tokenizer that decodes the answers.
pub struct Prompts {
    prompts: Vec<Prompt>,
    settings: Settings,
    tokenizer: Tokenizer,
}

/// Stored form of prompts and generation settings, without the token ids of the prompts.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptsRecord {
    /// Identity and number of tokens for each prompt. The identity seeds the prompt's random number generator.
    prompts: Vec<(String, usize)>,
    max_new_tokens: usize,
    context: usize,
    stops: Vec<String>,
    end_of_text: Vec<u32>,
    #[serde(default, skip_serializing_if = "LogitsProcessors::is_empty")]
    processors: LogitsProcessors,
    sampling: Option<Sampling>,
}

impl Prompts {
    pub(super) fn new(prompts: Vec<Prompt>, settings: Settings, tokenizer: Tokenizer) -> Self {
        Self { prompts, settings, tokenizer }
    }

    pub(crate) fn count(&self) -> usize {
        self.prompts.len()
    }

    pub(crate) fn eval_set(&self) -> GenerationEval<'_> {
        GenerationEval::new(&self.prompts, self.settings.clone(), &self.tokenizer)
    }

    /// Stores the prompts in one object with the given additional payloads.
    pub(super) fn store(
        &self,
        store: &Store,
        key: &Key,
        extra_payloads: Vec<(&str, Vec<u8>)>,
        seconds: f64,
    ) -> Result<()> {
        let Settings { max_new_tokens, context, stops, end_of_text, processors, sampling, .. } = &self.settings;
        let record = PromptsRecord {
            prompts: self.prompts.iter().map(|prompt| (prompt.identity.clone(), prompt.ids.len())).collect(),
            max_new_tokens: *max_new_tokens,
            context: *context,
            stops: stops.clone(),
            end_of_text: end_of_text.clone(),
            processors: processors.clone(),
            sampling: *sampling,
        };
        let all: Vec<u32> = self.prompts.iter().flat_map(|prompt| prompt.ids.iter().copied()).collect();
        let eval_set = self.eval_set();
        let load = eval_set.load(&(0..eval_set.chunks()).collect::<Vec<_>>());
        let files = [(IDS, encode_ids(&all)), (PROMPTS, to_json(&record)?), (LOAD, encode_load(&load))];
        put_payloads(store, key, seconds, &files.into_iter().chain(extra_payloads).collect::<Vec<_>>())
    }

    /// Reads stored prompts. `cache_bytes` limits the size of the KV cache.
    ///
    /// # Errors
    /// Fails if the object is damaged.
    pub(super) fn read(object: &StoredObject, tokenizer: Tokenizer, cache_bytes: u64) -> Result<Self> {
        let PromptsRecord { prompts, max_new_tokens, context, stops, end_of_text, processors, sampling } =
            from_json(object, PROMPTS)?;
        let ids = read_ids(object)?;
        check_record(object, ids.len() == prompts.iter().map(|(_, length)| length).sum::<usize>())?;
        let mut rest = ids.as_slice();
        let prompts = prompts.into_iter().map(|(identity, length)| {
            let (head, later) = rest.split_at(length);
            rest = later;
            Prompt { identity, ids: head.to_vec() }
        });
        let prompts = prompts.collect();
        let plain = Settings::greedy(max_new_tokens, context);
        let settings = Settings { stops, end_of_text, processors, sampling, cache_bytes, ..plain };
        Ok(Self { prompts, settings, tokenizer })
    }
}
