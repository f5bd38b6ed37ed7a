//! Compares llama.cpp with this program on GGUF files of the architecture `deci`: sublayer cuts, repairs that add a
//! constant vector, and affine maps of the normed residual stream.
//!
//! Skipped with a message unless `GHOSTLAB_LLAMA_CPP` names a Python interpreter that has xllamacpp.
#![allow(
    clippy::unwrap_used,
    clippy::disallowed_macros,
    reason = "tests panic on setup errors, and print why they are skipped"
)]

use std::fs;
use std::path::Path;

use crate::common::world::World;
use crate::common::{add_biases, fixture, relative_error};
use crate::llama_cpp::{llama_cpp_logits, llama_cpp_tokens, python, run_successfully, small_tokenizer};
use ghostlab::grid::Grid;
use ghostlab::model::{Batch, Config, Decoder, Model, Program, Step, folder_program};
use ghostlab::pipeline::exec::{RunSettings, stored_program};
use ghostlab::pipeline::plan::Plan;
use ghostlab::pipeline::stage;
use ghostlab_store::Store;
use serde_json::Value;

/// Maximum relative error of f32 logits. The reference (`shared/oracles/beyond`) measured 7e-7 between llama.cpp and
/// torch with two MLPs removed. Other cuts have errors of up to 1.4e-6.
const LOGIT_TOLERANCE: f64 = 2e-6;
/// Maximum relative error of the logits of f16 files, as in `tests/llama_cpp.rs`.
const F16_LOGIT_TOLERANCE: f64 = 2e-3;
/// Maximum relative error of the logits of bf16 files, whose significands are three bits shorter than those of f16.
const BF16_LOGIT_TOLERANCE: f64 = 8.0 * F16_LOGIT_TOLERANCE;
/// Number of tokens to generate with llama.cpp's KV cache.
const NEW_TOKENS: usize = 12;

/// Returns the logits that this program computes at all positions in the sequences.
fn compute_logits(decoder: &Decoder, program: &Program, ids: &[Vec<u32>]) -> Vec<f64> {
    let mut all = Vec::new();
    for row in ids {
        let batch = Batch::windows([row.as_slice()]);
        let mut stream = decoder.begin(&batch).unwrap();
        for step in program.0.iter().filter(|step| !matches!(step, Step::Embed | Step::Head)) {
            stream = decoder.advance(&batch, step, &stream).unwrap();
        }
        let rows: Vec<usize> = (0..row.len()).collect();
        all.extend(crate::common::flat(&decoder.logits(&stream, &rows).unwrap()));
    }
    all
}

/// Returns the prompt followed by `NEW_TOKENS` greedily generated tokens. Does not use a KV cache.
fn greedy_tokens(decoder: &Decoder, program: &Program, prompt: &[u32]) -> Vec<u32> {
    let mut ids = prompt.to_vec();
    for _ in 0..NEW_TOKENS {
        let all = compute_logits(decoder, program, std::slice::from_ref(&ids));
        let last = &all[all.len() - decoder.config().vocab..];
        let best = (0..last.len()).max_by(|&a, &b| last[a].total_cmp(&last[b])).unwrap();
        ids.push(u32::try_from(best).unwrap());
    }
    ids
}

/// Exports every pruned cell in `grid.yaml` as GGUF, and compares the exported model with the cell. Checks the logits
/// that llama.cpp and this program compute from the file, and the text that llama.cpp generates. Returns the number of
/// cells.
fn compare(world: &World, python: &Path, dtypes: &[(&str, f64)]) -> usize {
    let grid = Grid::load(&world.path("grid.yaml"), None, &[]).unwrap();
    let store = Store::open(&world.path("data/store"), stage::STORE_WORDS).unwrap();
    let settings = RunSettings::default();
    let ids: Vec<Vec<u32>> = (0..2).map(|row| (0..48).map(|at| (at * 37 + row * 11 + 5) % 300).collect()).collect();
    let pruned: Vec<String> = grid.cells.iter().filter(|cell| !cell.is_dense()).map(ToString::to_string).collect();
    for cell in &pruned {
        for (dtype, _) in dtypes {
            let file = world.path(&format!("{cell}.{dtype}.gguf"));
            run_successfully(world, &["export", "grid.yaml", cell, "--gguf", dtype, "--to", file.to_str().unwrap()]);
        }
    }
    let plan = Plan::new(&grid, &store, settings).unwrap();
    for backbone in &plan.backbones {
        let decoder = Decoder::load(&backbone.folder).unwrap();
        for variant in backbone.variants.iter().filter(|variant| !grid.cells[variant.cell].is_dense()) {
            let cell = grid.cells[variant.cell].to_string();
            let program = stored_program(&store, backbone, variant).unwrap();
            let expected = compute_logits(&decoder, &program, &ids);
            for &(dtype, tolerance) in dtypes {
                let file = world.path(&format!("{cell}.{dtype}.gguf"));
                let error = relative_error(&llama_cpp_logits(python, world, &file, &ids), &expected);
                let config = Config::read_with_attachments(&file).unwrap();
                let read = folder_program(&config, &file).unwrap();
                let ours = compute_logits(&Decoder::load_with(config, &file).unwrap(), &read, &ids);
                let own_error = relative_error(&ours, &expected);
                println!("{cell} {dtype}: {error:e} in llama.cpp, {own_error:e} in ghostlab");
                assert!(error <= tolerance, "{cell} {dtype}: {error:e}");
                assert!(own_error <= tolerance, "{cell} {dtype}, read by this program: {own_error:e}");
            }
            let file = world.path(&format!("{cell}.f32.gguf"));
            assert_eq!(
                llama_cpp_tokens(python, world, &file, &ids[0], NEW_TOKENS),
                greedy_tokens(&decoder, &program, &ids[0]),
                "{cell}"
            );
        }
    }
    pruned.len()
}

/// Includes cuts at both ends of the model, because llama.cpp reads head widths from the first layer and selects the
/// output rows in the last one.
#[test]
fn deci_files_with_cuts_and_repairs_match_llama_cpp() {
    let Some(python) = python() else { return };
    let world = World::new();
    world.write_bundled_grid(
        "calibration: {corpus: train, sequences: 4, length: 256}\n\
         criterion: llm-drop\ndepth: [{attention: 8}, {mlp: 4}, {sublayers: 8}]\nrecovery: none\n\
         include:\n  - {criterion: {name: explicit, layers: [7, 8, 9, 10]}, depth: 4, recovery: [mean, \
         {name: ghosted, input: normed}, {name: ghosted, input: normed, bias: true}]}\n\
         \x20 - {criterion: {name: explicit, layers: [0, 14, 15]}, depth: 3, recovery: [mean, \
         {name: ghosted, input: normed}, {name: ghosted, input: normed, bias: true}]}\n\
         \x20 - {criterion: {name: nbl, input: normed}, depth: [{attention: 3}, {mlp: 3}], \
         recovery: {name: nbl, input: normed}}\n\
         \x20 - {criterion: {name: explicit, sublayers: [attention 0, mlp 3, attention 4, mlp 4, attention 15, mlp 15]}, \
         depth: {sublayers: 6}, recovery: {name: nbl, input: normed}}\n\
         evaluate: {perplexity: [{corpus: test, length: 128}]}\n",
    );
    assert_eq!(compare(&world, &python, &[("f32", LOGIT_TOLERANCE), ("q8_0", 5e-2)]), 12);
}

/// Covers scaled rotary embeddings, heads that together are wider than the residual stream, and biases of queries, keys
/// and values or of all projections. Only one attention sublayer or MLP is kept, so the first layers are among those
/// removed.
#[test]
fn deci_files_with_scaled_rope_and_biases_match_llama_cpp() {
    let Some(python) = python() else { return };
    for backbone in ["llama3-rope", "qwen2", "mistral", "llama-gqa"] {
        let world = World::new();
        for file in ["config.json", "model.safetensors"] {
            fs::copy(fixture("arch").join(backbone).join(file), world.path("backbone").join(file)).unwrap();
        }
        world.write("backbone/tokenizer.json", small_tokenizer().to_string());
        match backbone {
            "qwen2" => {
                world.change_config("use_sliding_window", false.into());
                world.change_config("layer_types", Value::Null);
            }
            "mistral" => world.change_config("sliding_window", Value::Null),
            "llama-gqa" => add_biases(&world.path("backbone")),
            _ => {}
        }
        let grid = fs::read_to_string(world.path("grid.yaml")).unwrap();
        let grid = grid.replace("[llm-streamline]", "llm-drop").replace("[1, 2]", "[{attention: 3}, {mlp: 3}]");
        world.write("grid.yaml", grid.replace("[none, linearpatch-diag, linearpatch-rotate, ghosted]", "none"));
        let dtypes = [("f32", LOGIT_TOLERANCE), ("f16", F16_LOGIT_TOLERANCE), ("bf16", BF16_LOGIT_TOLERANCE)];
        assert_eq!(compare(&world, &python, &dtypes), 2, "{backbone}");
    }
}
