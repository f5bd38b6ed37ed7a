//! `ghostlab explain GRID.yaml CELL`: shows all inputs of a cell.

use std::collections::BTreeSet;
use std::process::ExitCode;

use clap::Args;
use serde_json::Value;

use super::answer::read_commands::{ExplainAnswer, ExplainedBackbone, ExplainedObject, RemainingSize};
use super::answer::{self, Answer};
use super::grid_args::GridArgs;
use super::terminal::{format_bytes, format_seconds};
use crate::error::{Error, Result, nearest};
use crate::grid::{Cell, Grid};
use crate::model::Cut;
use crate::pipeline::exec::RunSettings;
use crate::pipeline::plan::{Plan, Reason};
use crate::pipeline::stage::selection;

#[derive(Args)]
pub(super) struct Arguments {
    #[command(flatten)]
    grid_args: GridArgs,
    /// Cell name or unique parts of it, or the beginning of an object key.
    ///
    /// For example `sleb-3.ghosted`. `plan` lists the names. The parts must be in the same order as in the name. The
    /// key may belong to any stored object of the cell.
    cell: String,
}

pub(super) fn run(arguments: &Arguments) -> Result<ExitCode> {
    let (grids, _) = arguments.grid_args.grids_to_run(&arguments.grid_args.read()?)?;
    arguments.grid_args.threads.start()?;
    let store = arguments.grid_args.open_read_only()?;
    // Search the main grid of an artifact first. It is the last grid; another grid that only scores the dense backbones
    // may precede it.
    let mut found = None;
    for grid in grids.iter().rev() {
        let plan = Plan::new(grid, &store, RunSettings::with_engine(arguments.grid_args.engine.request()))?;
        let cell = find_cell_by_key(&plan, &arguments.cell).map_or_else(|| find_cell(grid, &arguments.cell), Ok);
        if cell.is_ok() {
            found = Some((plan, cell));
            break;
        }
        found = found.or(Some((plan, cell)));
    }
    let Some((plan, cell)) = found else { return Err(Error::bad_input("the grid has no cells")) };
    let index = cell?;
    let Some(planned) = plan.variants().find(|(_, variant)| variant.cell == index) else {
        return Err(Error::job("the plan does not contain the cell").at(plan.grid.cells[index].to_string()));
    };
    answer::print_answer(ExplainAnswer::new(&plan, planned, &store), Answer::Explain, print_explanation)
}

fn print_explanation(explanation: &ExplainAnswer) {
    println!("{}", explanation.cell);
    let ExplainedBackbone { name, folder, content } = &explanation.backbone;
    println!("backbone {name} ({}), content hash {}", folder.display(), &content[..12]);
    explanation.deviations.iter().for_each(|deviation| println!("the official code {deviation}"));
    for artifact in &explanation.artifacts {
        print!("\n{}\n{}", artifact.what, format_object(artifact));
        if let Some(removed) = explanation.removed_layers.as_ref().filter(|_| artifact.what == selection::KIND.name()) {
            println!("  removes {}", format_removed(removed));
            explanation.size.iter().for_each(|size| println!("  keeps {}", format_remaining(size)));
        }
    }
}

/// Formats the removed layers as `layers [3, 4]` or the removed sublayers as `[attention 3, mlp 5]`.
fn format_removed(removed: &Cut) -> String {
    let prefix = if removed.has_only_whole_layers() { "layers " } else { "" };
    format!("{prefix}{removed}")
}

/// Formats the parameter count and the KV cache size, both without repair operators.
fn format_remaining(size: &RemainingSize) -> String {
    let RemainingSize { parameters, dense_parameters, kv_cache_bytes, dense_kv_cache_bytes } = size;
    format!(
        "{parameters} of {dense_parameters} parameters, {kv_cache_bytes} of {dense_kv_cache_bytes} bytes of KV cache per token"
    )
}

/// Returns the first cell with an object whose hash starts with `prefix`, which must have at least 6 digits.
fn find_cell_by_key(plan: &Plan<'_>, prefix: &str) -> Option<usize> {
    let is_hash = prefix.len() >= 6 && prefix.chars().all(|c| c.is_ascii_hexdigit());
    let found = is_hash
        .then(|| plan.variants().find(|(_, variant)| variant.keys().any(|key| key.hash().starts_with(prefix))))?;
    found.map(|(_, variant)| variant.cell)
}

fn format_object(artifact: &ExplainedObject) -> String {
    let mut lines = vec![format!("  key {}", artifact.key)];
    match (&artifact.stored, &artifact.reason) {
        (Some(made), _) => {
            lines.push(format!("  stored: {}, computed in {}", format_bytes(made.bytes), format_seconds(made.seconds)));
            let dirty = if made.dirty { " with uncommitted changes" } else { "" };
            lines.push(format!(
                "  by ghostlab {}, commit {}{dirty}",
                text_or_unknown(&made.ghostlab),
                text_or_unknown(&made.commit)
            ));
            lines.extend((!made.command.is_empty()).then(|| format!("  command: {}", made.command.join(" "))));
        }
        (None, None | Some(Reason::First)) => lines.push("  not stored".to_owned()),
        (None, Some(reason)) => lines.push(format!("  not stored: {reason}")),
    }
    lines.push(format!("  path: {}", artifact.folder.display()));
    lines.push("  inputs:".to_string());
    push_fields(&artifact.identity, "    ", &mut lines);
    lines.join("\n") + "\n"
}

fn text_or_unknown(field: &Option<String>) -> String {
    field.clone().unwrap_or_else(|| "unknown".to_owned())
}

/// Appends the fields of a key to `lines`, one per line. Keys of inputs are expanded recursively.
fn push_fields(object: &Value, indent: &str, lines: &mut Vec<String>) {
    for (name, value) in object.as_object().into_iter().flatten() {
        match value {
            Value::Object(map) if map.contains_key("kind") && map.contains_key("of") => {
                lines.push(format!(
                    "{indent}{name}: {} v{}, inputs:",
                    map["kind"].as_str().unwrap_or(""),
                    map["version"]
                ));
                push_fields(&map["of"], &format!("{indent}  "), lines);
            }
            other => lines.push(format!("{indent}{name}: {other}")),
        }
    }
}

/// Finds the cell that `query` matches: its name, or some dot-separated parts of its name.
///
/// # Errors
/// Fails if no cell or more than one cell matches.
pub(super) fn find_cell(grid: &Grid, query: &str) -> Result<usize> {
    let cells: Vec<CellNames> = grid.cells.iter().map(CellNames::new).collect();
    match find_cells(&cells, query).as_slice() {
        [only] => Ok(*only),
        [] => {
            let error = Error::bad_input("the grid has no cell with this name").found(format!("`{query}`"));
            let parts: BTreeSet<&str> =
                cells.iter().flat_map(|cell| cell.name.split('.').chain(cell.old_name.split('/'))).collect();
            let words = if query.contains('/') { query.split('/') } else { query.split('.') };
            let unknown = words.filter(|word| !parts.contains(word));
            let near = unknown.filter_map(|word| Some((word, nearest(word, parts.iter().copied())?))).next();
            let near = near
                .map(|(word, near)| format!("did you mean `{}`?\n", query.replacen(word, near, 1)))
                .unwrap_or_default();
            let example = cells.last().map_or("", |cell| cell.name.as_str());
            Err(error.hint(format!(
                "{near}use a cell name such as `{example}`; `ghostlab plan GRID --all` lists the cells that would run"
            )))
        }
        several => {
            let shown: Vec<&str> =
                several.iter().take(MAX_CANDIDATES).map(|&index| cells[index].name.as_str()).collect();
            let more = match several.len().saturating_sub(MAX_CANDIDATES) {
                0 => String::new(),
                more => format!("\n… and {more} more"),
            };
            Err(Error::bad_input(format!("ambiguous cell name: {} cells match", several.len()))
                .expected("a cell name, or parts of one, that match exactly one cell")
                .found(format!("`{query}`"))
                .hint(format!("choose one of the matching cells:\n{}{more}", shown.join("\n"))))
        }
    }
}

const MAX_CANDIDATES: usize = 20;

struct CellNames {
    name: String,
    /// Name in the old format, such as `english/llm-streamline/3/ghosted(solver=svd)/c4:32x512@0` or `english/dense`.
    old_name: String,
}

impl CellNames {
    fn new(cell: &Cell) -> Self {
        let Cell { backbone, criterion, depth, recovery, calibration, name } = cell;
        let old_name = match (criterion, recovery, calibration) {
            (Some(criterion), Some(recovery), Some(calibration)) => {
                format!("{backbone}/{criterion}/{depth}/{recovery}/{calibration}")
            }
            _ => format!("{backbone}/dense"),
        };
        Self { name: name.clone(), old_name }
    }
}

/// Grid axes in the order in which names in the old format list them.
const OLD_NAME_AXES: [&str; 5] = ["backbone", "criterion", "depth", "recovery", "calibration"];

/// Returns the indices of the cells that match `query`, by the strictest rule that matches any cell.
///
/// The rules are tried in this order: full name, suffix, parts in order, prefixes of parts. All but the suffix rule are
/// then tried on names in the old format, where the name of an axis selects a part (`depth/3`). Substring matches are
/// tried last.
fn find_cells(cells: &[CellNames], query: &str) -> Vec<usize> {
    let end = format!(".{query}");
    let words: Vec<(Option<usize>, &str)> = query.split('.').map(|word| (None, word)).collect();
    let old_words = parse_old_name(query);
    let rules: [&dyn Fn(&CellNames) -> bool; 9] = [
        &|names| names.name == query,
        &|names| names.name.ends_with(&end),
        &|names| contains_in_order(names.name.split('.'), &words, |part, word| part == word),
        &|names| contains_in_order(names.name.split('.'), &words, matches_prefix),
        &|names| names.old_name == query,
        &|names| contains_in_order(names.old_name.split('/'), &old_words, |part, word| part == word),
        &|names| contains_in_order(names.old_name.split('/'), &old_words, matches_prefix),
        &|names| names.name.contains(query),
        &|names| names.old_name.contains(query),
    ];
    rules
        .iter()
        .map(|rule: &&dyn Fn(&CellNames) -> bool| -> Vec<usize> {
            (0..cells.len()).filter(|&index| rule(&cells[index])).collect()
        })
        .find(|found| !found.is_empty())
        .unwrap_or_default()
}

/// Splits a string into parts of a name in the old format. Each part comes with the index of its axis if the string
/// names one, as in `depth/3`.
fn parse_old_name(text: &str) -> Vec<(Option<usize>, &str)> {
    let words: Vec<&str> = text.split(['/', '=']).map(str::trim).filter(|word| !word.is_empty()).collect();
    let mut parts: Vec<(Option<usize>, &str)> = Vec::new();
    let mut axis = None;
    for (index, word) in words.iter().enumerate() {
        match OLD_NAME_AXES.iter().position(|axis| axis == word).filter(|_| axis.is_none() && index + 1 < words.len()) {
            Some(position) => axis = Some(position),
            None => parts.push((axis.take(), word)),
        }
    }
    parts
}

/// Returns whether the parts of a name contain all words in the same order. A word with an index must match the part at
/// that index.
fn contains_in_order<'a>(
    parts: impl Iterator<Item = &'a str>,
    words: &[(Option<usize>, &str)],
    fits: impl Fn(&str, &str) -> bool,
) -> bool {
    let mut parts = parts.enumerate();
    !words.is_empty()
        && words
            .iter()
            .all(|(index, word)| parts.any(|(at, part)| index.is_none_or(|index| index == at) && fits(part, word)))
}

/// Returns whether a part starts with a word. A number must match completely, so 1 does not match 13.
fn matches_prefix(part: &str, word: &str) -> bool {
    let rest = part.strip_prefix(word);
    !word.is_empty() && rest.is_some_and(|rest| !(is_digit(word.chars().last()) && is_digit(rest.chars().next())))
}

fn is_digit(c: Option<char>) -> bool {
    c.is_some_and(|c| c.is_ascii_digit())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells() -> Vec<CellNames> {
        let mut cells = vec![cell_names(".dense", "/dense")];
        for (short, criterion) in [("sleb", "sleb"), ("streamline", "llm-streamline")] {
            for depth in [1, 3, 13] {
                for (part, recovery) in
                    [("none", "none"), ("ghosted", "ghosted"), ("ghosted.solver-svd", "ghosted(solver=svd)")]
                {
                    let old_name = format!("/{criterion}/{depth}/{recovery}/c4:3x64@0");
                    cells.push(cell_names(&format!(".{short}-{depth}.{part}"), &old_name));
                }
            }
        }
        cells
    }

    fn cell_names(name: &str, old_name: &str) -> CellNames {
        CellNames { name: format!("tiny-3.1{name}"), old_name: format!("tiny-3.1{old_name}") }
    }

    fn resolve_names(text: &str) -> Vec<String> {
        let cells = cells();
        find_cells(&cells, text).into_iter().map(|index| cells[index].name["tiny-3.1.".len()..].to_owned()).collect()
    }

    #[test]
    fn partial_cell_name_matches_parts_in_order() {
        assert_eq!(resolve_names("dense"), ["dense"]);
        assert_eq!(resolve_names("tiny-3.1.sleb-3.ghosted"), ["sleb-3.ghosted"]);
        assert_eq!(resolve_names("sleb-3.ghosted"), ["sleb-3.ghosted"], "a longer name must not match");
        assert_eq!(resolve_names("sleb-3.solver-svd"), ["sleb-3.ghosted.solver-svd"], "parts may be left out");
        assert_eq!(resolve_names("sleb-1.gh.sol"), ["sleb-1.ghosted.solver-svd"]);
        assert_eq!(resolve_names("str-1").len(), 0, "a partial number must not match");
        assert_eq!(resolve_names("sleb-1").len(), 3, "1 must not match 13: {:?}", resolve_names("sleb-1"));
        assert_eq!(
            resolve_names("ghosted").len(),
            6,
            "expected one match per criterion and depth: {:?}",
            resolve_names("ghosted")
        );
        assert!(
            resolve_names("sleb-7").is_empty() && resolve_names("ghosted.sleb-1").is_empty(),
            "parts must be in order"
        );
    }

    #[test]
    fn cell_name_in_the_old_format_resolves() {
        let cells = cells();
        for (at, cell) in cells.iter().enumerate() {
            assert_eq!(find_cells(&cells, &cell.old_name), [at], "{}", cell.old_name);
        }
        assert_eq!(resolve_names("sleb/3/ghosted"), ["sleb-3.ghosted"]);
        assert_eq!(resolve_names("sleb/depth/3/ghosted"), ["sleb-3.ghosted"]);
        assert_eq!(resolve_names("sleb/depth=3/recovery=ghosted"), ["sleb-3.ghosted"]);
        assert_eq!(resolve_names("depth/3/ghosted"), ["sleb-3.ghosted", "streamline-3.ghosted"]);
        assert_eq!(resolve_names("llm/1/ghosted(s"), ["streamline-1.ghosted.solver-svd"]);
        assert_eq!(resolve_names("llm-streamline/3/none"), ["streamline-3.none"]);
        assert_eq!(resolve_names("c4:3x64@0").len(), 18);
        assert!(
            resolve_names("depth/7").is_empty() && resolve_names("ghosted/sleb").is_empty(),
            "parts must be in order"
        );
    }
}
