//! Tests for corpora streamed from several files.

use super::*;

/// Returns eight shards of 10,400 documents, which is 400 more than fit into the shuffle buffer. Every tenth document
/// is long enough to fill a window.
fn served_shards() -> Vec<ServedFile> {
    (0..8)
        .map(|shard| {
            large(
                &format!("en/part-{shard}-of-8.jsonl"),
                (0..10_400_usize)
                    .map(|row| {
                        let count = if row.is_multiple_of(10) { 70 + row % 7 } else { 2 };
                        let words: Vec<String> =
                            (0..count).map(|at| format!("w{}", (at * at + 7 * shard + row) % 200)).collect();
                        format!("{}\n", serde_json::json!({"text": words.join(" ")}))
                    })
                    .collect::<String>()
                    .into_bytes(),
            )
        })
        .collect()
}

/// Grid entry for a streamed corpus.
const STREAM: &str = "hub: org/texts, files: \"en/part-{0..7}-of-8.jsonl\", rule: c4-stream";

fn write_stream_grid(world: &World) {
    world.write(
        "grid.yaml",
        format!(
            "backbones:\n  tiny: {{path: backbone}}\ncorpora:\n  train: {{{STREAM}}}\n  test: {{{STREAM}, limit: 5}}\n\
             backbone: [tiny]\ncriterion: [llm-streamline]\ndepth: [1]\nrecovery: [none, ghosted]\n\
             calibration:\n  - {{corpus: train, sequences: 8, length: 64}}\n\
             evaluate:\n  perplexity:\n    - {{corpus: test, length: 64}}\n"
        ),
    );
}

#[test]
fn only_the_needed_shards_of_a_stream_are_fetched() {
    let world = World::new();
    let server = FakeHub::start("datasets/org/texts", served_shards(), no_fault());
    write_stream_grid(&world);
    assert!(run(&world, &server, &["run", "grid.yaml"], 3).contains("`ghostlab fetch grid.yaml`"));
    run(&world, &server, &["fetch", "grid.yaml"], 0);
    // With seed 0, `datasets` starts with shard 2 of the eight (reference data `c4_stream`).
    assert_eq!(cached_parts(&world), ["part-2-of-8.jsonl"]);
    server.forget();
    run(&world, &server, &["run", "grid.yaml"], 0);
    assert!(server.requests().is_empty());
    let record = json(&world.path("results/grid/run.json"));
    let stream = &record["grid"]["corpora"]["train"]["stream"];
    let files = serde_json::json!({"shards": "one-by-one", "of": 8, "read": 1, "files": {"2": "part-2-of-8.jsonl"}});
    assert_eq!(*stream, files);
    let notes = fs::read_to_string(world.path("results/grid/results.md")).unwrap();
    assert!(notes.contains("streamed shard by shard"), "{notes}");
    let first = fs::read(world.path("results/grid/results.csv")).unwrap();

    // A different seed starts with a different shard, here shard 5. Interleaved reading needs all eight shards.
    let seed = ["--set", "calibration.seed=1"];
    assert!(run(&world, &server, &[&["run", "grid.yaml"][..], &seed].concat(), 3).contains("corpus `train` not found"));
    run(&world, &server, &[&["fetch", "grid.yaml"][..], &seed].concat(), 0);
    assert_eq!(cached_parts(&world), ["part-2-of-8.jsonl", "part-5-of-8.jsonl"]);
    let turns = ["--set", "corpora.train.shards=by-turns", "--set", "corpora.test.shards=by-turns"];
    run(&world, &server, &[&["fetch", "grid.yaml"][..], &turns].concat(), 0);
    assert_eq!(cached_parts(&world).len(), 8);
    run(&world, &server, &[&["run", "grid.yaml", "--results", "turns"][..], &turns].concat(), 0);

    // If the first shard has too few documents, the error suggests reading more shards and names the next one.
    let more = ["--set", "calibration.sequences=100"];
    let ended_early = run(&world, &server, &[&["run", "grid.yaml"][..], &more].concat(), 3);
    assert!(ended_early.contains("`shards_read: 2`") && ended_early.contains("shard 4 of 8"), "{ended_early}");
    run(&world, &server, &[&["run", "grid.yaml"][..], &more, &["--set", "corpora.train.shards_read=2"]].concat(), 0);
    run(&world, &server, &["run", "grid.yaml", "--stored"], 0);
    assert_eq!(
        fs::read(world.path("results/grid/results.csv")).unwrap(),
        first,
        "the stored results differ from those of the first run"
    );

    // A local folder with identical files counts as the same text, so nothing is recomputed.
    fs::create_dir(world.path("text")).unwrap();
    for file in served_shards() {
        world.write(&format!("text/{}", file.name.trim_start_matches("en/")), &file.content);
    }
    let grid = fs::read_to_string(world.path("grid.yaml")).unwrap().replace(STREAM, "path: text, rule: c4-stream");
    world.write("grid.yaml", grid.replace("test: {path", "test: {generated: true, path"));
    run(&world, &server, &["run", "grid.yaml", "--stored"], 0);
    check_wrong_streams(&world, &server);
}

/// Checks the messages for invalid stream settings.
fn check_wrong_streams(world: &World, server: &FakeHub) {
    for (set, found) in [
        ("corpora.test.rule=c4", "corpus not found"),
        ("corpora.test.shards=sideways", "sideways"),
        ("corpora.test.shards_read=0", "invalid `shards_read`"),
    ] {
        let log = combined_output(&run_with_hub(world, &server.address, &["run", "grid.yaml", "--set", set], &[]));
        assert!(log.contains(found) && log.contains("error:"), "{set}: {log}");
    }
}

fn cached_parts(world: &World) -> Vec<String> {
    let folder = world.path("cache/datasets--org--texts/snapshots").join(COMMIT).join("en");
    let mut names: Vec<String> =
        fs::read_dir(folder).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}
