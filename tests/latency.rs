//! End-to-end tests for latency measurements. Latencies are reused only on the machine where they were measured, and
//! are stored with their raw times.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test panics on setup errors")]

use std::collections::BTreeMap;
use std::fs::File;
use std::io::{BufRead, BufReader};
use std::process::Stdio;

use crate::common::world::{World, column_index, read_rows};
use ghostlab::pipeline::exec::timing_lease;
use ghostlab::pipeline::stage;
use ghostlab_store::{LeaseResult, Store};
use polars::prelude::{ParquetReader, SerReader};

/// Creates a world whose grid measures a perplexity, and the latencies for the given prompts.
fn create_world(prompts: &str) -> World {
    let world = World::new();
    let grid = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", format!("{grid}  latency: {prompts}\n"));
    world
}

/// Returns the values in the column `name` of the results table, keyed by recovery. The key for the dense backbone is
/// `dense`.
fn read_column(world: &World, name: &str) -> BTreeMap<String, String> {
    let rows = read_rows(&world.path("results/grid/results.csv"));
    let method = column_index(&rows, "recovery");
    let value = column_index(&rows, name);
    rows[1..]
        .iter()
        .map(|row| (if row[method].is_empty() { "dense".to_owned() } else { row[method].clone() }, row[value].clone()))
        .collect()
}

fn parse_number(text: &str) -> f64 {
    text.parse().unwrap_or_else(|_| panic!("`{text}` is not a number"))
}

/// Time of one round of a variant (the model of a cell) whose operators are applied as full matrix products. `what` is
/// `prefill` or `decode`.
struct Pass {
    what: String,
    recovery: String,
    batch: u64,
    round: u64,
    milliseconds: f64,
    is_counted: bool,
}

fn read_passes(world: &World) -> Vec<Pass> {
    let frame = ParquetReader::new(File::open(world.path("results/grid/latency.parquet")).unwrap()).finish().unwrap();
    let [cells, what, forms] = ["cell", "what", "form"].map(|name| frame.column(name).unwrap().str().unwrap());
    let [batches, rounds] = ["batch", "round"].map(|name| frame.column(name).unwrap().u64().unwrap());
    let times = frame.column("milliseconds").unwrap().f64().unwrap();
    let counts = frame.column("counts").unwrap().bool().unwrap();
    let full = (0..frame.height()).filter(|&row| forms.get(row) == Some("full"));
    full.map(|row| Pass {
        what: what.get(row).unwrap().to_owned(),
        recovery: cells.get(row).unwrap().rsplit('.').next().unwrap().to_owned(),
        batch: batches.get(row).unwrap(),
        round: rounds.get(row).unwrap(),
        milliseconds: times.get(row).unwrap(),
        is_counted: counts.get(row).unwrap(),
    })
    .collect()
}

/// Returns the mean time of a variant in its counted rounds, and that of the dense backbone in the same rounds.
fn counted_means(passes: &[Pass], recovery: &str, (what, batch): (&str, u64)) -> (f64, f64) {
    let timed: Vec<&Pass> = passes.iter().filter(|pass| pass.what == what && pass.batch == batch).collect();
    let counted: Vec<&Pass> =
        timed.iter().copied().filter(|pass| pass.is_counted && pass.recovery == recovery).collect();
    let rounds: Vec<u64> = counted.iter().map(|pass| pass.round).collect();
    assert_eq!(rounds, (rounds[0]..rounds[0] + 10).collect::<Vec<_>>(), "{recovery}");
    let dense = timed.iter().filter(|pass| pass.recovery == "dense" && rounds.contains(&pass.round));
    let dense: f64 = dense.map(|pass| pass.milliseconds).sum();
    (counted.iter().map(|pass| pass.milliseconds).sum::<f64>() / 10.0, dense / 10.0)
}

#[test]
fn latency_and_memory_columns_agree_with_raw_times_and_sizes() {
    let world = create_world("{length: 24, batch: [1, 2]}");
    world.run_ok(&["--set", "name=grid", "--set", "depth=2"]);
    let passes = read_passes(&world);
    for (batch, prompt) in [(1, "24×1"), (2, "24×2")] {
        let times = read_column(&world, &format!("prefill_ms {prompt}"));
        assert_eq!(times.len(), 5, "{times:?}");
        let speedups = read_column(&world, &format!("speedup {prompt}"));
        for (recovery, time) in &times {
            let (mean, dense_mean) = counted_means(&passes, recovery, ("prefill", batch));
            let ratio = dense_mean / mean;
            assert!((parse_number(time) - mean).abs() < 1e-9 * mean, "{recovery}: {mean} {times:?}");
            assert!(
                (parse_number(&speedups[recovery]) - ratio).abs() < 1e-9 * ratio,
                "{recovery}: {ratio} {speedups:?}"
            );
        }
        // Two of the four layers are removed. A full operator consists of 64² numbers of 4 bytes each.
        let bytes = read_column(&world, &format!("peak_memory_mb {prompt}"));
        let percent = read_column(&world, &format!("peak_memory_percent {prompt}"));
        assert_eq!(parse_number(&percent["dense"]), 100.0);
        let bytes: BTreeMap<&str, f64> =
            bytes.iter().map(|(recovery, text)| (recovery.as_str(), parse_number(text))).collect();
        assert!(bytes["none"] < bytes["dense"], "{bytes:?}");
        for recovery in ["linearpatch-diag", "linearpatch-rotate", "ghosted"] {
            let more = (1e6 * (bytes[recovery] - bytes["none"])).round();
            assert_eq!(more, 64.0 * 64.0 * 4.0, "{recovery}");
            let share = 100.0 * bytes[recovery] / bytes["dense"];
            assert!((parse_number(&percent[recovery]) - share).abs() < 1e-9 * share);
        }
    }
    let frame = ParquetReader::new(File::open(world.path("results/grid/latency.parquet")).unwrap()).finish().unwrap();
    // Five variants are timed on 2 prompts in 10 counted rounds each. One of them is also timed with its diagonal
    // operator applied channel-wise. A noisy machine adds rounds that are not counted.
    assert_eq!(frame.column("counts").unwrap().bool().unwrap().sum(), Some(6 * 2 * 10));
    assert!(frame.height() >= 6 * 2 * 10);
    let table = std::fs::read_to_string(world.path("results/grid/results.md")).unwrap();
    assert!(table.contains("Times in ms if applied channel-wise"), "{table}");
}

#[test]
fn decoding_is_timed_after_the_prompt_on_both_engines() {
    let world = create_world("[{length: 24, batch: 2}, {length: 24, batch: 2, decode: 5}]");
    let grid = ["--set", "name=grid", "--set", "depth=2"];
    let log = world.run_ok(&grid);
    assert!(log.contains("time tiny over 24×2+5"), "{log}");
    assert!(read_column(&world, "prefill_ms 24×2").len() == 5 && read_column(&world, "prefill_ms 24×2+5").len() == 5);
    let rates = read_column(&world, "decode_tps 24×2+5");
    let speedups = read_column(&world, "decode_speedup 24×2+5");
    let passes = read_passes(&world);
    for (recovery, rate) in &rates {
        let (mean, dense_mean) = counted_means(&passes, recovery, ("decode", 2));
        // Each round decodes five tokens of two sequences.
        assert!(
            (parse_number(rate) - 1e4 / mean).abs() < 1e-9 * parse_number(rate),
            "{recovery}: {mean} ms, {rates:?}"
        );
        let ratio = dense_mean / mean;
        assert!((parse_number(&speedups[recovery]) - ratio).abs() < 1e-9 * ratio, "{recovery}: {ratio} {speedups:?}");
    }
    let predicted = read_column(&world, "decode_predicted 24×2+5");
    assert_eq!(parse_number(&predicted["dense"]), 1.0);
    // Two of the four layers are removed, but the head remains, so the speedup stays below 2.
    assert!(
        parse_number(&predicted["none"]) > 1.2
            && parse_number(&predicted["ghosted"]) < parse_number(&predicted["none"])
    );
    let heads = read_rows(&world.path("results/grid/results.csv")).swap_remove(0);
    assert!(!heads.contains(&"decode_tps 24×2".to_owned()), "{heads:?}");
    let frame = ParquetReader::new(File::open(world.path("results/grid/latency.parquet")).unwrap()).finish().unwrap();
    let what = frame.column("what").unwrap().str().unwrap();
    let decoded = what.iter().filter(|mode| *mode == Some("decode")).count();
    // There are five variants. One of them is also timed with its diagonal operator applied channel-wise.
    assert!(
        decoded >= 6 * 10 && what.iter().filter(|mode| *mode == Some("prefill")).count() >= 2 * 6 * 10,
        "{decoded}"
    );
    let notes = std::fs::read_to_string(world.path("results/grid/results.md")).unwrap();
    assert!(notes.contains("24×2+5 decoded") && notes.contains("5 tokens of each sequence decoded"), "{notes}");
    replace_in_grid(&world, "[{length: 24, batch: 2}, {length: 24, batch: 2, decode: 5}]", "{length: 24, batch: 2}");
    let again = world.run_ok(&grid);
    assert!(!again.contains("time tiny"), "{again}");
    replace_in_grid(&world, "latency: {length: 24, batch: 2}", "latency: {length: 16, decode: 2}");
    let other = world.run_ok(&[&grid[..], &["--engine", "candle"]].concat());
    assert!(other.contains("time tiny over 16×1+2"), "{other}");
}

#[test]
fn latency_of_sublayer_cuts_is_measured() {
    let world = create_world("{length: 24, decode: 5}");
    replace_in_grid(
        &world,
        "[llm-streamline]\ndepth: [1, 2]\nrecovery: [none, linearpatch-diag, linearpatch-rotate, ghosted]\n",
        "llm-drop\ndepth: {attention: 1}\nrecovery: none\ninclude:\n  - {criterion: nbl, recovery: nbl}\n",
    );
    world.run_ok(&["--set", "name=grid"]);
    for name in ["prefill_ms 24×1+5", "decode_tps 24×1+5", "peak_memory_mb 24×1+5"] {
        let values = read_column(&world, name);
        assert_eq!(values.keys().collect::<Vec<_>>(), ["dense", "nbl", "none"], "{name}");
        assert!(values.values().all(|value| parse_number(value) > 0.0), "{name}: {values:?}");
    }
    let predicted = read_column(&world, "decode_predicted 24×1+5");
    let [none, nbl] = ["none", "nbl"].map(|recovery| parse_number(&predicted[recovery]));
    // NBL's map has C² weights, fewer than the attention sublayer that it replaces.
    assert!(none > nbl && nbl > 1.0, "{predicted:?}");
}

/// Replaces a piece of text in the grid file.
fn replace_in_grid(world: &World, from: &str, to: &str) {
    let text = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", text.replace(from, to));
}

#[test]
fn time_is_reused_only_on_the_machine_that_measured_it() {
    let world = create_world("{length: 16}");
    let first = world.run_ok(&["--set", "name=grid", "--set", "depth=1"]);
    assert!(first.contains("time tiny over 16×1"), "{first}");
    let before = read_column(&world, "prefill_ms 16×1");
    let again = world.run_ok(&["--set", "name=grid", "--set", "depth=1"]);
    assert!(!again.contains("time tiny"), "{again}");
    assert_eq!(read_column(&world, "prefill_ms 16×1"), before);
    // A different number of threads counts as a different machine.
    let threads = if std::thread::available_parallelism().unwrap().get() == 1 { "2" } else { "1" };
    let mut command = world.command(&["run", "grid.yaml", "--set", "name=grid", "--set", "depth=1"]);
    let other = command.env("RAYON_NUM_THREADS", threads).output().unwrap();
    let log = String::from_utf8(other.stderr).unwrap();
    assert!(other.status.success() && log.contains("time tiny over 16×1"), "{log}");
    assert!(!log.contains("tiny on test"), "scores must be cached: {log}");
    // An additional variant changes the set of variants timed together, so all of them are timed again.
    let more =
        world.run_ok(&["--set", "name=grid", "--set", "depth=1", "--set", "recovery=[none, ghosted, prune-and-comp]"]);
    assert!(more.contains("time tiny over 16×1"), "{more}");
}

#[test]
fn retime_repeats_only_the_time_measurements() {
    let world = create_world("{length: 16, batch: [1, 2]}");
    let grid = ["--set", "name=grid", "--set", "depth=1"];
    let first = world.run_ok(&grid);
    assert!(!first.contains("--retime: measuring"), "{first}");
    let first_times = read_column(&world, "prefill_ms 16×1");
    let text = read_column(&world, "ppl test@64");
    let again = world.run_ok(&[&grid[..], &["--retime"]].concat());
    let expected =
        "--retime: measuring tiny over 16×1, 16×2 (5 interleaved variants, at least 10 rounds after 3 warm-ups) again";
    let (before, after) = again.split_once("time tiny over 16×1").unwrap_or_else(|| panic!("{again}"));
    assert!(before.contains(expected) && after.contains("time tiny over 16×2"), "{again}");
    assert!(!again.contains("tiny on test"), "scores must be cached: {again}");
    let new_times = read_column(&world, "prefill_ms 16×1");
    assert!(first_times.iter().all(|(recovery, time)| new_times[recovery] != *time), "{first_times:?} {new_times:?}");
    assert_eq!(read_column(&world, "ppl test@64"), text);
    let third = world.run_ok(&grid);
    assert!(!third.contains("time tiny over"), "{third}");
    assert_eq!(read_column(&world, "prefill_ms 16×1"), new_times);
    // If a single timing is missing, all variants are timed again for its prompt but not for other prompts.
    let prompts = ["prefill_ms 16×1", "prefill_ms 16×2"];
    let before = prompts.map(|prompt| read_column(&world, prompt));
    let folders = std::fs::read_dir(world.path("data/store/latency-v4")).unwrap();
    let one =
        folders.flat_map(|folder| std::fs::read_dir(folder.unwrap().path()).unwrap()).next().unwrap().unwrap().path();
    std::fs::remove_file(one).unwrap();
    world.run_ok(&grid);
    let mut counts: Vec<usize> = before
        .into_iter()
        .zip(prompts.map(|prompt| read_column(&world, prompt)))
        .map(|(one, two)| one.iter().filter(|(name, time)| two[*name] != **time).count())
        .collect();
    counts.sort_unstable();
    assert_eq!(counts, [0, 5]);
    let nothing = World::new().run_ok(&["--retime"]);
    assert!(nothing.contains("--retime: this run measures no latencies"), "{nothing}");
    let rejected = world.run(&["--retime", "--stored"]);
    assert_eq!(rejected.status.code(), Some(2));
}

#[test]
fn timings_in_an_old_format_are_reported_but_not_reused() {
    let world = create_world("{length: 16}");
    let grid = ["--set", "name=grid", "--set", "depth=1"];
    world.run_ok(&grid);
    // Rename the folder so that it looks as if the previous version had written its objects.
    let [now, before] = ["latency-v4", "latency-v3"].map(|name| world.path("data/store").join(name));
    std::fs::rename(&now, &before).unwrap();
    let again = world.run_ok(&grid);
    assert!(again.contains("5 stored objects have an older format and are unused"), "{again}");
    assert!(again.contains("time tiny over 16×1"), "{again}");
    assert!(before.is_dir() && now.is_dir());
}

#[test]
fn timings_wait_for_the_machine_wide_lease() {
    let world = World::new();
    let store = Store::open(&world.path("data/store"), stage::STORE_WORDS).unwrap();
    let LeaseResult::Acquired(timing) = store.lease(timing_lease()).unwrap() else {
        panic!("another worker holds the lease")
    };
    let mut run = world.command(&["run", "grid.yaml"]).stderr(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
    let mut lines = BufReader::new(run.stderr.take().unwrap()).lines().map_while(Result::ok);
    assert!(
        lines.any(|line| line.contains("measuring latencies on this machine") && line.contains("waiting")),
        "the run did not wait for the lease"
    );
    assert!(run.try_wait().unwrap().is_none());
    drop(timing);
    assert!(lines.any(|line| line.contains("tiny on test")), "the run did not continue");
    lines.for_each(drop);
    assert!(run.wait().unwrap().success());
}

#[test]
fn out_of_memory_prompt_is_marked_and_others_are_timed() {
    let world = create_world("{length: [16, 4000000]}");
    world.run_ok(&["--set", "name=grid", "--set", "depth=1", "--memory", "2"]);
    let text = std::fs::read_to_string(world.path("results/grid/results.md")).unwrap();
    assert!(text.contains("OOM"), "{text}");
    assert!((read_column(&world, "prefill_ms 4000000×1")).values().all(String::is_empty));
    assert!((read_column(&world, "prefill_ms 16×1")).values().all(|time| parse_number(time) > 0.0));
    assert!((read_column(&world, "status")).values().all(|status| status == "ok"));
}
