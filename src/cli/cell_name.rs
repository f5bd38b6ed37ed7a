//! Cells by parts of their names.

use std::collections::BTreeSet;

use crate::error::{Error, Result, nearest};
use crate::grid::Grid;

/// The one cell that is called so, or that a part of its name tells from all others.
pub(super) fn find(grid: &Grid, text: &str) -> Result<usize> {
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
