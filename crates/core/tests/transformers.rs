//! Compares greedily generated tokens with those of transformers in f32, on the bundled backbones and on small random
//! models of other architectures. A larger trained backbone is included if it exists next to the checkout.
//!
//! The test is skipped with a message if `GHOSTLAB_PYTHON` does not name an interpreter with transformers. `.ci/run`
//! creates one.
#![allow(clippy::unwrap_used, reason = "a test panics on setup errors")]
#![allow(clippy::disallowed_macros, reason = "tests print what they compared")]

use std::path::PathBuf;

use crate::common;
use crate::common::{checkout, fixture, shared};
use ghostlab_core::error::Result;
use ghostlab_core::generate::{Detokenizer, Prompt, Settings, generate};
use ghostlab_core::model::{Decoder, Program, Trie};
use serde::Deserialize;

/// Prompt with its expected tokens, in the format that tools/golden_generation.py writes.
#[derive(Deserialize)]
struct ExpectedContinuation {
    prompt: Vec<u32>,
    new: Vec<u32>,
    margins: Vec<f64>,
}

/// Logit difference below which two tokens count as tied, because the order of f32 summation may then decide which
/// logit is larger.
const TIE_TOLERANCE: f64 = 1e-4;
const NEW_TOKENS: usize = 24;

/// Detokenizer that returns empty texts, because the test compares only token IDs.
struct Ids;

impl Detokenizer for Ids {
    fn decode(&self, _: &[u32], _: bool) -> Result<String> {
        Ok(String::new())
    }
}

#[test]
fn greedy_tokens_match_transformers_at_every_batch_size() {
    let Some(python) = common::python::python("transformers") else { return };
    let tiny = ["llama", "qwen3", "olmo2"].map(|name| checkout().join("data/tiny").join(name));
    let random = ["llama-gqa", "llama3-rope", "mistral", "qwen2"].map(|name| fixture(&format!("arch/{name}")));
    let mut folders: Vec<PathBuf> = tiny.into_iter().chain(random).collect();
    folders.extend(shared("real/backbone"));
    let out = tempfile::tempdir().unwrap();
    let arguments = [out.path()].into_iter().chain(folders.iter().map(PathBuf::as_path));
    common::python::run(&mut common::python::script(&python, "golden_generation.py", arguments));
    for (index, folder) in folders.iter().enumerate() {
        let text = std::fs::read(out.path().join(format!("{index}.json"))).unwrap();
        let golden: Vec<ExpectedContinuation> = serde_json::from_slice(&text).unwrap();
        let prompts: Vec<Prompt> = golden
            .iter()
            .enumerate()
            .map(|(index, golden_case)| Prompt { identity: index.to_string(), ids: golden_case.prompt.clone() })
            .collect();
        let engine = Decoder::load(folder).unwrap();
        let program = [Program::dense(engine.config().layers)];
        let mut tokens = 0;
        let mut ties = 0;
        for batch in [1, 7, 64] {
            let settings = Settings { batch, ..Settings::greedy(NEW_TOKENS, 200) };
            let ours = generate(&engine, &Trie::new(&program), &prompts, &settings, &Ids, &mut ()).unwrap();
            for (index, (ours, golden)) in ours.iter().zip(&golden).enumerate() {
                // The continuations may diverge after a tie.
                let tie = golden.margins.iter().position(|margin| *margin < TIE_TOLERANCE);
                let compared_len = tie.unwrap_or(NEW_TOKENS);
                ties += usize::from(tie.is_some());
                tokens += compared_len;
                assert_eq!(
                    ours[0].ids[..compared_len],
                    golden.new[..compared_len],
                    "{}, prompt {index}, batch {batch}",
                    folder.display()
                );
            }
        }
        println!("{}: {tokens} tokens compared, {ties} prompts up to a tie", folder.display());
        // If ties were frequent, too few tokens would be compared.
        assert!(tokens * 10 >= 9 * 3 * golden.len() * NEW_TOKENS, "{}: {tokens}", folder.display());
    }
}
