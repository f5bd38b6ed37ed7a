//! Cells by their names, by parts of them, and by what they were called before names were safe in a shell.

use std::collections::BTreeSet;

use crate::error::{Error, Result, nearest};
use crate::grid::{Cell, Grid};

/// The one cell that is called so, or that a part of its name tells from all others.
pub(super) fn find(grid: &Grid, text: &str) -> Result<usize> {
    let cells: Vec<CellNames> = grid.cells.iter().map(CellNames::of).collect();
    match like(&cells, text).as_slice() {
        [only] => Ok(*only),
        [] => {
            let error = Error::bad_input("no cell of the grid is called so").found(format!("`{text}`"));
            let parts: BTreeSet<&str> =
                cells.iter().flat_map(|of| of.name.split('.').chain(of.former.split('/'))).collect();
            let words = if text.contains('/') { text.split('/') } else { text.split('.') };
            let near = words.filter(|word| !parts.contains(word));
            let near = near.filter_map(|word| nearest(word, parts.iter().copied())).next();
            let near = near.map_or(String::new(), |near| format!("did you mean `{near}`?\n"));
            let example = cells.last().map_or("", |of| of.name.as_str());
            Err(error.hint(format!("{near}`ghostlab plan --all` lists them; one is `{example}`")))
        }
        several => {
            let shown: Vec<&str> = several.iter().take(CANDIDATES).map(|&index| cells[index].name.as_str()).collect();
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

/// What a cell answers to.
struct CellNames {
    name: String,
    /// `english/llm-streamline/3/ghosted(solver=svd)/c4:32x512@0`, or `english/dense`: its name of before.
    former: String,
}

impl CellNames {
    fn of(cell: &Cell) -> Self {
        let Cell { backbone, criterion, depth, recovery, calibration, name } = cell;
        let former = match (criterion, recovery, calibration) {
            (Some(criterion), Some(recovery), Some(calibration)) => {
                format!("{backbone}/{criterion}/{depth}/{recovery}/{calibration}")
            }
            _ => format!("{backbone}/dense"),
        };
        Self { name: name.clone(), former }
    }
}

/// The axes, in the order of a cell's former name.
const AXES: [&str; 5] = ["backbone", "criterion", "depth", "recovery", "calibration"];

/// The cells that a text may mean, by the strictest reading that any has: of the names the whole; the end; parts of it, in
/// their order; beginnings of parts. Then the former names likewise, where the name of an axis before a part says which part
/// is meant: `depth/3`. At last any piece of either.
fn like(cells: &[CellNames], text: &str) -> Vec<usize> {
    let end = format!(".{text}");
    let words: Vec<(Option<usize>, &str)> = text.split('.').map(|word| (None, word)).collect();
    let former = former_words(text);
    let readings: [&dyn Fn(&CellNames) -> bool; 9] = [
        &|of| of.name == text,
        &|of| of.name.ends_with(&end),
        &|of| in_order(of.name.split('.'), &words, |part, word| part == word),
        &|of| in_order(of.name.split('.'), &words, begins),
        &|of| of.former == text,
        &|of| in_order(of.former.split('/'), &former, |part, word| part == word),
        &|of| in_order(of.former.split('/'), &former, begins),
        &|of| of.name.contains(text),
        &|of| of.former.contains(text),
    ];
    let of = |reading: &&dyn Fn(&CellNames) -> bool| -> Vec<usize> {
        (0..cells.len()).filter(|&index| reading(&cells[index])).collect()
    };
    readings.iter().map(of).find(|found| !found.is_empty()).unwrap_or_default()
}

/// The parts that a text asks of a former name, each with the place that it has to stand at, if any.
fn former_words(text: &str) -> Vec<(Option<usize>, &str)> {
    let words: Vec<&str> = text.split(['/', '=']).map(str::trim).filter(|word| !word.is_empty()).collect();
    let mut parts: Vec<(Option<usize>, &str)> = Vec::new();
    let mut axis = None;
    for (index, word) in words.iter().enumerate() {
        match AXES.iter().position(|axis| axis == word).filter(|_| axis.is_none() && index + 1 < words.len()) {
            Some(position) => axis = Some(position),
            None => parts.push((axis.take(), word)),
        }
    }
    parts
}

/// Whether all words stand among the parts of a name, in their order.
fn in_order<'a>(
    parts: impl Iterator<Item = &'a str>,
    words: &[(Option<usize>, &str)],
    fits: impl Fn(&str, &str) -> bool,
) -> bool {
    let mut parts = parts.enumerate();
    let mut found = |(place, word): &(Option<usize>, &str)| {
        parts.any(|(at, part)| place.is_none_or(|place| place == at) && fits(part, word))
    };
    !words.is_empty() && words.iter().all(&mut found)
}

/// Whether a part begins with a word. A number is a whole one: 1 is no beginning of 13.
fn begins(part: &str, word: &str) -> bool {
    let digit = |c: Option<char>| c.is_some_and(|c| c.is_ascii_digit());
    let rest = part.strip_prefix(word);
    !word.is_empty() && rest.is_some_and(|rest| !(digit(word.chars().last()) && digit(rest.chars().next())))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cells() -> Vec<CellNames> {
        let called = |name: &str, former: &str| CellNames {
            name: format!("tiny-3.1{name}"),
            former: format!("tiny-3.1{former}"),
        };
        let mut cells = vec![called(".dense", "/dense")];
        for (short, criterion) in [("sleb", "sleb"), ("streamline", "llm-streamline")] {
            for depth in [1, 3, 13] {
                for (part, recovery) in
                    [("none", "none"), ("ghosted", "ghosted"), ("ghosted.solver-svd", "ghosted(solver=svd)")]
                {
                    let former = format!("/{criterion}/{depth}/{recovery}/c4:3x64@0");
                    cells.push(called(&format!(".{short}-{depth}.{part}"), &former));
                }
            }
        }
        cells
    }

    fn found(text: &str) -> Vec<String> {
        let cells = cells();
        like(&cells, text).into_iter().map(|index| cells[index].name["tiny-3.1.".len()..].to_owned()).collect()
    }

    #[test]
    fn a_part_of_a_name_suffices_where_no_other_cell_has_it() {
        assert_eq!(found("dense"), ["dense"]);
        assert_eq!(found("tiny-3.1.sleb-3.ghosted"), ["sleb-3.ghosted"]);
        assert_eq!(found("sleb-3.ghosted"), ["sleb-3.ghosted"], "and not the one with a further part");
        assert_eq!(found("sleb-3.solver-svd"), ["sleb-3.ghosted.solver-svd"], "parts may be left out");
        assert_eq!(found("sleb-1.gh.sol"), ["sleb-1.ghosted.solver-svd"]);
        assert_eq!(found("str-1").len(), 0, "a beginning of a part ends where it ends");
        assert_eq!(found("sleb-1").len(), 3, "1 is no beginning of 13: {:?}", found("sleb-1"));
        assert_eq!(found("ghosted").len(), 6, "one of each criterion and depth: {:?}", found("ghosted"));
        assert!(found("sleb-7").is_empty() && found("ghosted.sleb-1").is_empty(), "parts stand in their order");
    }

    #[test]
    fn what_a_cell_was_called_before_means_it_still() {
        let cells = cells();
        for (at, cell) in cells.iter().enumerate() {
            assert_eq!(like(&cells, &cell.former), [at], "{}", cell.former);
        }
        assert_eq!(found("sleb/3/ghosted"), ["sleb-3.ghosted"]);
        assert_eq!(found("sleb/depth/3/ghosted"), ["sleb-3.ghosted"]);
        assert_eq!(found("sleb/depth=3/recovery=ghosted"), ["sleb-3.ghosted"]);
        assert_eq!(found("depth/3/ghosted"), ["sleb-3.ghosted", "streamline-3.ghosted"]);
        assert_eq!(found("llm/1/ghosted(s"), ["streamline-1.ghosted.solver-svd"]);
        assert_eq!(found("llm-streamline/3/none"), ["streamline-3.none"]);
        assert_eq!(found("c4:3x64@0").len(), 18);
        assert!(found("depth/7").is_empty() && found("ghosted/sleb").is_empty(), "parts stand in their order");
    }
}
