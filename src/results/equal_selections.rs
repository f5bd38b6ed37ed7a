//! Note below a table about criteria that remove the same layers. The note states which rows are identical, and why the
//! others differ.

use super::notes::{ranges, removed_text};
use super::result_row::CellSummary;
use super::same_measurement::{RowContent, is_one_measurement};
use super::settings::{distinct, group_by_key, select_settings, setting_text};
use super::{Settings, capital};
use crate::criterion::Criterion;
use crate::grid::Method;
use crate::model::Cut;
use crate::{criterion, recovery};

/// Setting that determines whether operators are solved per region or per layer.
const BOUNDARY: &str = "recovery.boundary";

/// Formats one sentence for each set of criteria that remove the same layers, or returns `None` if there is no such
/// set.
pub(super) fn equal_selections(cells: &[CellSummary]) -> Option<String> {
    let pruned = cells.iter().filter(|cell| !cell.removed.is_empty());
    let selections = group_by_key(pruned.map(|cell| (SelectionKey::from_cell(cell), cell)));
    let shared: Vec<(SharedSelection, String)> = selections
        .iter()
        .filter_map(|(key, cells)| Some((SharedSelection::from_cells(cells)?, key.to_string())))
        .collect();
    let sentences: Vec<String> = group_by_key(shared)
        .into_iter()
        .map(|(shared, locations)| shared.format_sentence(&locations.join(", ")))
        .collect();
    (!sentences.is_empty()).then(|| sentences.join(" "))
}

/// Layers or sublayers that are removed from a backbone with `layers` layers.
#[derive(Clone, PartialEq)]
struct SelectionKey {
    backbone: String,
    layers: usize,
    removed: Cut,
}

impl SelectionKey {
    fn from_cell(cell: &CellSummary) -> Self {
        Self { backbone: cell.cell.backbone.clone(), layers: cell.layers, removed: cell.removed.clone() }
    }
}

impl std::fmt::Display for SelectionKey {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        let Self { backbone, layers, removed } = self;
        if !removed.has_only_whole_layers() {
            return write!(f, "{backbone} ({})", removed_text(removed));
        }
        let removed = removed.whole_layers();
        write!(f, "{backbone} {}/{layers} (layers {})", removed.len(), ranges(&removed, "-", ","))
    }
}

/// Criteria that remove the same layers, with the recoveries whose rows are identical and those whose rows differ.
#[derive(Clone, PartialEq)]
struct SharedSelection {
    criteria: Vec<String>,
    /// Recoveries whose rows share one measurement for all of these criteria.
    identical: Vec<String>,
    differing: Vec<String>,
    /// Criteria by their value of the setting `boundary`. Empty if this setting does not explain why rows differ.
    boundaries: Vec<(String, Vec<String>)>,
}

impl SharedSelection {
    /// Compares the rows of cells with the same removed layers. Returns `None` if the cells have only one criterion.
    fn from_cells(cells: &[&CellSummary]) -> Option<Self> {
        let by_criterion = group_by_key(cells.iter().map(|&cell| (cell_label(cell), cell)));
        if by_criterion.len() < 2 {
            return None;
        }
        let criteria: Vec<String> = by_criterion.into_iter().map(|(label, _)| label).collect();
        let rows = group_by_key(cells.iter().map(|&cell| (recovery_key(cell), cell)));
        let shared = rows.iter().filter(|(_, cells)| {
            distinct(&cells.iter().map(|cell| cell_label(cell)).collect::<Vec<_>>()).len() > 1
                && cells.iter().all(|cell| !cell.programs.is_empty())
        });
        let (identical, differing): (Vec<_>, Vec<_>) = shared.partition(|(_, cells)| is_one_row(cells));
        let differing_labels = recovery_labels(&differing);
        Some(Self {
            identical: recovery_labels(&identical)
                .into_iter()
                .filter(|label| !differing_labels.contains(label))
                .collect(),
            boundaries: criteria_by_boundary(differing.iter().flat_map(|(_, cells)| cells).copied(), &criteria),
            differing: differing_labels,
            criteria,
        })
    }

    fn format_sentence(&self, locations: &str) -> String {
        let Self { criteria, identical, differing, boundaries } = self;
        let is_only_unrepaired = *identical == [recovery::NONE];
        let rows = match (identical.as_slice(), differing.is_empty()) {
            ([], _) => String::new(),
            _ if is_only_unrepaired => "; their unrepaired rows are identical".to_owned(),
            (_, true) => "; their rows are identical".to_owned(),
            (labels, false) => format!("; their {} are identical", format_rows(labels)),
        };
        let reason = match boundaries.split_first() {
            None => String::new(),
            Some(((boundary, criteria), rest)) => {
                let rest = rest.iter().map(|(boundary, criteria)| format!(", {} per {boundary}", possessive(criteria)));
                format!(" because {} are repaired per {boundary}{}", possessive(criteria), rest.collect::<String>())
            }
        };
        let differ = match differing.as_slice() {
            [] => String::new(),
            _ if is_only_unrepaired => format!(" Repaired rows differ{reason}."),
            labels => format!(" {} differ{reason}.", capital(&format_rows(labels))),
        };
        format!("{} remove the same layers on {locations}{rows}.{differ}", join_names(criteria))
    }
}

fn recovery_labels(rows: &[&(Settings, Vec<&CellSummary>)]) -> Vec<String> {
    distinct(&rows.iter().map(|(key, _)| recovery_label(key)).collect::<Vec<_>>())
}

/// Returns whether the rows for one recovery and several criteria share a single measurement.
fn is_one_row(cells: &[&CellSummary]) -> bool {
    let contents: Vec<RowContent<'_>> = cells.iter().map(|cell| RowContent::Programs(&cell.programs)).collect();
    contents.iter().all(|content| is_one_measurement(&contents[0], content))
}

/// Groups the criteria by their value of the setting `boundary`. Returns no groups unless each criterion has exactly
/// one value and the values differ.
fn criteria_by_boundary<'a>(
    cells: impl Iterator<Item = &'a CellSummary>,
    criteria: &[String],
) -> Vec<(String, Vec<String>)> {
    let pairs: Vec<(String, String)> =
        cells.map(|cell| (setting_text(&cell.settings, BOUNDARY).to_owned(), cell_label(cell))).collect();
    let pairs = distinct(&pairs);
    let groups = group_by_key(pairs.iter().cloned());
    let is_reason =
        pairs.len() == criteria.len() && groups.len() > 1 && pairs.iter().all(|(boundary, _)| !boundary.is_empty());
    if is_reason { groups } else { Vec::new() }
}

/// Returns the label for a criterion with the options that the grid sets: `ShortGPT, iterative`.
pub(super) fn criterion_label(method: &Method<dyn Criterion>) -> String {
    criterion::label_with(&method.name, method.options.iter().map(|(option, value)| (option.as_str(), value)))
}

fn cell_label(cell: &CellSummary) -> String {
    cell.cell.criterion.as_ref().map(criterion_label).unwrap_or_default()
}

/// Returns the settings for the recovery and the calibration of a row. The boundary is omitted, because a table may use
/// a different one for each criterion.
fn recovery_key(cell: &CellSummary) -> Settings {
    select_settings(&cell.settings, |name| {
        name != BOUNDARY && (name.starts_with("recovery") || name.starts_with("calibration."))
    })
}

fn recovery_label(key: &Settings) -> String {
    match setting_text(key, "recovery") {
        "" | recovery::NONE => recovery::NONE.to_owned(),
        name => recovery::label(name).to_owned(),
    }
}

fn format_rows(labels: &[String]) -> String {
    format!(
        "rows with {}",
        join_names(
            &labels
                .iter()
                .map(|label| if label == recovery::NONE { "no recovery".to_owned() } else { label.clone() })
                .collect::<Vec<_>>()
        )
    )
}

/// Formats a list as `A`, `A and B`, or `A, B and C`.
fn join_names(names: &[String]) -> String {
    match names.split_last() {
        Some((last, [])) => last.clone(),
        Some((last, rest)) => format!("{} and {last}", rest.join(", ")),
        None => String::new(),
    }
}

fn possessive(names: &[String]) -> String {
    join_names(&names.iter().map(|name| format!("{name}'s")).collect::<Vec<_>>())
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use serde_json::json;

    use super::*;
    use crate::grid::Cell;
    use crate::pipeline::stage::boundary_result::BoundaryResult;
    use crate::results::MeasuredProgram;
    use crate::results::settings::flatten_below;

    /// Builds a cell whose operators are named after their inputs.
    fn cell(backbone: &str, criterion: &str, removed: &[usize], recovery: &str, boundary: &str) -> CellSummary {
        let starts = if boundary == "layer" { removed } else { &removed[..1] };
        let boundaries: Vec<BoundaryResult> = starts
            .iter()
            .map(|start: &usize| -> BoundaryResult {
                let operator = (recovery != "none").then(|| format!("{recovery} {boundary} {start}"));
                serde_json::from_value(json!({
                    "region": [start, start + 1], "operator": operator, "placed": "stream", "notes": [], "losses": [],
                    "solve_seconds": 0.0, "boundary_mae": 0.0, "boundary_mae_by_channel": [], "delta_norm": 0.0,
                    "relative_residual": 0.0, "m_norm": 0.0, "m_symmetric_norm": 0.0, "m_antisymmetric_norm": 0.0,
                }))
                .unwrap()
            })
            .collect();
        let mut settings =
            flatten_below("", &json!({"recovery": recovery, "calibration": {"corpus": "c4", "seed": 0}}));
        if recovery != "none" {
            settings.insert(BOUNDARY.to_owned(), boundary.into());
        }
        CellSummary {
            cell: Cell {
                criterion: Some(Method::with_name(criterion)),
                depth: removed.len().into(),
                ..Cell::with_name(backbone, "")
            },
            removed: Cut::layers(removed.iter().copied()),
            layers: 16,
            settings: Arc::new(settings),
            programs: vec![MeasuredProgram::new(&Cut::layers(removed.iter().copied()), &boundaries)],
            ..CellSummary::default()
        }
    }

    fn rows(criterion: &str, removed: &[usize], recoveries: &[(&str, &str)]) -> Vec<CellSummary> {
        recoveries.iter().map(|(recovery, boundary)| cell("a", criterion, removed, recovery, boundary)).collect()
    }

    #[test]
    fn repaired_rows_of_one_selection_differ_by_boundary() {
        let streamline =
            rows("llm-streamline", &[2, 3], &[("none", ""), ("ghosted", "region"), ("replaceme-ls", "region")]);
        let shortgpt = |boundary: &str| {
            rows("shortgpt", &[2, 3], &[("none", ""), ("ghosted", "layer"), ("replaceme-ls", boundary)])
        };
        let note = |other: Vec<CellSummary>| equal_selections(&[streamline.clone(), other].concat()).unwrap();
        assert_eq!(
            note(shortgpt("layer")),
            "LLM-Streamline and ShortGPT remove the same layers on a 2/16 (layers 2-3); their unrepaired rows are \
             identical. Repaired rows differ because LLM-Streamline's are repaired per region, ShortGPT's per layer."
        );
        assert_eq!(
            note(shortgpt("region")),
            "LLM-Streamline and ShortGPT remove the same layers on a 2/16 (layers 2-3); their rows with no recovery and \
             ReplaceMe (LS) are identical. Rows with Ghost Layer (Ours) differ because LLM-Streamline's are repaired per \
             region, ShortGPT's per layer."
        );
        assert_eq!(
            note(shortgpt("layer")[..1].to_vec()),
            "LLM-Streamline and ShortGPT remove the same layers on a 2/16 (layers 2-3); their unrepaired rows are identical."
        );
    }

    #[test]
    fn equal_selections_of_several_backbones_share_a_sentence() {
        let cells = [
            cell("a", "shortgpt", &[3, 4, 9], "ghosted", "region"),
            cell("a", "shortened-llama", &[3, 4, 9], "ghosted", "region"),
            cell("a", "llm-streamline", &[3, 4, 5], "ghosted", "region"),
            cell("b", "shortgpt", &[1, 2], "ghosted", "region"),
            cell("b", "shortened-llama", &[1, 2], "ghosted", "region"),
            // The same layers are removed from another backbone, and the last cell is dense.
            cell("b", "llm-streamline", &[3, 4, 9], "ghosted", "region"),
            CellSummary { cell: Cell::with_name("a", ""), layers: 16, ..CellSummary::default() },
        ];
        assert_eq!(
            equal_selections(&cells).unwrap(),
            "ShortGPT and Shortened LLaMA remove the same layers on a 3/16 (layers 3-4,9), b 2/16 (layers 1-2); their rows \
             are identical."
        );
        assert_eq!(equal_selections(&cells[2..4]), None);
    }

    #[test]
    fn criteria_are_named_with_the_options_of_the_grid() {
        let mut cells =
            [rows("llm-streamline", &[3], &[("none", "")]), rows("shortgpt", &[3], &[("none", "")])].concat();
        // Options that the grid leaves at their defaults are not named.
        let options = json!({"iterative": true}).as_object().unwrap().clone();
        cells[1].cell.criterion = Some(Method::new("shortgpt", &options).unwrap());
        let note = equal_selections(&cells).unwrap();
        assert!(note.starts_with("LLM-Streamline and ShortGPT, iterative remove the same layers"), "{note}");
    }

    #[test]
    fn failed_rows_are_neither_identical_nor_different() {
        let mut cells = [(); 2].map(|()| rows("shortgpt", &[2, 3], &[("none", ""), ("ghosted", "region")])).concat();
        cells[2].cell.criterion = Some(Method::with_name("llm-streamline"));
        cells[3].cell.criterion = Some(Method::with_name("llm-streamline"));
        cells[3].programs.clear();
        let note = equal_selections(&cells).unwrap();
        assert!(note.ends_with("their unrepaired rows are identical."), "{note}");
        cells[2].programs.clear();
        let note = equal_selections(&cells).unwrap();
        assert!(note.ends_with("remove the same layers on a 2/16 (layers 2-3)."), "{note}");
    }
}
