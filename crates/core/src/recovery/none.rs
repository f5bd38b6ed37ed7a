//! Removal of layers without recovery.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

use super::boundary::{Boundary, Repair, Solution};
use super::method::{Recovery, RecoveryEntry, RepairTarget, build};
use crate::error::Result;
use crate::style::{Dash, Hue, Marker, Style};

/// Name of the baseline without repair.
pub const NAME: &str = "none";
pub(super) const ENTRY: RecoveryEntry = RecoveryEntry::new::<None>(NAME, "", build::<None>)
    .label("Pruned")
    .style(Style::new(Hue::Gray, Marker::Cross, Dash::Dashed));

/// Removal without repair.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct None {}

impl Recovery for None {
    fn is_repairing(&self) -> bool {
        false
    }

    fn target(&self) -> RepairTarget {
        RepairTarget::Nothing
    }

    fn estimated_operations(&self, _: usize, _: usize) -> f64 {
        0.0
    }

    fn solve(&self, _: &Boundary<'_>) -> Result<Solution> {
        Ok(Solution::new(Repair::Cut))
    }
}

#[cfg(test)]
mod tests {
    use crate::options::Options;
    use crate::recovery::{build, descriptions};

    #[test]
    fn every_recovery_except_none_repairs() {
        for method in descriptions() {
            let repairs = build(&method.name, &Options::new()).unwrap().is_repairing();
            assert_eq!(repairs, method.name != super::NAME, "{}", method.name);
        }
    }
}
