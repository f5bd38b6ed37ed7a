//! Prompts that are continued, as tokens, with what ends a continuation.

use serde::{Deserialize, Serialize};

use super::{IDS, LOAD, check, id_bytes, ids, load_bytes, put};
use crate::corpus::Tokenizer;
use crate::error::Result;
use crate::evaluate::EvalSet;
use crate::evaluate::generation::GenerationEval;
use crate::generate::{Prompt, Sampling, Settings};
use crate::stage::payload::{from_json, to_json};
use ghostlab_store::{Key, Store, StoredObject};

const PROMPTS: &str = "prompts.json";

/// Prompts with the tokenizer that their continuations are read by.
pub struct Prompts {
    prompts: Vec<Prompt>,
    settings: Settings,
    tokenizer: Tokenizer,
}

/// How prompts are stored beside their ids.
#[derive(Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
struct PromptsRecord {
    /// What the draws of each depend on, and its tokens.
    prompts: Vec<(String, usize)>,
    max_new_tokens: usize,
    context: usize,
    stops: Vec<String>,
    end_of_text: Vec<u32>,
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

    /// Stores them with what else belongs to them.
    pub(super) fn store(&self, store: &Store, key: &Key, more: Vec<(&str, Vec<u8>)>, seconds: f64) -> Result<()> {
        let Settings { max_new_tokens, context, stops, end_of_text, sampling, .. } = &self.settings;
        let record = PromptsRecord {
            prompts: self.prompts.iter().map(|of| (of.identity.clone(), of.ids.len())).collect(),
            max_new_tokens: *max_new_tokens,
            context: *context,
            stops: stops.clone(),
            end_of_text: end_of_text.clone(),
            sampling: *sampling,
        };
        let all: Vec<u32> = self.prompts.iter().flat_map(|of| of.ids.iter().copied()).collect();
        let eval_set = self.eval_set();
        let load = eval_set.load(&(0..eval_set.chunks()).collect::<Vec<_>>());
        let own = [(IDS, id_bytes(&all)), (PROMPTS, to_json(&record)?), (LOAD, load_bytes(&load))];
        put(store, key, seconds, &own.into_iter().chain(more).collect::<Vec<_>>())
    }

    /// Stored prompts; `cache_bytes` of keys and values are kept while they run.
    ///
    /// # Errors
    /// Damage.
    pub(super) fn read(object: &StoredObject, tokenizer: Tokenizer, cache_bytes: u64) -> Result<Self> {
        let PromptsRecord { prompts, max_new_tokens, context, stops, end_of_text, sampling } =
            from_json(object, PROMPTS)?;
        let ids = ids(object)?;
        check(object, ids.len() == prompts.iter().map(|(_, length)| length).sum::<usize>())?;
        let mut rest = ids.as_slice();
        let prompts = prompts.into_iter().map(|(identity, length)| {
            let (own, later) = rest.split_at(length);
            rest = later;
            Prompt { identity, ids: own.to_vec() }
        });
        let prompts = prompts.collect();
        let plain = Settings::greedy(max_new_tokens, context);
        let settings = Settings { stops, end_of_text, sampling, cache_bytes, ..plain };
        Ok(Self { prompts, settings, tokenizer })
    }
}
