//! `ghostlab explain GRID.yaml CELL`: everything that a cell is made from.

use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::answer::seen::{ExplainedBackbone, ExplainedObject, Explanation};
use super::answer::{self, Answer};
use super::candidates;
use super::cell_name::find;
use super::grid_args::GridArgs;
use super::out::{bytes, seconds};
use crate::error::{Error, Result};
use crate::exec::RunSettings;
use crate::plan::{Plan, Reason, Reasons, StoreState};
use crate::stage::selection;
use ghostlab_store::Key;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    asked: GridArgs,
    /// The cell as `plan` names it, or parts of that name that no other cell has, in their order: `ghosted`,
    /// `sleb-3.ghosted`; or the beginning of the key of one of its artifacts.
    #[arg(add = candidates::cells())]
    cell: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (grids, _) = arguments.asked.work()?;
    arguments.asked.threads.start()?;
    let store = arguments.asked.look()?;
    // Of an artifact's grids the last is its own.
    let mut found = None;
    for grid in grids.iter().rev() {
        let plan = Plan::new(grid, &store, arguments.asked.engine.request(), RunSettings::default().batch_tokens)?;
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
    let (state, reasons) = (StoreState::read(&plan, &store), Reasons::new(&store, &plan));
    let Some((backbone, variant)) = plan.variants().find(|(_, variant)| variant.cell == index) else {
        return Err(Error::job("a cell is not planned").at(grid.cells[index].to_string()));
    };
    let cell = grid.cells[index].to_string();
    let explanation = Explanation::of(cell, backbone, variant, &state, &reasons, &store);
    answer::show(explanation, Answer::Explain, text)
}

fn text(of: &Explanation) {
    println!("{}", of.cell);
    let ExplainedBackbone { name, folder, content } = &of.backbone;
    println!("backbone {name} ({}), content {}", folder.display(), &content[..12]);
    for artifact in &of.artifacts {
        print!("\n{}\n{}", artifact.what, explained(artifact));
        if let Some(removed) = of.removed_layers.as_ref().filter(|_| artifact.what == selection::KIND.name()) {
            println!("  removes layers {removed:?}");
        }
    }
}

fn by_key(plan: &Plan<'_>, text: &str) -> Option<usize> {
    let is_hash = text.len() >= 6 && text.chars().all(|c| c.is_ascii_hexdigit());
    let has = |key: &std::sync::Arc<Key>| key.hash().starts_with(text);
    let found = is_hash.then(|| plan.variants().find(|(_, variant)| variant.keys().any(has)))?;
    found.map(|(_, variant)| variant.cell)
}

fn explained(artifact: &ExplainedObject) -> String {
    let mut lines = vec![format!("  key {}", artifact.key)];
    match (&artifact.stored, &artifact.reason) {
        (Some(made), _) => {
            lines.push(format!("  stored: {}, made in {}", bytes(made.bytes), seconds(made.seconds)));
            let by = |field: &Option<String>| field.clone().unwrap_or_else(|| "unknown".to_owned());
            let dirty = if made.dirty { " with uncommitted changes" } else { "" };
            lines.push(format!("  by ghostlab {}, commit {}{dirty}", by(&made.ghostlab), by(&made.commit)));
            if !made.command.is_empty() {
                lines.push(format!("  command: {}", made.command.join(" ")));
            }
        }
        (None, None | Some(Reason::First)) => lines.push("  not stored".to_owned()),
        (None, Some(reason)) => lines.push(format!("  not stored: {reason}")),
    }
    lines.push(format!("  place: {}", artifact.place.display()));
    lines.push("  made of:".to_string());
    fields(&artifact.of, "    ", &mut lines);
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
