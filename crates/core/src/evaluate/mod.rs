//! Floor 2: scores of variants.

pub mod choices;
mod encoder;
mod eval_set;
pub mod perplexity;

pub use encoder::TaskEncoder;
pub use eval_set::{EvalSet, score};

use crate::error::Result;
use crate::model::Observer;

/// Adds up the seconds of each node.
struct Clock<'a>(&'a mut [f64]);

impl<S> Observer<S> for Clock<'_> {
    fn after(&mut self, node: usize, _: Option<&S>, seconds: f64) -> Result<()> {
        self.0[node] += seconds;
        Ok(())
    }
}
