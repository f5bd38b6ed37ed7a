//! Tests with damaged and malicious inputs: seeded mutations of every kind of input file, and runs of the program on
//! files crafted to break it. `just fuzz` runs the long version. `GHOSTLAB_FUZZ_ROUNDS` sets the number of rounds, and
//! `GHOSTLAB_FUZZ_SEED` the seed.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

#[path = "../fuzz/src/lib.rs"]
mod targets;

use std::panic::{AssertUnwindSafe, catch_unwind};

use crate::common;
use crate::common::world::World;
use serde_json::json;
use targets::{FuzzTarget, TARGETS};

/// Small and portable random number generator (SplitMix64).
struct Random(u64);

impl Random {
    fn next(&mut self) -> u64 {
        self.0 = self.0.wrapping_add(0x9e37_79b9_7f4a_7c15);
        let mut z = self.0;
        z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
        z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
        z ^ (z >> 31)
    }

    fn below(&mut self, count: usize) -> usize {
        (self.next() % count.max(1) as u64) as usize
    }
}

/// Strings that are likely to break a parser of any format.
const HOSTILE_STRINGS: [&str; 24] = [
    "18446744073709551615",
    "-1",
    "0",
    "1e400",
    "-0.0",
    "9223372036854775808",
    "null",
    "true",
    "\"\"",
    "[]",
    "{}",
    "[[[[",
    "\n",
    "\u{0}",
    "\u{1b}[2J",
    "\u{202e}",
    "\\ud800",
    "é",
    "'",
    ",",
    ": ",
    "NaN",
    "../../etc/passwd",
    "&a *a",
];

fn mutate(seed: &[u8], other: &[u8], random: &mut Random) -> Vec<u8> {
    let mut bytes = seed.to_vec();
    for _ in 0..1 + random.below(4) {
        // Prefer positions near the beginning, because the header determines how the remaining bytes are parsed.
        let reach = if random.below(2) == 0 { bytes.len() } else { bytes.len().min(600) };
        let at = random.below(reach);
        let end = at + random.below((bytes.len() - at).min(40) + 1);
        match random.below(7) {
            _ if bytes.is_empty() => bytes.push(random.next() as u8),
            0 => bytes[at] ^= 1 << random.below(8),
            1 => bytes[at] = random.next() as u8,
            2 => drop(bytes.drain(at..end)),
            3 => bytes.splice(at..at, bytes[at..end].to_vec()).for_each(drop),
            4 => bytes.splice(at..end, HOSTILE_STRINGS[random.below(HOSTILE_STRINGS.len())].bytes()).for_each(drop),
            5 => bytes.truncate(at),
            _ => {
                let from = random.below(other.len());
                let to = from + random.below((other.len() - from).min(60) + 1);
                bytes.splice(at..at, other[from..to].to_vec()).for_each(drop);
            }
        }
    }
    bytes
}

#[expect(clippy::disallowed_macros, reason = "the number of tested inputs is printed")]
fn run_target(target: &FuzzTarget) {
    let rounds = environment_number("GHOSTLAB_FUZZ_ROUNDS").unwrap_or(400);
    let seeds = (target.seeds)();
    let seed_offset = environment_number("GHOSTLAB_FUZZ_SEED").unwrap_or(0) << 32;
    let mut random = Random(target.name.bytes().map(u64::from).sum::<u64>() + seed_offset);
    seeds.iter().for_each(|seed| (target.run)(seed));
    for round in 0..rounds {
        let seed = random.below(seeds.len());
        let other = random.below(seeds.len());
        let data = mutate(&seeds[seed], &seeds[other], &mut random);
        if let Err(panic) = catch_unwind(AssertUnwindSafe(|| (target.run)(&data))) {
            // Save the input so that it can be added to the seeds.
            let saved = std::env::temp_dir().join(format!("ghostlab-{}-{round}", target.name));
            std::fs::write(&saved, &data).unwrap();
            let text = panic.downcast_ref::<String>().map_or("", String::as_str);
            panic!("target {} failed on the input saved as {}: {text}", target.name, saved.display());
        }
    }
    let calls = targets::commands::CALLS.load(std::sync::atomic::Ordering::Relaxed);
    eprintln!("target {}: {rounds} rounds; commands called so far, by all targets: {calls}", target.name);
}

fn environment_number(name: &str) -> Option<u64> {
    std::env::var(name).ok().and_then(|text| text.parse::<u64>().ok())
}

macro_rules! attacks {
    ($($name:ident)*) => {
        $(mod $name {
            #[test]
            fn mutated_input_gives_a_value_or_an_error() {
                let target = super::TARGETS.iter().find(|target| target.name == stringify!($name));
                super::run_target(target.unwrap());
            }
        })*

        #[test]
        fn every_fuzz_target_has_a_test() {
            let attacked = [$(stringify!($name)),*];
            assert_eq!(attacked.to_vec(), TARGETS.iter().map(|target| target.name).collect::<Vec<_>>());
            let cargo = include_str!("../fuzz/Cargo.toml");
            assert!(attacked.iter().all(|name| cargo.contains(&format!("name = \"{name}\""))), "a fuzz target has no binary");
        }
    };
}

attacks!(grid config tokenizer weights gguf corpus task race definition template meta pack record journal command plan);

#[test]
fn time_waiting_for_cpu_does_not_count_as_a_hang() {
    use std::time::Duration;
    let seconds = Duration::from_secs;
    assert_eq!(targets::watch::time_without_waits(seconds(500), seconds(450)), seconds(50));
    assert_eq!(targets::watch::time_without_waits(seconds(500), seconds(600)), Duration::ZERO);
    // If the call never waited for a CPU, all of the wall-clock time counts.
    assert_eq!(targets::watch::time_without_waits(seconds(121), Duration::ZERO), seconds(121));
    if cfg!(target_os = "linux") {
        let before = targets::watch::cpu_wait_time().unwrap();
        let threads = 4 * std::thread::available_parallelism().map_or(1, usize::from);
        let waited = std::thread::scope(|scope| {
            let all: Vec<_> = (0..threads)
                .map(|_| {
                    scope.spawn(|| {
                        (0..40)
                            .map(|_| {
                                (0..3_000_000_u64)
                                    .fold(0, |sum: u64, n| std::hint::black_box(sum.wrapping_mul(31).wrapping_add(n)))
                            })
                            .max()
                    })
                })
                .collect();
            std::thread::sleep(Duration::from_millis(200));
            let waited = targets::watch::cpu_wait_time().unwrap();
            all.into_iter().for_each(|thread| drop(thread.join()));
            waited
        });
        assert!(
            waited > before,
            "no waiting time was measured with more threads than processors: {before:?} {waited:?}"
        );
    }
}

#[test]
fn excessive_number_is_rejected_before_use() {
    let world = World::new();
    let huge = u64::MAX.to_string();
    for (override_text, words) in [
        ("calibration.sequences=1000000000000", &["the number of calibration sequences is too large"][..]),
        ("calibration.length=1000000000000", &["the length of a calibration sequence is too large"]),
        (
            "calibration=[{corpus: train, sequences: 1000000, length: 1000000}]",
            &["too many tokens", "1000000 × 1000000"],
        ),
        (&format!("calibration.operator_sequences={huge}"), &["too large"]),
        (&format!("evaluate.perplexity.length={huge}"), &["the length of an evaluation window is too large"]),
        (&format!("corpora.test.limit={huge}"), &["the limit on evaluation windows is too large"]),
        (&format!("recovery={{name: replaceme-cos, epochs: {huge}}}"), &["at most 100000 `epochs`"]),
        (&format!("recovery={{name: replaceme-cos, batch: {huge}}}"), &["a `batch` of 1 to"]),
        (&format!("depth={huge}"), &["removes all layers"]),
        (
            "recovery={name: ghosted, finetune: {sequences: 1000000, length: 1000000}}",
            &["invalid value of `finetune`", "sequences × length of 4294967296 or less"],
        ),
        (
            &format!("recovery={{name: ghosted, finetune: {{sequences: {huge}, length: {huge}}}}}"),
            &["`finetune`", "or less"],
        ),
    ] {
        world.assert_rejected(&["--set", override_text], 2, words);
    }
    let seeds: Vec<String> = (1..=400).map(|seed| seed.to_string()).collect();
    let seeds = seeds.join(",");
    let many = format!("calibration=[{{corpus: train, sequences: [{seeds}], length: 64, seed: [{seeds}]}}]");
    world.assert_rejected(&["--set", &many], 2, &["the grid has too many cells", "1 × 400 × 1 × 400 × 1"]);
    for (key, value) in [("num_hidden_layers", 10_000_000), ("num_hidden_layers", 9_999), ("hidden_size", 1 << 19)] {
        let world = World::new();
        world.change_config(key, json!(value));
        world.assert_rejected(&[], 2, &["grid.yaml:2", "backbone"]);
    }
}

#[test]
fn impossible_sizes_are_rejected_before_reading_text() {
    // With 64 tokens per sequence, `many` sequences need 10 GB for token ids. `most` sequences also need 1.1 TB for
    // the hidden states of each recorded layer.
    let many = "20000000";
    let most = "67108864";
    for (set, memory, words) in [
        (
            format!("calibration.sequences={many}"),
            "0.5",
            &["not enough memory for the calibration tokens", "(--memory)", "finetune"][..],
        ),
        (fine_tuned_recovery(many), "0.5", &["not enough memory for the calibration tokens", "0.50 GB (--memory)"]),
        (format!("calibration.sequences={most}"), "100", &["not enough disk space in the store", "GB free"]),
        (fine_tuned_recovery(most), "100", &["not enough disk space in the store"]),
    ] {
        let world = World::new();
        let options = ["--set", &set, "--memory", memory];
        world.assert_rejected(&options, 3, words);
        let listed = String::from_utf8(world.ghostlab(&["cache", "ls"]).stdout).unwrap();
        assert!(!listed.contains("tokens-v"), "tokens were stored: {listed}");
        let [run, plan] = ["run", "plan"].map(|name| {
            let output = world.ghostlab(&[&[name, "grid.yaml", "-q"], &options[..]].concat());
            (output.status.code(), String::from_utf8(output.stderr).unwrap())
        });
        assert_eq!(without_free_memory(run), without_free_memory(plan), "plan and run differ");
    }
}

fn fine_tuned_recovery(count: &str) -> String {
    format!("recovery={{name: ghosted, finetune: {{sequences: {count}, length: 64}}}}")
}

/// Drops the lines that show the free memory, which may change between two runs.
fn without_free_memory((code, log): (Option<i32>, String)) -> (Option<i32>, Vec<String>) {
    (code, log.lines().filter(|line| !line.contains("found:")).map(str::to_owned).collect::<Vec<_>>())
}

#[test]
fn oversized_unpacked_file_is_rejected_until_limit_is_raised() {
    let world = World::large();
    let task = std::fs::read_to_string(world.path("copa.jsonl")).unwrap();
    // Each file takes a few kilobytes compressed and 6 MB uncompressed.
    for (name, set, text) in [
        ("one.jsonl.gz", "corpora.test.path", text_row(2_000_000)),
        ("many.jsonl.gz", "corpora.test.path", text_row(100).repeat(20_000)),
        ("rows.jsonl.gz", "tasks.copa.path", task.repeat(2_000)),
    ] {
        assert!(text.len() > 5_000_000);
        world.write(name, common::gzip(text.as_bytes()));
        let path = format!("{set}={}", world.path(name).display());
        let small = ["--set", "depth=1", "--set", "recovery=none", "--set", "criterion=llm-streamline"];
        let options = [&small[..], &["--set", &path, "--text", "0.002"]].concat();
        world.assert_rejected(&options, 2, &["exceeds the size limit for text", name, "--text GB"]);
    }
    let path = format!("corpora.test.path={}", world.path("many.jsonl.gz").display());
    world.run_ok(&["--set", "depth=1", "--set", "recovery=none", "--set", "criterion=llm-streamline", "--set", &path]);
}

fn text_row(length: usize) -> String {
    format!("{}\n", json!({"text": "w1 ".repeat(length)}))
}

#[test]
fn error_for_weights_truncated_while_open_names_the_file() {
    let world = World::new();
    let path = world.path("backbone/model.safetensors");
    let weights = ghostlab::model::weights::Weights::open(&world.path("backbone")).unwrap();
    assert_eq!(weights.take("model.norm.weight", &[64]).unwrap().len(), 64);
    let length = path.metadata().unwrap().len();
    std::fs::File::options().write(true).open(&path).unwrap().set_len(length / 4).unwrap();
    let names = ["model.norm.weight", "model.embed_tokens.weight"];
    let errors: Vec<String> = [weights.take(names[0], &[64]), weights.take(names[1], &[320, 64])]
        .into_iter()
        .filter_map(Result::err)
        .map(|error| error.to_string())
        .collect();
    assert!(
        errors.iter().any(|error| error.contains("was truncated") && error.contains("model.safetensors")),
        "{errors:?}"
    );
}

#[test]
fn shard_index_cannot_name_files_outside_its_folder() {
    for outside in ["../secret.safetensors", "/etc/hostname", "./../backbone/model.safetensors"] {
        let world = World::new();
        std::fs::copy(world.path("backbone/model.safetensors"), world.path("secret.safetensors")).unwrap();
        let index = json!({"weight_map": {"model.norm.weight": outside}});
        world.write("backbone/model.safetensors.index.json", index.to_string());
        world.assert_rejected(&[], 2, &["outside its folder", outside]);
    }
}

#[cfg(unix)]
#[test]
fn pipe_as_input_is_rejected_without_hanging() {
    for name in [
        "grid.yaml",
        "backbone/config.json",
        "backbone/tokenizer.json",
        "backbone/model.safetensors",
        "train.txt",
        "test.jsonl",
        "copa.jsonl",
        "backbone/tokenizer_config.json",
    ] {
        let world = World::large();
        std::fs::remove_file(world.path(name)).ok();
        assert!(std::process::Command::new("mkfifo").arg(world.path(name)).status().unwrap().success());
        let output = world.run(&[]);
        let text = String::from_utf8(output.stderr).unwrap();
        assert!(matches!(output.status.code(), Some(2 | 3)), "{name}: {text}");
        assert!(text.contains(name.rsplit('/').next().unwrap()), "{name}: {text}");
    }
}

#[test]
fn tokenizer_with_bad_special_token_or_charsmap_is_rejected() {
    let world = World::new();
    let mut tokenizer = common::world::build_tokenizer(300);
    tokenizer["post_processor"] = json!({"type": "TemplateProcessing",
        "single": [{"SpecialToken": {"id": "<s>", "type_id": 0}}, {"Sequence": {"id": "A", "type_id": 0}}],
        "pair": [{"Sequence": {"id": "A", "type_id": 0}}, {"Sequence": {"id": "B", "type_id": 1}}],
        "special_tokens": {"<s>": {"id": "<s>", "ids": [4000], "tokens": ["<s>"]}}});
    world.write("backbone/tokenizer.json", tokenizer.to_string());
    world.assert_rejected(&[], 2, &["the tokenizer's vocabulary exceeds the embedding", "below 320", "ids up to 4000"]);
    tokenizer["post_processor"] = json!(null);
    tokenizer["normalizer"] = json!({"type": "Precompiled", "precompiled_charsmap": "/////wAAAAA="});
    world.write("backbone/tokenizer.json", tokenizer.to_string());
    world.assert_rejected(&[], 2, &["tokenizer.json", "precompiled_charsmap"]);
}

#[test]
fn unusual_backbone_names_work_and_unsafe_ones_are_rejected() {
    let world = World::large();
    let long = "x".repeat(180);
    let names = ["a b", "a_b", "a-b", "=1+1", &long];
    let entries: Vec<String> = names.iter().map(|name| format!("  \"{name}\": {{path: backbone}}\n")).collect();
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    let quoted: Vec<String> = names.iter().map(|name| format!("\"{name}\"")).collect();
    let grid = grid
        .replace("  tiny: {path: backbone}\n", &entries.concat())
        .replace("backbone: [tiny]", &format!("backbone: [{}]", quoted.join(", ")));
    let small = [
        ("depth: [1, 2]", "depth: 1"),
        ("[none, prune-and-comp, linearpatch-diag, ghosted, replaceme-ls]", "none"),
        ("[llm-streamline, sleb, shortgpt]", "llm-streamline"),
    ];
    world.write("grid.yaml", small.iter().fold(grid, |grid, (from, to)| grid.replace(from, to)));
    world.run_ok(&[]);
    let files = std::fs::read_dir(world.path("results/grid/lm_eval")).unwrap().count();
    assert_eq!(files, 2 * names.len(), "expected one file per cell");
    let csv = std::fs::read_to_string(world.path("results/grid/results.csv")).unwrap();
    assert!(csv.contains("\n'=1+1,") && !csv.contains("\n=1+1"), "{csv}");

    let output = world.run(&["--results", "out\u{1b}[2J"]);
    let printed = [output.stdout, output.stderr].concat();
    assert!(
        output.status.success() && !printed.contains(&0x1b),
        "{}",
        String::from_utf8_lossy(&printed).escape_debug()
    );

    for (bad, words) in
        [("a\\e[2Jb", "invalid backbone name"), (&"y".repeat(201), "invalid backbone name"), ("a/b", "without `/`")]
    {
        let world = World::new();
        let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
        world.write(
            "grid.yaml",
            grid.replace("  tiny:", &format!("  \"{bad}\":")).replace("[tiny]", &format!("[\"{bad}\"]")),
        );
        world.assert_rejected(&[], 2, &[words, "grid.yaml"]);
    }
}
