//! Reference data `stories260k`: a small trained Llama (5 layers, C = 64) with results of the reference
//! implementations.

use std::collections::BTreeSet;
use std::path::PathBuf;

use ghostlab_core::calibrate::{
    self, ActivationShape, Activations, HookPoint, InMemory, Pair, PassRequest, Similarities, SimilarityAxis,
    WindowSubset,
};
use ghostlab_core::corpus::{Start, Windows};
use ghostlab_core::evaluate::perplexity;
use ghostlab_core::model::{Decoder, Engine, Program, Trie};
use ghostlab_core::options::Options;
use ghostlab_core::recovery::{self, Boundary, Recovery, Span};
use serde_json::Value;

use super::{engines, json, numbers, shared};

pub const LAYERS: usize = 5;

pub struct Oracle {
    pub folder: PathBuf,
    pub values: Value,
}

/// Returns the reference data. Prints the reason and returns `None` if the shared folder is missing.
pub fn oracle() -> Option<Oracle> {
    let folder = shared("oracles/stories260k")?;
    let values = json(&folder.join("stories260k.json"));
    Some(Oracle { folder, values })
}

impl Oracle {
    pub fn ids(&self, name: &str) -> Vec<u32> {
        numbers(&json(&self.folder.join(name))).into_iter().map(|id| id as u32).collect()
    }

    pub fn number(&self, path: &str) -> f64 {
        self.values.pointer(path).and_then(Value::as_f64).unwrap_or_else(|| panic!("no number at {path}"))
    }

    pub fn decoder(&self) -> Decoder {
        Decoder::load(&self.folder).unwrap()
    }

    pub fn engines(&self) -> Vec<Box<dyn Engine>> {
        engines(&self.folder)
    }

    /// Returns the 16 calibration windows of 128 tokens.
    pub fn calibration_windows(&self) -> Windows {
        let ids = self.ids("calibration.ids.json");
        let starts: Vec<usize> =
            numbers(&self.values["windows"]["train_starts"]).into_iter().map(|start| start as usize).collect();
        Windows {
            ids: starts.iter().flat_map(|&start| ids[start..start + 128].to_vec()).collect(),
            length: 128,
            starts: starts.into_iter().map(|token| Start { document: 0, token }).collect(),
            corpus_tokens: ids.len(),
            bytes: 0,
        }
    }

    /// Returns the 262 evaluation windows of 128 tokens.
    pub fn evaluation_windows(&self) -> Windows {
        let ids = self.ids("evaluation.ids.json");
        let count = self.values["perplexity"]["windows"].as_u64().unwrap() as usize;
        assert_eq!(ids.len() / 128, count);
        let starts = (0..count).map(|i| Start { document: 0, token: i * 128 }).collect();
        Windows { ids: ids[..count * 128].to_vec(), length: 128, starts, corpus_tokens: ids.len(), bytes: 0 }
    }

    /// Runs the dense model once on the calibration windows, and records all similarities and activations.
    pub fn calibration(&self, engine: &dyn Engine) -> CalibrationResult {
        calibrated(engine, &self.calibration_windows())
    }
}

/// Similarities and activations from a calibration pass.
pub struct CalibrationResult {
    pub similarities: Similarities,
    pub activations: Activations,
}

pub fn calibrated(engine: &dyn Engine, windows: &Windows) -> CalibrationResult {
    let layers = engine.config().layers;
    let mut request = PassRequest { sites: (0..=layers).map(HookPoint::Stream).collect(), pairs: BTreeSet::new() };
    request.sites.extend((0..layers).map(HookPoint::Middle));
    for axis in [SimilarityAxis::ChannelSeries, SimilarityAxis::Token, SimilarityAxis::LastTokenAngle] {
        for from in 0..=layers {
            request.pairs.extend((from..=layers).map(|to| Pair { axis, from, to }));
        }
    }
    let windows: Vec<&[u32]> = windows.iter().collect();
    let shape =
        ActivationShape { channels: engine.config().hidden, sequences: windows.len(), length: windows[0].len() };
    let mut spool = InMemory::new(request.sites.iter().copied());
    // The batch size of 300 tokens is not a multiple of the window length of 128, so each batch contains 2 windows.
    let mut all = [WindowSubset { windows, first_sequence: 0, spool: &mut spool }];
    let mut similarities = calibrate::run(engine, &mut all, 300, &request, |_| Ok(())).unwrap();
    CalibrationResult { similarities: similarities.remove(0), activations: spool.finish(shape).unwrap() }
}

impl CalibrationResult {
    pub fn boundary<'a>(&'a self, backbone: &'a dyn Engine, start: usize, end: usize) -> Boundary<'a> {
        let fitted = self.activations.shape().sequences;
        Boundary::new(backbone, &self.activations, Span::layers(start, end), fitted)
    }
}

/// Builds a recovery with options given as JSON.
pub fn recovery(name: &str, options: Value) -> Box<dyn Recovery> {
    let options: Options = options.as_object().unwrap().clone();
    recovery::build(name, &options).unwrap()
}

pub fn perplexities(engine: &dyn Engine, programs: &[Program], windows: &Windows) -> Vec<f64> {
    let trie = Trie::new(programs);
    let mut seconds = vec![0.0; trie.len()];
    let eval_set = perplexity::PerplexityEval::new(windows, 1024);
    let losses = ghostlab_core::evaluate::score(&eval_set, engine, &trie, &mut seconds, |_| Ok(())).unwrap();
    losses.into_iter().map(|windows| perplexity::Losses { windows }.perplexity()).collect()
}
