//! Token-by-token comparison of [programs](super::program::Program) with a reference program in a single run of their
//! [`Trie`].

use std::cell::RefCell;

use rayon::prelude::*;

use super::batch::{Batch, Divergence};
use super::engine::{BatchDivergences, Lockstep, StepTimer, run_timed_in_parallel};
use super::program::Step;
use super::trie::{Model, Trie};
use crate::error::{Error, Result};

/// Model that can compare the predictions of two residual streams.
pub(super) trait Compare: Model<Residual: Clone> {
    type Divergences: Clone;

    /// Compares the predictions of a stream with those of the reference program's stream.
    fn compare(
        &self,
        batch: &Self::Batch,
        reference: &Self::Residual,
        stream: &Self::Residual,
    ) -> Result<Self::Divergences>;
}

/// Runs a trie built by [`Trie::with_reference`]. If `max_streams` is set, the trie runs layer by layer and keeps at
/// most that many streams. If the limit is too small for all streams, the reference program first runs on its own, so
/// that no other stream has to wait for its result.
///
/// # Errors
/// Fails if a step fails, or the trie has no reference program.
pub(super) fn compare_trie<M: Compare>(
    model: &M,
    trie: &Trie,
    max_streams: Option<usize>,
    batch: &M::Batch,
    seconds: &mut [f64],
) -> Result<Vec<Option<M::Divergences>>> {
    let missing_error = || Error::job("no reference program to compare with");
    let head = trie.reference_head().ok_or_else(missing_error)?;
    let comparing = ComparingModel { model, head, reference: RefCell::new(None) };
    let mut timer = StepTimer(seconds);
    let outputs = match max_streams {
        Some(max_streams) => {
            // The reference program's stream is kept until the end and counts toward the limit.
            let max_other_streams = max_streams.saturating_sub(1);
            if trie.programs() > max_other_streams {
                comparing.reference.replace(reference_stream(model, trie, batch)?);
            }
            trie.run_by_layer(max_other_streams, &comparing, batch, &mut timer)?
        }
        None => trie.run(&comparing, batch, &mut timer)?,
    };
    let reference = comparing.reference.into_inner().ok_or_else(missing_error)?;
    let divergences = outputs.into_iter().map(|output| match output {
        Some(Output::Divergences(divergences)) => Ok(Some(divergences)),
        Some(Output::Waiting(stream)) => model.compare(batch, &reference, &stream).map(Some),
        None => Ok(None),
    });
    divergences.collect()
}

/// Runs the reference program alone and returns its final stream.
fn reference_stream<M: Compare>(model: &M, trie: &Trie, batch: &M::Batch) -> Result<Option<M::Residual>> {
    let Some(alone) = trie.reference_alone() else { return Ok(None) };
    let Some(head) = alone.reference_head() else { return Ok(None) };
    let comparing = ComparingModel { model, head, reference: RefCell::new(None) };
    alone.run(&comparing, batch, &mut ())?;
    Ok(comparing.reference.into_inner())
}

/// Runs [`compare_trie`] on all parts in parallel.
pub(super) fn compare_parts_in_parallel<M>(
    model: &M,
    trie: &Trie,
    parts: &[Batch],
    seconds: &mut [f64],
) -> Result<Vec<BatchDivergences>>
where
    M: Compare<Batch = Batch, Divergences = Vec<Divergence>> + Sync,
{
    run_timed_in_parallel(parts, seconds, |batch, nodes| compare_trie(model, trie, None, batch, nodes))
}

/// Model wrapper that stores the stream of the reference program during a run.
struct ComparingModel<'a, M: Compare> {
    model: &'a M,
    /// Node of the reference program's head.
    head: usize,
    reference: RefCell<Option<M::Residual>>,
}

/// Output of a program's head.
enum Output<M: Compare> {
    Divergences(M::Divergences),
    /// Final residual stream, which is compared after the run because the reference program ends at the same head or
    /// had not finished.
    Waiting(M::Residual),
}

impl<M: Compare> Clone for Output<M> {
    fn clone(&self) -> Self {
        match self {
            Self::Divergences(divergences) => Self::Divergences(divergences.clone()),
            Self::Waiting(stream) => Self::Waiting(stream.clone()),
        }
    }
}

impl<M: Compare> Model for ComparingModel<'_, M> {
    type Batch = M::Batch;
    type Residual = M::Residual;
    type Output = Output<M>;

    fn announce_weights(&self, now: Option<usize>, next: Option<usize>) {
        self.model.announce_weights(now, next);
    }

    fn begin(&self, batch: &M::Batch) -> Result<M::Residual> {
        self.model.begin(batch)
    }

    fn advance(&self, batch: &M::Batch, step: &Step, stream: &M::Residual) -> Result<M::Residual> {
        self.model.advance(batch, step, stream)
    }

    fn narrow(&self, batch: &M::Batch, stream: M::Residual) -> Result<M::Residual> {
        self.model.narrow(batch, stream)
    }

    fn finish(&self, _: &M::Batch, stream: &M::Residual) -> Result<Output<M>> {
        Ok(Output::Waiting(stream.clone()))
    }

    fn finish_at(&self, node: usize, batch: &M::Batch, stream: &M::Residual) -> Result<Output<M>> {
        if node == self.head {
            *self.reference.borrow_mut() = Some(stream.clone());
            // If another program ends at this node, its stream is compared with itself after the run.
            return self.finish(batch, stream);
        }
        match &*self.reference.borrow() {
            Some(reference) => self.model.compare(batch, reference, stream).map(Output::Divergences),
            None => self.finish(batch, stream),
        }
    }
}

impl<M> Compare for Lockstep<'_, M>
where
    M: Compare<Batch = Batch, Output = Vec<super::batch::Prediction>, Residual: Send + Sync> + Sync,
    M::Divergences: Send,
{
    type Divergences = Vec<M::Divergences>;

    fn compare(
        &self,
        parts: &[Batch],
        reference: &Vec<M::Residual>,
        streams: &Vec<M::Residual>,
    ) -> Result<Vec<M::Divergences>> {
        let streams = reference.par_iter().zip(streams);
        parts.par_iter().zip(streams).map(|(batch, (p, q))| self.model.compare(batch, p, q)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::model::program::Program;

    /// A model whose stream lists the executed steps, and whose comparison returns the lists of both streams.
    struct ListingModel;

    impl Model for ListingModel {
        type Batch = ();
        type Residual = Vec<Step>;
        type Output = ();

        fn begin(&self, (): &()) -> Result<Vec<Step>> {
            Ok(vec![Step::Embed])
        }

        fn advance(&self, (): &(), step: &Step, stream: &Vec<Step>) -> Result<Vec<Step>> {
            Ok([stream.as_slice(), std::slice::from_ref(step)].concat())
        }

        fn finish(&self, (): &(), _: &Vec<Step>) -> Result<()> {
            Ok(())
        }
    }

    impl Compare for ListingModel {
        type Divergences = [Vec<Step>; 2];

        fn compare(&self, (): &(), reference: &Vec<Step>, stream: &Vec<Step>) -> Result<[Vec<Step>; 2]> {
            Ok([reference.clone(), stream.clone()])
        }
    }

    #[test]
    fn programs_are_compared_within_any_stream_limit() {
        let dense = Program::dense(6);
        let mut programs: Vec<Program> =
            (0..6).map(|layer| Program::pruned(6, &[layer], |_| None)).chain([dense.clone()]).collect();
        // The second iteration uses a reference that is not one of the programs.
        for _ in 0..2 {
            let trie = Trie::with_reference(&dense, &programs);
            for max_streams in [None, Some(1), Some(2), Some(5), Some(99)] {
                let mut seconds = vec![0.0; trie.len()];
                let found = compare_trie(&ListingModel, &trie, max_streams, &(), &mut seconds).unwrap();
                assert_eq!(found.len(), programs.len());
                for (program, found) in programs.iter().zip(found) {
                    let [reference, stream] = found.unwrap();
                    assert_eq!(reference, dense.0[..dense.0.len() - 1], "{max_streams:?}");
                    assert_eq!(stream, program.0[..program.0.len() - 1], "{max_streams:?}");
                }
            }
            programs.pop();
        }
    }

    #[test]
    fn trie_without_a_reference_is_rejected() {
        let trie = Trie::for_scoring(&[Program::dense(2)]);
        let error = compare_trie(&ListingModel, &trie, None, &(), &mut vec![0.0; trie.len()]).unwrap_err();
        assert!(error.to_string().contains("no reference program"), "{error}");
    }
}
