//! No recovery: the layers are removed, nothing else.

use std::sync::Arc;

use serde::Deserialize;

use super::{Boundary, Recovery};
use crate::error::Result;
use crate::model::Operator;
use crate::options::{self, Options};

pub(super) const NAME: &str = "none";

#[derive(Deserialize)]
#[serde(deny_unknown_fields)]
struct Settings {}

struct None;

pub(super) fn build(options: &Options) -> Result<Box<dyn Recovery>> {
    let Settings {} = options::read(NAME, options)?;
    Ok(Box::new(None))
}

impl Recovery for None {
    fn reads_activations(&self) -> bool {
        false
    }

    fn solve(&self, _: &Boundary<'_>) -> Result<Option<Arc<Operator>>> {
        Ok(Option::None)
    }
}
