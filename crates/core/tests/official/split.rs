//! Compares the official code's f32 losses with losses computed by splitting f32 products into bf16 products.
#![allow(
    clippy::disallowed_macros,
    clippy::unwrap_used,
    reason = "a test prints why it skips, and panics on setup errors"
)]

use super::setting::{checked_evaluation_windows, layers, losses};
use crate::common::{assert_close, json, load_decoder, numbers, shared};
use ghostlab_core::corpus::Tokenizer;
use ghostlab_core::model::{Engine, Products, Program};
use serde_json::Value;

/// Product types, each with the relative tolerance for the loss on a window.
const TOLERANCES: [(Products, f64); 2] = [(Products::Bf16x3, 1e-4), (Products::Bf16x6, 1e-6)];

#[test]
fn split_bf16_losses_match_the_official_code() {
    let [Some(folder), Some(backbone)] = ["oracles/official", "real/backbone"].map(shared) else { return };
    let official = json(&folder.join("official.json"));
    let tokenizer = Tokenizer::load(backbone.join("tokenizer.json")).unwrap();
    for (products, tolerance) in TOLERANCES {
        if let Err(error) = products.check() {
            eprintln!("skipped for {}: {}", products.name(), error.one_line());
            continue;
        }
        let engine = load_decoder(products, u64::MAX, &backbone);
        for id in ["A.dense", "A.streamline-3.none", "A.shortgpt-5.none"] {
            compare(&*engine, id, &official["settings"][id], &tokenizer, tolerance);
        }
    }
}

/// Compares the losses for a setting without repairs on all of its windows.
fn compare(engine: &dyn Engine, id: &str, setting: &Value, tokenizer: &Tokenizer, tolerance: f64) {
    let removed = setting.get("removed").map_or_else(Vec::new, layers);
    let program = Program::pruned(engine.config().layers, &removed, |_| None);
    let windows = checked_evaluation_windows(tokenizer, &setting["perplexity_texts"]["wikitext2"]);
    let ours = losses(engine, &[program], &windows).remove(0).windows;
    let theirs = numbers(&setting["window_losses"]["wikitext2"]);
    assert!(!ours.is_empty() && ours.len() == theirs.len());
    for (window, (ours, theirs)) in ours.into_iter().zip(theirs).enumerate() {
        assert_close(&format!("{}: {id}: window {window}", engine.id()), ours, theirs, tolerance);
    }
}
