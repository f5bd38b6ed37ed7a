//! What runs programs: a backbone's weights on some device (design §3). Its callers see batches, programs and rows in
//! this machine's memory, whatever the engine holds itself.

use std::fmt;
use std::ops::Deref;

use candle_core::{DType, Device, Tensor};
use rayon::prelude::*;
use serde::Serialize;

use super::batch::{Batch, Prediction};
use super::config::Config;
use super::program::Step;
use super::slice::{elements, tensor};
use super::trie::{Model, Observer, Trie};
use crate::error::Result;

/// What an engine's numbers depend on beside the backbone: a part of the keys of what it makes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub struct EngineId {
    pub name: &'static str,
    /// What numbers are computed in.
    pub dtype: &'static str,
    /// The class of device: others round otherwise.
    pub device: &'static str,
}

impl fmt::Display for EngineId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} on {}", self.name, self.dtype, self.device)
    }
}

/// One backbone, ready to run.
pub trait Engine: Send + Sync {
    fn id(&self) -> EngineId;

    fn config(&self) -> &Config;

    /// Tokens that one worker takes through a whole trie. A longer chunk is cut into parts that run side by side. Fixed
    /// for an engine, so that results are the same on any machine.
    fn part_tokens(&self) -> usize;

    /// Runs one batch through all programs of a trie: for each program one prediction a target of the batch, none where
    /// the program has no head.
    ///
    /// # Errors
    /// A step that fails, or what the observer returns.
    fn run(
        &self,
        trie: &Trie,
        batch: &Batch,
        observer: &mut dyn Observer<dyn ResidualStream>,
    ) -> Result<Vec<Option<Vec<Prediction>>>>;

    /// Runs several batches through all programs of a trie, side by side: for each batch what [`Self::run`] gives.
    /// `seconds[node]` grows by the time that workers were at a step, all workers together.
    ///
    /// # Errors
    /// As [`Self::run`].
    fn score(&self, trie: &Trie, parts: &[Batch], seconds: &mut [f64]) -> Result<Vec<Vec<Option<Vec<Prediction>>>>> {
        side_by_side(self, trie, parts, seconds)
    }

    /// Runs some steps, neither embedding nor head, on a residual stream that is given.
    ///
    /// # Shapes
    /// `stream [tokens, C]`; result the same.
    fn resume(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows>;

    /// Every logit of some rows of a residual stream that is given.
    ///
    /// # Shapes
    /// `stream [tokens, C]`, the one that enters the final norm; result `[rows, vocab]`.
    fn logits(&self, stream: &[f32], rows: &[usize]) -> Result<HostRows>;

    /// What happened since it was last asked that a reader of the results has to know: overflow, less room than wanted.
    fn notes(&self) -> Vec<String> {
        Vec::new()
    }
}

/// Each part through the whole trie by itself: parts wait for each other at the end only.
pub(super) fn side_by_side<E: Engine + ?Sized>(
    engine: &E,
    trie: &Trie,
    parts: &[Batch],
    seconds: &mut [f64],
) -> Result<Vec<Vec<Option<Vec<Prediction>>>>> {
    let of_part = |batch: &Batch| {
        let mut nodes = vec![0.0; trie.len()];
        engine.run(trie, batch, &mut Clock(&mut nodes)).map(|outputs| (outputs, nodes))
    };
    let done = parts.par_iter().map(of_part).collect::<Result<Vec<_>>>()?;
    done.iter().for_each(|(_, nodes)| seconds.iter_mut().zip(nodes).for_each(|(sum, node)| *sum += node));
    Ok(done.into_iter().map(|(outputs, _)| outputs).collect())
}

/// All parts of a chunk take a step before any takes the next one: what a step needs of the weights is made once for all
/// of them.
pub(super) fn in_step<M>(
    model: &M,
    trie: &Trie,
    parts: &[Batch],
    seconds: &mut [f64],
) -> Result<Vec<Vec<Option<Vec<Prediction>>>>>
where
    M: Model<Batch = Batch, Output = Vec<Prediction>> + Sync,
    M::Residual: Send + Sync,
{
    let of_programs = trie.run(&InStep(model), parts, &mut Clock(seconds))?;
    let mut of_parts = vec![Vec::with_capacity(trie.programs()); parts.len()];
    for outputs in of_programs {
        let outputs: Vec<Option<_>> = match outputs {
            Some(outputs) => outputs.into_iter().map(Some).collect(),
            None => vec![None; parts.len()],
        };
        of_parts.iter_mut().zip(outputs).for_each(|(of_part, output)| of_part.push(output));
    }
    Ok(of_parts)
}

struct InStep<'a, M>(&'a M);

impl<M> Model for InStep<'_, M>
where
    M: Model<Batch = Batch, Output = Vec<Prediction>> + Sync,
    M::Residual: Send + Sync,
{
    type Batch = [Batch];
    type Residual = Vec<M::Residual>;
    type Output = Vec<Vec<Prediction>>;

    fn expect(&self, steps: [Option<&Step>; 3]) {
        self.0.expect(steps);
    }

    fn begin(&self, parts: &[Batch]) -> Result<Vec<M::Residual>> {
        parts.par_iter().map(|batch| self.0.begin(batch)).collect()
    }

    fn advance(&self, parts: &[Batch], step: &Step, streams: &Vec<M::Residual>) -> Result<Vec<M::Residual>> {
        parts.par_iter().zip(streams).map(|(batch, x)| self.0.advance(batch, step, x)).collect()
    }

    fn finish(&self, parts: &[Batch], streams: &Vec<M::Residual>) -> Result<Vec<Vec<Prediction>>> {
        parts.par_iter().zip(streams).map(|(batch, x)| self.0.finish(batch, x)).collect()
    }
}

/// Adds up the seconds of each node.
pub(super) struct Clock<'a>(pub(super) &'a mut [f64]);

impl<S: ?Sized> Observer<S> for Clock<'_> {
    fn after(&mut self, node: usize, _: Option<&S>, seconds: f64) -> Result<()> {
        self.0[node] += seconds;
        Ok(())
    }
}

/// A residual stream, `[tokens, C]`, where the engine holds it.
pub trait ResidualStream {
    /// Its rows in this machine's memory: only what is asked for is copied from another device.
    fn rows(&self) -> Result<HostRows>;
}

/// Rows in f32 in this machine's memory, row-major. A clone shares them.
#[derive(Clone)]
pub struct HostRows(Tensor);

impl HostRows {
    /// Takes rows over.
    pub fn new(values: Vec<f32>) -> Result<Self> {
        let length = values.len();
        tensor(values, &[length]).map(Self)
    }

    /// The numbers, borrowed.
    pub fn values(&self) -> Result<impl Deref<Target = [f32]> + Sync + '_> {
        elements(&self.0)
    }
}

/// No byte is copied of f32 that is in this machine's memory already.
impl ResidualStream for Tensor {
    fn rows(&self) -> Result<HostRows> {
        Ok(HostRows(self.to_device(&Device::Cpu)?.to_dtype(DType::F32)?.contiguous()?))
    }
}

/// Shows an engine's streams to an observer that knows no engine.
pub(super) struct Watched<'a>(pub(super) &'a mut dyn Observer<dyn ResidualStream>);

impl<S: ResidualStream + 'static> Observer<S> for Watched<'_> {
    fn after(&mut self, node: usize, state: Option<&S>, seconds: f64) -> Result<()> {
        self.0.after(node, state.map(|stream| stream as &dyn ResidualStream), seconds)
    }
}

#[cfg(test)]
pub(crate) mod tests {
    use std::path::Path;
    use std::sync::Arc;
    use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

    use super::*;
    use crate::error::Error;
    /// An engine that holds its streams in its own way: attention adds 1 to every channel, an MLP 10, and the head takes
    /// the first channel for the loss. Begins with the token ids.
    pub(crate) struct Adding {
        config: Config,
        /// How many streams were copied to the host.
        copied: Arc<AtomicUsize>,
    }

    impl Adding {
        /// Of 4 layers and 64 channels.
        pub(crate) fn new() -> Self {
            let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch/llama-gqa/config.json");
            Self { config: Config::read_file(&file).unwrap(), copied: Arc::default() }
        }

        pub(crate) fn copied(&self) -> usize {
            self.copied.load(SeqCst)
        }
    }

    /// A stream on a device that is not this machine.
    pub(crate) struct Far(Vec<f32>, Arc<AtomicUsize>);

    impl ResidualStream for Far {
        fn rows(&self) -> Result<HostRows> {
            self.1.fetch_add(1, SeqCst);
            HostRows::new(self.0.clone())
        }
    }

    impl Model for Adding {
        type Batch = Batch;
        type Residual = Far;
        type Output = Vec<Prediction>;

        fn begin(&self, batch: &Batch) -> Result<Far> {
            let rows = batch.ids.iter().flat_map(|&id| vec![id as f32; self.config.hidden]);
            Ok(Far(rows.collect(), Arc::clone(&self.copied)))
        }

        fn advance(&self, _: &Batch, step: &Step, stream: &Far) -> Result<Far> {
            let added = match step {
                Step::Attention(_) => 1.0,
                Step::Mlp(_) => 10.0,
                _ => return Err(Error::job("no such step")),
            };
            Ok(Far(stream.0.iter().map(|x| x + added).collect(), Arc::clone(&self.copied)))
        }

        fn finish(&self, batch: &Batch, stream: &Far) -> Result<Vec<Prediction>> {
            let of = |row: usize| Prediction { log_probability: -stream.0[row * self.config.hidden], likeliest: true };
            Ok(batch.targets.iter().map(|target| of(target.row)).collect())
        }
    }

    impl Engine for Adding {
        fn id(&self) -> EngineId {
            EngineId { name: "adding", dtype: "f32", device: "far" }
        }

        fn config(&self) -> &Config {
            &self.config
        }

        fn part_tokens(&self) -> usize {
            4
        }

        fn run(
            &self,
            trie: &Trie,
            batch: &Batch,
            observer: &mut dyn Observer<dyn ResidualStream>,
        ) -> Result<Vec<Option<Vec<Prediction>>>> {
            trie.run(self, batch, &mut Watched(observer))
        }

        fn resume(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows> {
            let stream = Far(stream.to_vec(), Arc::clone(&self.copied));
            steps.iter().try_fold(stream, |stream, step| self.advance(batch, step, &stream))?.rows()
        }

        fn logits(&self, _: &[f32], _: &[usize]) -> Result<HostRows> {
            Err(Error::job("it has no vocabulary"))
        }
    }
}
