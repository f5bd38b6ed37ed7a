//! A method that repairs a cut: what it is asked, and what it gives.

use serde::de::DeserializeOwned;

use super::boundary::{Boundary, Solution, Span};
use crate::calibrate::HookPoint;
use crate::error::Result;
use crate::model::Config;
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

    /// About what [`Self::solve`] takes on so many rows, in floating-point operations as products in f32 do them: those in f64
    /// count [`WIDE`] times, and numbers that are handled one by one as many as would be done meanwhile. By default a
    /// least-squares problem in f64.
    fn operations(&self, channels: usize, rows: usize) -> f64 {
        least_squares_operations(channels, rows)
    }

    /// The repair of one span.
    ///
    /// # Errors
    /// The activations do not determine one.
    fn solve(&self, boundary: &Boundary<'_>) -> Result<Solution>;
}

/// How many operations of a product in f32 one in f64 takes as long as.
pub const WIDE: f64 = 2.0;
/// How many a number takes that is read and widened, or whose size is summed, measured with two cores at 90 GFLOP/s.
pub(super) const READ: f64 = 50.0;

/// What a least-squares problem in f64 takes.
pub(super) fn least_squares_operations(channels: usize, rows: usize) -> f64 {
    let (c, rows) = (channels as f64, rows as f64);
    // Half of XᵀX, XᵀY; widening both; a factorisation with two solves, and all eigenvalues of what is small.
    let eigenvalues = 350.0 * c.min(512.0).powi(3);
    3.0 * WIDE * rows * c * c + 6.0 * READ * rows * c + 3.0 * WIDE * c.powi(3) + eigenvalues
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
