//! No recovery: the layers are removed, nothing else.

use serde::Deserialize;

use super::{Boundary, Recovery, Repair, Solution};
use crate::error::Result;
use crate::options::{self, Options};

pub(super) const NAME: &str = "none";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct None {}

pub(super) fn build(options: &Options) -> Result<Box<dyn Recovery>> {
    Ok(Box::new(options::read::<None>(NAME, options)?))
}

impl Recovery for None {
    fn solve(&self, _: &Boundary<'_>) -> Result<Solution> {
        Ok(Solution::of(Repair::Cut))
    }
}
