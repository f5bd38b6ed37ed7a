//! `ghostlab explain GRID.yaml CELL`: everything that a cell is made from.

use std::collections::BTreeSet;
use std::process::ExitCode;
use std::sync::atomic::AtomicBool;

use clap::Args;
use serde_json::Value;

use super::grid_args::GridArgs;
use super::progress;
use super::units::{bytes, seconds};
use crate::error::{Error, Result, nearest};
use crate::exec::{self, Settings};
use crate::grid::Grid;
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
        let plan = Plan::new(grid, &store, Settings::default().batch_tokens)?;
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

/// The one cell that is called so, or that a part of its name tells from all others.
fn find(grid: &Grid, text: &str) -> Result<usize> {
    let names: Vec<String> = grid.cells.iter().map(ToString::to_string).collect();
    match like(&names, text).as_slice() {
        [only] => Ok(*only),
        [] => {
            let error = Error::bad_input("no cell of the grid is called so").found(format!("`{text}`"));
            let parts: BTreeSet<&str> = names.iter().flat_map(|name| name.split('/')).collect();
            let near = text.split('/').filter(|part| !parts.contains(part));
            let near = near.filter_map(|part| nearest(part, parts.iter().copied())).next();
            let near = near.map_or(String::new(), |near| format!("did you mean `{near}`?\n"));
            let example = names.last().map_or("", String::as_str);
            Err(error.hint(format!("{near}`ghostlab plan --all` lists them; one is `{example}`")))
        }
        several => {
            let shown: Vec<&str> = several.iter().take(CANDIDATES).map(|&index| names[index].as_str()).collect();
            let more = match several.len().saturating_sub(CANDIDATES) {
                0 => String::new(),
                more => format!("\n… and {more} more"),
            };
            Err(Error::bad_input(format!("{} cells are called like that", several.len()))
                .expected("parts of the name that only one has")
                .found(format!("`{text}`"))
                .hint(format!("it may be one of\n{}{more}", shown.join("\n"))))
        }
    }
}

/// Candidates that are listed.
const CANDIDATES: usize = 20;

/// The axes, in the order of a cell's name.
const AXES: [&str; 5] = ["backbone", "criterion", "depth", "recovery", "calibration"];

/// The cells that a text may mean, by the strictest reading that any has: the name; parts of it, in their order; beginnings
/// of parts; any piece of it. The name of an axis before a part says which part is meant: `depth/3`.
fn like(names: &[String], text: &str) -> Vec<usize> {
    let words: Vec<&str> = text.split(['/', '=']).map(str::trim).filter(|word| !word.is_empty()).collect();
    let mut parts: Vec<(Option<usize>, &str)> = Vec::new();
    let mut axis = None;
    for (index, word) in words.iter().enumerate() {
        match AXES.iter().position(|axis| axis == word).filter(|_| axis.is_none() && index + 1 < words.len()) {
            Some(position) => axis = Some(position),
            None => parts.push((axis.take(), word)),
        }
    }
    let pieces = |name: &str, fits: &dyn Fn(&str, &str) -> bool| {
        let mut own = name.split('/').enumerate();
        let found = |(axis, word): &(Option<usize>, &str)| {
            own.any(|(index, part)| axis.is_none_or(|axis| axis == index) && fits(part, word))
        };
        !parts.is_empty() && parts.iter().all(found)
    };
    let readings: [&dyn Fn(&str) -> bool; 4] = [
        &|name| name == text,
        &|name| pieces(name, &|part, word| part == word),
        // A number is a whole one: 1 is no beginning of 13.
        &|name| pieces(name, &|part, word| part == word || part.starts_with(word) && word.parse::<u64>().is_err()),
        &|name| name.contains(text),
    ];
    let of = |reading: &&dyn Fn(&str) -> bool| -> Vec<usize> {
        (0..names.len()).filter(|&index| reading(&names[index])).collect()
    };
    readings.iter().map(of).find(|found| !found.is_empty()).unwrap_or_default()
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_part_of_a_name_suffices_where_no_other_cell_has_it() {
        let mut names = vec!["tiny/dense".to_owned()];
        for criterion in ["sleb", "llm-streamline"] {
            for depth in [1, 3, 13] {
                for recovery in ["none", "ghosted", "ghosted(solver=svd)"] {
                    names.push(format!("tiny/{criterion}/{depth}/{recovery}/c4:3x64@0"));
                }
            }
        }
        let found = |text: &str| like(&names, text).into_iter().map(|index| names[index].as_str()).collect::<Vec<_>>();
        assert_eq!(found("dense"), ["tiny/dense"]);
        assert_eq!(found("sleb/3/ghosted"), ["tiny/sleb/3/ghosted/c4:3x64@0"]);
        assert_eq!(found("sleb/depth/3/ghosted"), found("sleb/3/ghosted"));
        assert_eq!(found("sleb/depth=3/recovery=ghosted"), found("sleb/3/ghosted"));
        assert_eq!(found("depth/3/ghosted").len(), 2, "one of each criterion: {:?}", found("depth/3/ghosted"));
        assert_eq!(found("llm/1/ghosted(s"), ["tiny/llm-streamline/1/ghosted(solver=svd)/c4:3x64@0"]);
        assert_eq!(found("sleb/1/none/c4:3x64@0"), ["tiny/sleb/1/none/c4:3x64@0"]);
        assert!(found("depth/7").is_empty() && found("ghosted/sleb").is_empty(), "parts stand in their order");
    }
}
