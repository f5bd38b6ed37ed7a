//! Rows that are one cut: criteria that chose the same layers.

use std::collections::BTreeSet;

use super::distinct;
use super::long::ranges;
use super::measurement::CellSummary;
use crate::criterion;

/// A line that names criteria which remove the same layers of a backbone; none where each removes its own.
pub(super) fn equal_cuts(cells: &[CellSummary]) -> Option<String> {
    let cut = |cell: &CellSummary| (cell.backbone.clone(), cell.depth, cell.layers, removed(cell));
    let cuts = distinct(cells.iter().filter(|cell| !cell.removed.is_empty()).map(cut).collect::<Vec<_>>().iter());
    let several = |of: &(String, usize, usize, BTreeSet<usize>)| {
        let own = cells.iter().filter(|cell| cut(cell) == *of);
        let names = distinct(own.filter_map(|cell| cell.criterion.as_ref()));
        let labels = distinct(names.iter().map(|name| criterion::label(name).to_owned()).collect::<Vec<_>>().iter());
        let (backbone, depth, layers, removed) = of;
        (labels.len() > 1).then(|| {
            let removed: Vec<usize> = removed.iter().copied().collect();
            format!("{} on {backbone} {depth}/{layers} (layers {})", labels.join(" = "), ranges(&removed))
        })
    };
    let lines: Vec<String> = cuts.iter().filter_map(several).collect();
    (!lines.is_empty())
        .then(|| format!("Equal cuts, whose rows are one measurement under several names: {}.", lines.join("; ")))
}

fn removed(cell: &CellSummary) -> BTreeSet<usize> {
    cell.removed.iter().copied().collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn cell(backbone: &str, criterion: &str, removed: &[usize]) -> CellSummary {
        CellSummary {
            backbone: backbone.into(),
            criterion: Some(criterion.into()),
            depth: removed.len(),
            removed: removed.to_vec(),
            layers: 16,
            ..CellSummary::default()
        }
    }

    #[test]
    fn criteria_that_chose_the_same_layers_are_named_with_them() {
        let cells = [
            cell("a", "shortgpt", &[3, 4, 9]),
            cell("a", "shortened-llama", &[9, 3, 4]),
            cell("a", "llm-streamline", &[3, 4, 5]),
            // Another recovery of one cut, and the same cut of another backbone.
            cell("a", "shortgpt", &[3, 4, 9]),
            cell("b", "llm-streamline", &[3, 4, 9]),
            CellSummary { backbone: "a".into(), layers: 16, ..CellSummary::default() },
        ];
        assert_eq!(
            equal_cuts(&cells).unwrap(),
            "Equal cuts, whose rows are one measurement under several names: ShortGPT = Shortened LLaMA on a 3/16 \
             (layers 3-4,9)."
        );
        assert_eq!(equal_cuts(&cells[2..]), None);
    }
}
