//! Loss curves of fine-tuned operators.

use super::drawer::draw_each;
use crate::artifact::figure::{Axis, Curves, Drawing, Figure, Line, Plot, Point, Surroundings};
use crate::artifact::paper::backbone_label;
use crate::error::Result;
use crate::grid::Cell;
use crate::pipeline::exec::{CellResult, GridOutcome};
use crate::recovery;
use crate::results::{Settings, distinct, mean, settings};

/// Draws the training losses in one figure per backbone.
///
/// # Errors
/// Fails if a figure cannot be drawn.
pub(super) fn draw_losses(title: &str, outcome: &GridOutcome) -> Result<Vec<(String, Drawing)>> {
    let trained: Vec<&CellResult> = outcome.cells.iter().filter(|result| !result.training.is_empty()).collect();
    let backbones = distinct(trained.iter().map(|result| &result.cell.backbone));
    draw_each(&backbones, |backbone| {
        let here = trained.iter().copied().filter(|result| result.cell.backbone == *backbone);
        let trained_here: Vec<&CellResult> = here.collect();
        let labels = trained_labels(&trained_here.iter().map(|result| &result.cell).collect::<Vec<_>>());
        let around = Surroundings {
            title: format!("{title}, loss of fine-tuning: {}", backbone_label(backbone)),
            description: "Divergence of the student from the teacher, the mean of the steps around each point."
                .to_owned(),
            heading: backbone_label(backbone).to_owned(),
            ..Surroundings::default()
        };
        let plot = Plot::Curves(Curves {
            x: Axis { label: "Step".into(), ..Axis::default() },
            y: Axis { label: "Loss (nats)".into(), ..Axis::default() },
            lines: trained_here
                .into_iter()
                .zip(labels)
                .map(|(result, label)| {
                    let block = result.training.len().div_ceil(MAX_LOSS_POINTS).max(1);
                    let method = recovery_name(&result.cell).to_owned();
                    Line {
                        label,
                        points: result
                            .training
                            .chunks(block)
                            .enumerate()
                            .map(|(at, steps)| loss_point(block, at, steps))
                            .collect(),
                        method,
                    }
                })
                .collect(),
            levels: Vec::new(),
        });
        Ok(Figure { around, plot })
    })
}

/// Averages the losses in a block of steps, given its maximum size and index. A single step is noisy because it uses
/// only one sequence.
fn loss_point(block: usize, index: usize, steps: &[f64]) -> Point {
    Point { x: (index * block) as f64 + (steps.len() + 1) as f64 / 2.0, y: mean(steps), error: None }
}

fn recovery_name(cell: &Cell) -> &str {
    cell.recovery.as_ref().map_or("", |method| method.name.as_str())
}

/// Returns the labels of the curves. Each consists of the recovery and the settings that distinguish the curve from
/// other curves of that recovery.
fn trained_labels(cells: &[&Cell]) -> Vec<String> {
    let settings: Vec<_> = cells.iter().map(|cell| settings::from_cell(cell)).collect();
    let names: Vec<&str> = cells.iter().map(|cell| recovery_name(cell)).collect();
    let settings: Vec<&Settings> = settings.iter().collect();
    settings::distinct_labels(&names, |name| format!("{} + FT", recovery::label(name)), &settings)
}

/// Maximum number of points in a loss curve. Each point is the mean over several steps.
const MAX_LOSS_POINTS: usize = 16;

#[cfg(test)]
mod tests {
    use super::*;
    use crate::grid::Method;

    #[test]
    fn labels_of_one_recovery_name_the_differing_settings() {
        let one = sleb_cell("ghosted", 4);
        let two = sleb_cell("ghosted", 6);
        let other = sleb_cell("affine", 4);
        let labels = trained_labels(&[&one, &two, &other]);
        let name = format!("{} + FT", recovery::label("ghosted"));
        assert_eq!(labels[..2], [format!("{name}, depth 4"), format!("{name}, depth 6")]);
        assert_eq!(trained_labels(&[&one]), [name]);
        assert!(labels[2].ends_with(" + FT"), "{labels:?}");
    }

    fn sleb_cell(recovery: &str, depth: usize) -> Cell {
        Cell {
            criterion: Some(Method::with_name("sleb")),
            depth: depth.into(),
            recovery: Some(Method::with_name(recovery)),
            ..Cell::with_name("a", "a")
        }
    }
}
