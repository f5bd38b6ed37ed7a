//! The paper's sentences as checks, judged on its own numbers and on ours.
//!
//! A [`Claim`] quotes a sentence of the paper, says where it stands, how it is read, of which artifacts and in how many
//! settings it must be true, and what it comes to: a short function over the numbers of one setting.
//!
//! | file | noun |
//! | --- | --- |
//! | `claim` | a claim, how many settings it asks for, and the file of all, read |
//! | `claims.yaml` | the claims, section by section: another one is another entry there, and its check |
//! | `checks` | what each claim comes to |
//! | `setting` | the numbers of one setting, and the questions that a claim asks of them: value, mean, least, best, gap, lead, rank |
//! | `number` | a number that may be unknown, and what a check comes to: holds, fails, or unknown |
//! | `run` | the numbers of an artifact and what made them: only runs that agree are read together |
//! | `judge` | a claim on one side's numbers |
//! | `compare` | the paper's count beside ours, also as a file beside a recorded run, and the folders that it is judged on |
//!
//! Numbers are compared as a table prints them: what prints alike is alike.
//!
//! A number that is missing makes a check unknown, and never true: a cell that failed, a method without a cell, a metric
//! that was not measured. A claim names its rivals, so that one that is missing is missed. A claim whose unknown settings
//! could change it neither holds nor fails.

mod checks;
mod claim;
mod compare;
mod judge;
mod number;
mod run;
mod setting;

#[cfg(test)]
mod paper_tests;
#[cfg(test)]
mod place_tests;
#[cfg(test)]
mod samples;

pub use claim::{Claim, ClaimAxis, Needed, claims};
pub use compare::{CLAIMS, JudgedClaim, about, judged, judged_in, line, render, row, written};
pub use judge::{ClaimVerdict, SettingVerdict};
pub use number::Judgement;
pub use run::{ArtifactNumbers, Artifacts, ClaimRun};
