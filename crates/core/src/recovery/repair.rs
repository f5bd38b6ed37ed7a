//! What a method gives: a repair, and what is known of how it came about.

use std::sync::Arc;

use crate::model::Operator;

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
