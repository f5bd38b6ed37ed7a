//! Measures orchestration overhead: planning a grid of 10,000 cells (experiments), storing a small object (compared
//! with a plain durable write), and hashing inputs.
//!
//! `cargo bench --bench plan`
#![allow(clippy::disallowed_macros, clippy::unwrap_used, reason = "a benchmark prints, and panics on setup errors")]

use std::fs;
use std::io::Write;
use std::path::Path;
use std::time::Instant;

use ghostlab::files::sha256;
use ghostlab::grid::Grid;
use ghostlab::pipeline::exec::{Preflight, RunEnv, TargetMachine, preflight};
use ghostlab::pipeline::plan::{Plan, Reason, StoredKeyIndex};
use ghostlab::pipeline::stage;
use ghostlab_store::{Key, Lookup, Store};
use serde_json::json;

#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() {
    measure_planning();
    measure_small_objects();
    measure_hashing();
}

fn measure_planning() {
    let folder = tempfile::tempdir().unwrap();
    let fixture = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/fixtures/arch/llama-gqa");
    fs::create_dir(path_in("backbone", folder.path())).unwrap();
    for name in ["config.json", "model.safetensors"] {
        fs::copy(fixture.join(name), path_in("backbone", folder.path()).join(name)).unwrap();
    }
    let vocab: serde_json::Map<String, serde_json::Value> = (0..300).map(|i| (format!("w{i}"), json!(i))).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "WhitespaceSplit"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"}
    });
    fs::write(path_in("backbone/tokenizer.json", folder.path()), tokenizer.to_string()).unwrap();
    let words: Vec<String> = (0..5000).map(|i| format!("w{}", i * 31 % 299)).collect();
    fs::write(path_in("text.txt", folder.path()), words.join(" ")).unwrap();
    let recoveries: Vec<String> = (0..1000).map(|i| format!("  - {{name: replaceme-ls, alpha: {i}}}\n")).collect();
    let grid = format!(
        "backbones:\n  tiny: {{path: backbone}}\ncorpora:\n  text: {{path: text.txt, rule: wikitext2}}\nbackbone: [tiny]\n\
         criterion: [llm-streamline, shortgpt, sleb, shortened-llama, angular]\ndepth: [1, 2]\nrecovery:\n{}\
         calibration: [{{corpus: text, sequences: 4, length: 64}}]\nevaluate:\n  perplexity: [{{corpus: text, length: 64}}]\n",
        recoveries.concat()
    );
    fs::write(path_in("grid.yaml", folder.path()), grid).unwrap();
    let store = Store::open(&path_in("store", folder.path()), stage::STORE_WORDS).unwrap();
    for round in 1..=3 {
        let started = Instant::now();
        let grid = Grid::load(&path_in("grid.yaml", folder.path()), None, &[]).unwrap();
        let read = started.elapsed().as_secs_f64();
        let env = RunEnv::new(&store);
        let plan = Plan::new(&grid, &store, env.settings).unwrap();
        let Preflight { state, estimate } = preflight(&plan, &env, TargetMachine::Local, &|_, _| ()).unwrap();
        let stored_keys = StoredKeyIndex::new(&store, &plan);
        let missing = plan.variants().flat_map(|(_, variant)| variant.keys()).filter(|key| !state.has(key));
        let reasons: Vec<Reason> = missing.map(|key| stored_keys.explain(key, &state)).collect();
        println!(
            "planning, round {round}: {} cells in {:.2} s ({read:.2} s for parsing the YAML); {} reasons, {:.1} GFLOP",
            grid.cells.len(),
            started.elapsed().as_secs_f64(),
            reasons.len(),
            estimate.cost.left / 1e9
        );
    }
}

fn path_in(name: &str, folder: &Path) -> std::path::PathBuf {
    folder.join(name)
}

fn measure_small_objects() {
    const COUNT: usize = 500;
    let folder = tempfile::tempdir().unwrap();
    let store = Store::open(&folder.path().join("store"), stage::STORE_WORDS).unwrap();
    let bytes = vec![7u8; 4096];
    for round in 0..2 {
        let started = Instant::now();
        for i in 0..COUNT {
            store.put(&scores_key(round * COUNT + i), 0.0, &[("values.f64", &bytes)]).unwrap();
        }
        let put = started.elapsed().as_secs_f64() / COUNT as f64;
        let started = Instant::now();
        for i in 0..COUNT {
            assert!(matches!(store.get(&scores_key(round * COUNT + i)), Lookup::Intact(_)));
        }
        let get = started.elapsed().as_secs_f64() / COUNT as f64;
        // Measure the lower bound for an atomic store: write and sync two files, then rename their folder.
        let started = Instant::now();
        for i in 0..COUNT {
            let draft = folder.path().join(format!("draft-{round}-{i}"));
            fs::create_dir(&draft).unwrap();
            for name in ["meta.json", "values.f64"] {
                let mut file = fs::File::create_new(draft.join(name)).unwrap();
                file.write_all(&bytes).unwrap();
                file.sync_all().unwrap();
            }
            fs::File::open(&draft).unwrap().sync_all().unwrap();
            fs::rename(&draft, folder.path().join(format!("done-{round}-{i}"))).unwrap();
            fs::File::open(folder.path()).unwrap().sync_all().unwrap();
        }
        let plain = started.elapsed().as_secs_f64() / COUNT as f64;
        println!(
            "small artifacts, round {}: stored in {:.2} ms ({:.2} times a plain durable write), found and verified in {:.3} ms",
            round + 1,
            put * 1e3,
            put / plain,
            get * 1e3
        );
    }
}

fn scores_key(i: usize) -> Key {
    Key::new(stage::scores::KIND, json!({"i": i}), [])
}

fn measure_hashing() {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("weights");
    let bytes: Vec<u8> = (0..256u32 << 20).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    #[cfg(target_arch = "x86_64")]
    println!("hashing: SHA instructions: {}", std::arch::is_x86_feature_detected!("sha"));
    for round in 1..=3 {
        let started = Instant::now();
        sha256::of_bytes(&bytes);
        let memory = bytes.len() as f64 / started.elapsed().as_secs_f64() / 1e9;
        let started = Instant::now();
        sha256::of_file(&path).unwrap();
        let file = bytes.len() as f64 / started.elapsed().as_secs_f64() / 1e9;
        println!("hashing, round {round}: {memory:.2} GB/s per core from memory, {file:.2} GB/s from a file");
    }
}
