//! The paper's sentences as checks, judged on its own numbers and on ours.
//!
//! A claim quotes a sentence, says whose [records](crate::record::Record) it is about, and what it comes to: an expression
//! over the records of a group, and in how many groups it must be true. The claims stand in `experiments/claims.yaml`:
//!
//! ```yaml
//! - id: table2-average
//!   artifact: table2                    # or a list
//!   says: "…"                           # the paper's sentence
//!   where: "Section 5.2"
//!   reading: "competitive: …"           # how a word was read that is no number; optional
//!   over: [backbone, depth]             # a check for each combination that the records have; [] for one check
//!   only: { criterion: llm-streamline } # of fields a value, a list of values, or `not VALUE`; optional
//!   check: best(acc_average) == "ghosted"
//!   holds: all                          # all, most (more than half), at least N, any
//! ```
//!
//! # Checks
//!
//! Numbers, `"texts"`, `true`, `false`, brackets; from the weakest: `or`, `and`, `not`, one of `== != < <= > >=`, `+ -`,
//! `* /`, a minus sign. Numbers that differ by rounding alone (a part in 10⁹) are equal.
//!
//! | function | what |
//! | --- | --- |
//! | `value(METRIC, …)` | the value of the one record that the filters leave |
//! | `mean(METRIC, …)`, `count(METRIC, …)` | over all that they leave, at least one |
//! | `best(METRIC, …) == "ghosted"` | whether it is among the best; equals are all best |
//! | `rank(METRIC, recovery: ghosted, …)` | 1 for the best; equals have the same rank |
//! | `gap(METRIC, ghosted, replaceme-ls, …)` | by how much the first is better; below 0 where it is worse |
//! | `gap(METRIC, ghosted, others, …)` | over the best of all others: the runner-up, where ghosted is the best |
//! | `abs(x)`, `min(x, y, …)`, `max(x, y, …)` | |
//!
//! A metric knows whether more or less of it is better ([`crate::record::higher_is_better`]). `best`, `rank` and `gap`
//! compare recoveries, one record of each; with `by: FIELD` they compare the values of another field.
//!
//! A filter is `FIELD: VALUE`, `FIELD: [VALUE, …]`, or either after `not`. The fields are those of
//! [`crate::record::Condition`], and the two parts of the calibration, `corpus` and `sequences`. A depth is a number, or
//! `pruned` (not 0), `shallow` or `deep` (the fewest and the most removed layers of the record's backbone among all
//! records that the claim is judged on): the profiles cut backbones of different sizes. Names with a colon stand in
//! quotes: `"c4:32"`.
//!
//! # Outcomes
//!
//! True, false, or unknown where a number is missing that decides: no record, several records, a failed cell, a value
//! that is not finite, a division by zero. Unknown is never counted as true, and a claim that it leaves open neither
//! holds nor fails. Everything else that can be wrong with a check is refused when the file is loaded.

mod call;
mod claim;
mod compare;
mod eval;
mod expr;
mod filter;
mod judge;
mod parse;
mod read;
#[cfg(test)]
mod samples;
mod source;
mod token;
mod words;

#[cfg(test)]
mod paper_tests;

pub use claim::{Claim, Needed, load};
pub use compare::{Artifacts, Comparison, compare, render};
pub use eval::Outcome;
pub use filter::Field;
pub use judge::{GroupVerdict, Verdict};
