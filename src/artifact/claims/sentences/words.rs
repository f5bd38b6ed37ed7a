//! What several sentences speak of: metrics, methods and their groups, and checks that more than one makes.

use super::super::outcome::Check;
use super::super::setting::ClaimSetting;
use crate::metric;
/// The pruned model.
pub(super) use crate::recovery::NONE;
use crate::results::record::Condition;

pub(super) const ACCURACY: &str = metric::ACCURACY.id;
pub(super) const PERPLEXITY: &str = metric::PERPLEXITY.id;

/// The paper's own method.
pub(super) const GHOSTED: &str = "ghosted";
pub(super) const DIAG: &str = "linearpatch-diag";
pub(super) const ROTATE: &str = "linearpatch-rotate";
/// The methods that the paper compares with.
pub(super) const EXISTING: [&str; 5] = ["prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE];
/// All that repair.
pub(super) const REPAIRS: [&str; 6] = ["prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE, GHOSTED];
/// All that a table shows of a criterion.
pub(super) const ROWS: [&str; 7] = [NONE, "prune-and-comp", "replaceme-ls", "replaceme-cos", DIAG, ROTATE, GHOSTED];

pub(super) fn any(_: &Condition) -> bool {
    true
}

pub(super) fn streamlined(of: &Condition) -> bool {
    of.criterion == "llm-streamline"
}

/// Of all rows of a setting, those of the criteria without a recovery among them, ghosted has the highest accuracy.
pub(super) fn highest_of_all_rows(of: &ClaimSetting<'_>) -> Check {
    let streamlined = of.criterion("llm-streamline");
    let above = |criterion| streamlined.value(ACCURACY, GHOSTED).above(of.criterion(criterion).value(ACCURACY, NONE));
    streamlined.best(ACCURACY, GHOSTED, &ROWS).and(above("shortgpt")).and(above("shortened-llama"))
}

/// The lead over the best other repair is larger at the deepest cut than at the shallowest.
pub(super) fn lead_widens(of: &ClaimSetting<'_>, metric: &str, rivals: &[&str]) -> Check {
    of.between_depths(|deep, shallow| deep.lead(metric, GHOSTED, rivals).above(shallow.lead(metric, GHOSTED, rivals)))
}
