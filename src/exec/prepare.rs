//! Preflight: everything that can be wrong with any backbone or corpus is found before the first model runs; and every
//! text and task is tokenised, unless its tokens are stored.

use std::sync::atomic::AtomicBool;

use crate::error::Result;
use crate::grid::Grid;
use crate::model::check_weights;
use crate::plan::Plan;
use crate::stage::tokens::tokenise_missing;
use crate::work::backbone::{BackbonePlan, Subject};
use crate::work::event::{Event, Reporter};
use ghostlab_store::Store;

/// Checks every backbone and sees that all tokens are stored.
///
/// # Errors
/// The first thing that would stop the run later: a weight file that cannot be read, a recovery that a backbone has no
/// place for, a corpus or a task that cannot be tokenised; or that `stop` was set.
pub fn prepare(plan: &Plan<'_>, store: &Store, reporter: &dyn Reporter, stop: &AtomicBool) -> Result<()> {
    for backbone in &plan.backbones {
        check(plan.grid, backbone, reporter)?;
    }
    tokenise_missing(plan.given(), &plan.backbones, store, reporter, stop)
}

fn check(grid: &Grid, backbone: &BackbonePlan, reporter: &dyn Reporter) -> Result<()> {
    let note = |text: String| reporter.event(Event::Note { text: format!("backbone {}: {text}", backbone.name) });
    backbone.config.notes.iter().for_each(|text| note(text.clone()));
    // Only the header of each weight file; the weights themselves when the backbone's turn comes.
    check_weights(&backbone.config, &backbone.folder)?;
    let mut checked: Vec<String> = Vec::new();
    for method in backbone.variants.iter().filter_map(|variant| grid.cells[variant.cell].recovery.as_ref()) {
        if checked.contains(&method.to_string()) {
            continue;
        }
        method
            .rule
            .check(&backbone.config)
            .map_err(|error| error.at(format!("backbone `{}`, recovery `{method}`", backbone.name)))?;
        checked.push(method.to_string());
    }
    let texts = backbone.evaluations.iter().filter_map(|evaluation| match &evaluation.subject {
        Subject::Windows(text) => Some((&text.corpus, text.length)),
        Subject::Task(_) | Subject::Defined(_) => None,
    });
    let lengths = backbone.calibrations.iter().map(|c| (&c.calibration.corpus, c.calibration.length)).chain(texts);
    for (corpus, length) in lengths {
        if let Some(most) = backbone.config.max_positions.filter(|&most| length > most) {
            note(format!("windows of {length} tokens on `{corpus}` exceed its training context of {most} tokens"));
        }
    }
    Ok(())
}
