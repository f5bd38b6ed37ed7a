//! Plan for a grid (layer 1 of the architecture): the keys of all required objects, their state in the store, the
//! reasons why objects are missing, and the estimated costs. Planning does not compute any results.

mod contents;
mod cost;
mod keep_set;
mod outline;
mod reason;
mod recipe;
mod survey;
mod trials;

#[cfg(test)]
pub(crate) use self::cost::ESTIMATES;
pub(crate) use self::cost::held_weight_bytes;
pub use self::cost::{Estimate, JobCost, batch_bytes, placeholder_operator, weights_budget};
pub use self::keep_set::{KeepSet, Quota, engines_of};
pub use self::outline::{JobProgress, Outline, OutlineCell, OutlineJob, OutlineProgress};
pub use self::reason::{Change, Reason, StoredKeyIndex};
pub use self::recipe::Plan;
pub use self::trials::{CandidateScores, TrialCount, trial_scores};
pub use crate::pipeline::env::backbone::{
    BackbonePlan, CalibrationPlan, EvalTarget, Evaluation, ScoredExtent, TrainingPlan, Variant,
};
pub use crate::pipeline::env::inputs::{Inputs, warnings};
pub use crate::pipeline::env::store_view::{ObjectState, StoreView};
pub use crate::pipeline::stage::Job;
