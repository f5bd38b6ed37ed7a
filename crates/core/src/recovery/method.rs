//! A method that repairs a cut: what it is asked, and what it gives.

use std::sync::Arc;

use serde::de::DeserializeOwned;

use super::boundary::{Boundary, Span};
use crate::calibrate::HookPoint;
use crate::error::Result;
use crate::model::{Config, Operator};
use crate::options::{self, Options};

/// A method that repairs a boundary without training.
pub trait Recovery: Send + Sync {
    /// Refuses a backbone that the method cannot repair, before anything runs.
    fn check(&self, config: &Config) -> Result<()> {
        let _ = config;
        Ok(())
    }

    /// Whether anything is put at a cut.
    fn repairs(&self) -> bool {
        true
    }

    /// Whether its operator can be trained further ([`crate::distill`]): it stands on the stream, one for a region.
    fn tunable(&self) -> bool {
        false
    }

    /// Where its repair stands.
    fn place(&self) -> Place {
        Place::Stream
    }

    /// The spans of a removed region that get an operator each: by default the region as a whole.
    fn spans(&self, region: Span) -> Vec<Span> {
        vec![region]
    }

    /// The activations that [`Self::solve`], and measuring its result, read at a span.
    fn sites(&self, span: Span) -> Vec<HookPoint> {
        vec![HookPoint::Stream(span.start), HookPoint::Stream(span.end)]
    }

    /// Which sequences the repairs of a cut are solved on. `one_block`: its criterion removes one block
    /// ([`Criterion::one_block`](crate::criterion::Criterion::one_block)). It is a part of what makes an operator, so that
    /// it depends on nothing that is only known when the layers are chosen; [`Boundary::fitted`] says no more than this.
    fn fitted_on(&self, one_block: bool) -> Fitted {
        let _ = one_block;
        Fitted::All
    }

    /// The repair of one span.
    ///
    /// # Errors
    /// The activations do not determine one.
    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution>;
}

/// Where a method's repair stands: what an architecture can take into its weights depends on it.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Place {
    /// Nowhere.
    Nothing,
    /// Factors on the rows that both halves of the layer before a cut end in.
    Rows,
    /// A map of what that layer's MLP adds.
    Branch,
    /// An operator of the residual stream.
    Stream,
}

/// The sequences of a calibration that a repair is solved on.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Fitted {
    All,
    /// The first ones, as many as the calibration's `operator_sequences` says.
    First,
}

impl Fitted {
    /// How many they are.
    pub fn count(self, sequences: usize, operator_sequences: usize) -> usize {
        match self {
            Self::All => sequences,
            Self::First => operator_sequences.min(sequences),
        }
    }
}

pub(super) type RecoveryEntry = options::Registered<dyn Recovery>;

/// A method that is its options.
pub(super) fn build<T: Recovery + DeserializeOwned + 'static>(
    name: &str,
    options: &Options,
) -> Result<Box<dyn Recovery>> {
    Ok(Box::new(options::read::<T>(name, options)?))
}

/// What a method changes for one span.
#[derive(Debug, Clone)]
pub enum Repair {
    /// Nothing: the layers are only removed.
    Cut,
    /// `x ← x·W` in the place of the span.
    Stream(Arc<Operator>),
    /// `branch ← branch·T` in the layer before the span: in its MLP, and in its attention where that is asked for too.
    Branches { operator: Arc<Operator>, attention: bool },
}

impl Repair {
    /// The operator, wherever it stands.
    pub fn operator(&self) -> Option<&Arc<Operator>> {
        match self {
            Self::Cut => None,
            Self::Stream(operator) | Self::Branches { operator, .. } => Some(operator),
        }
    }
}

/// A repair and what is known of how it came about.
#[derive(Debug, Clone)]
pub struct Solution {
    pub repair: Repair,
    /// What a reader of the table has to know.
    pub notes: Vec<String>,
    /// Of the matrix whose least-squares problem was solved, where one was.
    pub system: Option<System>,
    /// The mean loss of each epoch, where the method iterates.
    pub losses: Vec<f64>,
}

/// The matrix of a least-squares problem, `[rows, C]`.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct System {
    pub rank: usize,
    /// Its largest singular value over its smallest one; infinite where the rank is below `C`.
    pub condition: f64,
}

impl Solution {
    /// A repair about which there is nothing to say.
    pub fn of(repair: Repair) -> Self {
        Self { repair, notes: Vec::new(), system: None, losses: Vec::new() }
    }

    #[must_use]
    pub fn note(mut self, note: impl Into<String>) -> Self {
        self.notes.push(note.into());
        self
    }
}
