//! The micro-world through the program: its texts are generated when they are asked for, its tasks are what our own reader
//! of the real ones reads.
#![allow(clippy::unwrap_used, clippy::panic, reason = "a test stops at what it lacks")]

mod common;

use common::world::{World, table};
use ghostlab::exec::{Methods, generated};
use ghostlab::grid::Grid;
use ghostlab::store::{Found, Store};
use ghostlab::tasks::{Items, Task};

const TASKS: [&str; 9] =
    ["arc_easy", "arc_challenge", "hellaswag", "winogrande", "boolq", "openbookqa", "rte", "copa", "race"];

/// A grid on generated texts and all nine tasks.
fn grid(world: &World) {
    let tasks = TASKS.map(|name| format!("  {name}: {{path: world:{name}}}\n")).concat();
    // All of copa: it has as many documents as the published one, and is not that.
    let limit = |name: &str| if name == "copa" { 100 } else { 3 };
    let uses = TASKS.map(|name| format!("{{name: {name}, limit: {}}}", limit(name))).join(", ");
    world.write(
        "grid.yaml",
        format!(
            "backbones:\n  tiny: {{path: backbone}}\n\
             corpora:\n  web-train: {{path: world:web/train, rule: c4}}\n  wiki: {{path: world:wiki/test, rule: wikitext2, limit: 2}}\n\
             \x20 news: {{path: world:news/validation, rule: ptb, limit: 2}}\ntasks:\n{tasks}\
             backbone: tiny\ncriterion: llm-streamline\ndepth: 1\nrecovery: [none, ghosted]\n\
             calibration: {{corpus: web-train, sequences: 4, length: 64}}\n\
             evaluate:\n  perplexity: [{{corpus: wiki, length: 64}}, {{corpus: news, length: 64}}]\n  tasks: [{uses}]\n"
        ),
    );
}

#[test]
fn a_grid_runs_on_generated_texts_and_tasks_and_the_second_run_generates_nothing() {
    let world = World::new();
    grid(&world);
    world.runs(&[]);
    let rows = table(&world.path("results/grid/results.csv"));
    assert_eq!(rows.len(), 1 + 3);
    assert!(rows[0].contains(&"ppl wiki@64".to_string()) && rows[0].contains(&"race(limit=3)".to_string()));
    let markdown = std::fs::read_to_string(world.path("results/grid/results.md")).unwrap();
    assert!(!markdown.contains("(the published split)"), "{markdown}");
    let made = || -> Vec<(String, std::time::SystemTime)> {
        let store = Store::look_at(&world.path("data/store")).unwrap();
        let of_world = store.entries().into_iter().filter(|entry| entry.stage.starts_with("world-v"));
        of_world.map(|entry| (entry.hash, entry.folder.metadata().unwrap().modified().unwrap())).collect()
    };
    let first = made();
    assert_eq!(first.len(), 3 + 9);
    let log = world.runs(&[]);
    assert!(log.contains("3 of 3 cells are stored already"), "{log}");
    assert_eq!(made(), first);
    // A damaged text is made anew, and what was computed from it is still right.
    let store = Store::look_at(&world.path("data/store")).unwrap();
    for entry in store.entries().into_iter().filter(|entry| entry.stage.starts_with("world-v")) {
        let Found::Whole(artifact) = &entry.found else { panic!("damaged") };
        let path = artifact.path(artifact.payloads().next().unwrap()).unwrap();
        let mut bytes = std::fs::read(&path).unwrap();
        bytes[10] ^= 1;
        std::fs::write(path, bytes).unwrap();
    }
    let log = world.runs(&[]);
    assert!(log.contains("3 of 3 cells are stored already"), "{log}");
    assert_eq!(world.ghostlab(&["cache", "verify"]).status.code(), Some(0));
}

#[test]
fn every_task_of_the_world_reads_like_the_real_one() {
    let world = World::new();
    grid(&world);
    let store = Store::open(&world.path("store")).unwrap();
    let grid = Grid::load(&world.path("grid.yaml"), None, &[], &Methods).unwrap();
    let grid = generated(&grid, &store).unwrap();
    for name in TASKS {
        let items = Items::read(Task::find(name).unwrap(), &grid.tasks[name].path, None).unwrap();
        let least = if name == "copa" { 100 } else { 300 };
        assert!(items.documents.len() >= least, "{name}: {}", items.documents.len());
        assert!(grid.tasks[name].generated, "{name} is not the published split, whatever its size");
        for document in &items.documents {
            let choices = document.prompt.choices.len();
            assert!(usize::try_from(document.prompt.gold).unwrap() < choices, "{name}: {}", document.place);
            assert!([2, 4].contains(&choices), "{name}: {choices} choices");
        }
    }
}

#[test]
fn a_misspelt_text_is_placed_with_the_nearest() {
    let world = World::new();
    grid(&world);
    let text = std::fs::read_to_string(world.path("grid.yaml")).unwrap();
    world.write("grid.yaml", text.replace("world:web/train", "world:web/trian"));
    world.refuses(&[], 2, &["grid.yaml:4", "unknown generated text `web/trian`", "did you mean `web/train`?"]);
}
