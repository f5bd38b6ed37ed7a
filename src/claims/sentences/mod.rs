//! The paper's claims, section by section.
//!
//! A sentence is worded as it is written, whether or not the paper's own tables bear it out. Where a word of it is no
//! number ("competitive", "substantial"), `reading` says how it was taken; the threshold is ours, not the paper's. Sections
//! are counted as the paper prints them; appendices A to H in their order.
//!
//! Another claim is another entry: what it says, whose numbers it is about, and a check over one setting of them.

mod analysis;
mod appendices;
mod introduction;
mod results;

use super::claim::Claim;
use super::outcome::Check;
use super::setting::ClaimSetting;
use crate::metric;
use crate::record::Condition;
/// The pruned model.
use crate::recovery::NONE;

/// All claims, in the order of the paper.
pub fn claims() -> impl Iterator<Item = &'static Claim> {
    [introduction::CLAIMS, analysis::CLAIMS, results::CLAIMS, appendices::CLAIMS].into_iter().flatten()
}

const ACCURACY: &str = metric::ACCURACY.id;
const PERPLEXITY: &str = metric::PERPLEXITY.id;

/// The paper's own method.
const GHOSTED: &str = "ghosted";
const DIAG: &str = "linearpatch-diag";
const ROTATE: &str = "linearpatch-rotate";
/// The methods that the paper compares with.
const EXISTING: [&str; 5] = ["prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE];
/// All that repair.
const REPAIRS: [&str; 6] = ["prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE, GHOSTED];
/// All that a table shows of a criterion.
const ROWS: [&str; 7] = [NONE, "prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE, GHOSTED];

fn any(_: &Condition) -> bool {
    true
}

fn streamlined(of: &Condition) -> bool {
    of.criterion == "llm-streamline"
}

/// Of all rows of a setting, those of the criteria without a recovery among them, ghosted has the highest accuracy.
fn highest_of_all_rows(of: &ClaimSetting<'_>) -> Check {
    let streamlined = of.criterion("llm-streamline");
    let above = |criterion| streamlined.value(ACCURACY, GHOSTED).above(of.criterion(criterion).value(ACCURACY, NONE));
    streamlined.best(ACCURACY, GHOSTED, &ROWS).and(above("shortgpt")).and(above("shortened-llama"))
}

/// The lead over the best other repair is larger at the deepest cut than at the shallowest.
fn lead_widens(of: &ClaimSetting<'_>, metric: &str, rivals: &[&str]) -> Check {
    of.between_depths(|deep, shallow| deep.lead(metric, GHOSTED, rivals).above(shallow.lead(metric, GHOSTED, rivals)))
}
