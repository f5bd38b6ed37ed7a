use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use super::*;

/// Test engine whose embedding of a token is its id in every channel. Attention adds 1 to every channel, an MLP adds
/// 10, and the head returns the first channel as the loss.
pub(crate) struct AddingEngine {
    config: Config,
    /// Number of streams copied to the host.
    copied: Arc<AtomicUsize>,
}

impl AddingEngine {
    /// Creates an engine with 4 layers and 64 channels.
    pub(crate) fn new() -> Self {
        let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../tests/fixtures/arch/llama-gqa/config.json");
        Self { config: Config::read_file(&file).unwrap(), copied: Arc::default() }
    }

    pub(crate) fn copy_count(&self) -> usize {
        self.copied.load(SeqCst)
    }
}

/// Stream on a simulated device, which counts copies to the host.
pub(crate) struct RemoteStream(Vec<f32>, Arc<AtomicUsize>);

impl ResidualStream for RemoteStream {
    fn rows(&self) -> Result<HostRows> {
        self.1.fetch_add(1, SeqCst);
        HostRows::new(self.0.clone())
    }
}

impl Model for AddingEngine {
    type Batch = Batch;
    type Residual = RemoteStream;
    type Output = Vec<Prediction>;

    fn begin(&self, batch: &Batch) -> Result<RemoteStream> {
        let rows = batch.ids.iter().flat_map(|&id| vec![id as f32; self.config.hidden]);
        Ok(RemoteStream(rows.collect(), Arc::clone(&self.copied)))
    }

    fn advance(&self, _: &Batch, step: &Step, stream: &RemoteStream) -> Result<RemoteStream> {
        let added = match step {
            Step::Sublayer(Sublayer::Attention, _) => 1.0,
            Step::Sublayer(Sublayer::Mlp, _) => 10.0,
            Step::Apply(operator) => return Ok(RemoteStream(operator.apply(&stream.0)?, Arc::clone(&self.copied))),
            _ => return Err(Error::job("unknown step")),
        };
        Ok(RemoteStream(stream.0.iter().map(|x| x + added).collect(), Arc::clone(&self.copied)))
    }

    fn finish(&self, batch: &Batch, stream: &RemoteStream) -> Result<Vec<Prediction>> {
        Ok(batch
            .targets
            .iter()
            .map(|target| Prediction { log_probability: -stream.0[target.row * self.config.hidden], is_greedy: true })
            .collect())
    }
}

impl Engine for AddingEngine {
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
        trie.run(self, batch, &mut StreamAdapter(observer))
    }

    fn run_steps(&self, batch: &Batch, steps: &[Step], stream: &[f32]) -> Result<HostRows> {
        let stream = RemoteStream(stream.to_vec(), Arc::clone(&self.copied));
        steps.iter().try_fold(stream, |stream, step| self.advance(batch, step, &stream))?.rows()
    }

    fn logits(&self, _: &[f32], _: &[usize]) -> Result<HostRows> {
        Err(Error::job("the engine has no vocabulary"))
    }

    fn input_norm(&self, _: usize, _: Sublayer) -> Result<RmsNorm> {
        Ok(RmsNorm { eps: 0.0, weight: Some(vec![3.0, 5.0]) })
    }
}
