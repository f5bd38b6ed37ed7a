//! `ghostlab explain GRID.yaml CELL`: everything that a cell is made from.

use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::Args;
use serde_json::Value;

use super::asked::Asked;
use super::progress;
use super::units::{bytes, seconds};
use crate::error::{Error, Result, nearest};
use crate::exec::{self, Settings};
use crate::grid::Grid;
use crate::plan::{Plan, Reasons, State, Stored};
use crate::store::{Key, Store};

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    asked: Asked,
    /// The cell as `plan` and the tables name it, or any part of it that no other cell has; or the beginning of the key
    /// of one of its artifacts.
    cell: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (grid, _) = arguments.asked.work()?;
    arguments.asked.start_threads()?;
    let store = arguments.asked.store()?;
    let plan = Plan::new(&grid, &store, Settings::default().batch_tokens)?;
    exec::prepare(&plan, &store, &*progress::reporter(false), &AtomicBool::new(false))?;
    let (state, reasons) = (State::read(&plan, &store), Reasons::new(&store));
    let index = match by_key(&plan, &arguments.cell) {
        Some(index) => index,
        None => find(&grid, &arguments.cell)?,
    };
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
    for (evaluation, key) in backbone.evaluations.iter().zip(&variant.scores) {
        show(&format!("tokens of {}", evaluation.subject), &evaluation.tokens);
        show(&format!("scores on {}", evaluation.subject), key);
    }
    Ok(ExitCode::SUCCESS)
}

fn by_key(plan: &Plan<'_>, text: &str) -> Option<usize> {
    let is_hash = text.len() >= 6 && text.chars().all(|c| c.is_ascii_hexdigit());
    let has = |key: &std::sync::Arc<Key>| key.hash().starts_with(text);
    let found = is_hash.then(|| plan.variants().find(|(_, variant)| variant.keys().any(has)))?;
    found.map(|(_, variant)| variant.cell)
}

/// The one cell that is called so, or whose name holds the text.
fn find(grid: &Grid, text: &str) -> Result<usize> {
    let names: Vec<String> = grid.cells.iter().map(ToString::to_string).collect();
    if let Some(index) = names.iter().position(|name| name == text) {
        return Ok(index);
    }
    let like: Vec<usize> = (0..names.len()).filter(|&index| names[index].contains(text)).collect();
    match like.as_slice() {
        [only] => Ok(*only),
        [] => {
            let error = Error::bad_input("no cell of the grid is called so").found(format!("`{text}`"));
            let near = nearest(text, names.iter().map(String::as_str)).unwrap_or(&names[0]).to_string();
            Err(error.hint(format!("`ghostlab plan --all` lists them; one is `{near}`")))
        }
        several => {
            let shown: Vec<&str> = several.iter().take(8).map(|&index| names[index].as_str()).collect();
            Err(Error::bad_input(format!("{} cells are called like that", several.len()))
                .expected("a part of the name that only one has")
                .found(format!("`{text}`, as in {}", shown.join(", "))))
        }
    }
}

fn explained(key: &Key, state: &State, reasons: &Reasons, store: &Store) -> String {
    let mut lines = vec![format!("  key {}", key.hash())];
    match state.of(key) {
        Stored::Whole(artifact) => {
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
        _ => lines.push(format!("  not stored: {}", reasons.of(key, state))),
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
