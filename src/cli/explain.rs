//! `ghostlab explain GRID.yaml CELL`: everything that a cell is made from.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::Args;
use serde_json::Value;

use super::cell_name::find;
use super::grid_args::GridArgs;
use super::progress;
use super::units::{bytes, seconds};
use crate::error::{Error, Result};
use crate::exec::{self, Settings};
use crate::plan::{KeyState, Plan, Reason, Reasons, StoreState};
use crate::store::{Key, Store};

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    asked: GridArgs,
    /// The cell as `plan` and the tables name it, or parts of that name that no other cell has, in their order:
    /// `ghosted`, `sleb/3/ghosted`, `depth/3/ghosted`; or the beginning of the key of one of its artifacts.
    cell: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (grids, _) = arguments.asked.work()?;
    arguments.asked.start_threads()?;
    let store = arguments.asked.store()?;
    // Of an artifact's grids the last is its own.
    let mut found = None;
    for grid in grids.iter().rev() {
        let plan = Plan::new(grid, &store, arguments.asked.engine(), Settings::default().batch_tokens)?;
        let cell = by_key(&plan, &arguments.cell).map_or_else(|| find(grid, &arguments.cell), Ok);
        let better = cell.is_ok() || found.is_none();
        if better {
            found = Some((plan, cell));
        }
        if found.as_ref().is_some_and(|(_, cell)| cell.is_ok()) {
            break;
        }
    }
    let Some((plan, cell)) = found else { return Err(Error::bad_input("the grid has no cells")) };
    let (grid, index) = (plan.grid, cell?);
    exec::prepare(&plan, &store, &*progress::reporter(false), &AtomicBool::new(false))?;
    let (state, reasons) = (StoreState::read(&plan, &store), Reasons::new(&store, &plan));
    let Some((backbone, variant)) = plan.variants().find(|(_, variant)| variant.cell == index) else {
        return Err(Error::job("a cell is not planned").at(grid.cells[index].to_string()));
    };
    println!("{}", grid.cells[index]);
    println!("backbone {} ({}), content {}", backbone.name, backbone.folder.display(), &backbone.content[..12]);
    let show = |what: &str, key: &Key| print!("\n{what}\n{}", explained(key, &state, &reasons, &store));
    if let Some(place) = variant.calibration {
        let of = &backbone.calibrations[place];
        show(&format!("calibration tokens: {}", of.calibration), &of.tokens);
    }
    variant.selection.iter().for_each(|key| show("selection", key));
    if let Some(selection) = variant.selection.as_ref().and_then(|key| state.selection(key)) {
        println!("  removes layers {:?}", selection.removed);
    }
    variant.operator.iter().for_each(|key| show("operator", key));
    if let Some(trained) = &variant.trained {
        let of = &backbone.calibrations[trained.text];
        show(&format!("fine-tuning tokens: {}", of.calibration), &of.tokens);
        show("trained operator", &trained.key);
    }
    for (evaluation, key) in backbone.evaluations.iter().zip(&variant.scores) {
        show(&format!("tokens of {}", evaluation.subject), &evaluation.tokens);
        show(&format!("scores on {}", evaluation.subject), key);
    }
    for (prompt, key) in backbone.latencies.iter().zip(&variant.latencies) {
        show(&format!("latency over {prompt}"), key);
    }
    Ok(ExitCode::SUCCESS)
}

fn by_key(plan: &Plan<'_>, text: &str) -> Option<usize> {
    let is_hash = text.len() >= 6 && text.chars().all(|c| c.is_ascii_hexdigit());
    let has = |key: &std::sync::Arc<Key>| key.hash().starts_with(text);
    let found = is_hash.then(|| plan.variants().find(|(_, variant)| variant.keys().any(has)))?;
    found.map(|(_, variant)| variant.cell)
}

fn explained(key: &Key, state: &StoreState, reasons: &Reasons, store: &Store) -> String {
    let mut lines = vec![format!("  key {}", key.hash())];
    match state.of(key) {
        KeyState::Whole(artifact) => {
            let meta = artifact.meta();
            lines.push(format!("  stored: {}, made in {}", bytes(meta.bytes()), seconds(meta.seconds)));
            let by = |field: &str| meta.made[field].as_str().unwrap_or("unknown").to_string();
            let dirty = if meta.made["dirty"] == true { " with uncommitted changes" } else { "" };
            lines.push(format!("  by ghostlab {}, commit {}{dirty}", by("ghostlab"), by("commit")));
            if let Some(command) = meta.made["command"].as_array() {
                let words: Vec<&str> = command.iter().filter_map(Value::as_str).collect();
                lines.push(format!("  command: {}", words.join(" ")));
            }
        }
        _ => match reasons.of(key, state) {
            Reason::First => lines.push("  not stored".to_owned()),
            reason => lines.push(format!("  not stored: {reason}")),
        },
    }
    lines.push(format!("  place: {}", store.place(key).display()));
    lines.push("  made of:".to_string());
    fields(&key.readable()["of"], "    ", &mut lines);
    lines.join("\n") + "\n"
}

/// The fields of a key; artifacts that it is made from are named by their kind, and written out where they stand.
fn fields(of: &Value, indent: &str, lines: &mut Vec<String>) {
    for (name, value) in of.as_object().into_iter().flatten() {
        match value {
            Value::Object(map) if map.contains_key("kind") && map.contains_key("of") => {
                lines.push(format!("{indent}{name}: {} v{}, of:", map["kind"].as_str().unwrap_or(""), map["version"]));
                fields(&map["of"], &format!("{indent}  "), lines);
            }
            other => lines.push(format!("{indent}{name}: {other}")),
        }
    }
}
