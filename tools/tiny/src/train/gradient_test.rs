//! Gradient checks: losses against central differences in f64, and forward passes against candle's.

use super::network::{Network, Tape};
use super::parameters::Parameters;
use super::shape::{Shape, trained};
use ghostlab_core::model::Config;
use ghostlab_core::model::architecture::Architecture;

/// Returns a small shape in which no dimension is 1 and all widths differ.
fn shape(architecture: &Architecture) -> Shape {
    let olmo2 = architecture.model_type == "olmo2";
    Shape {
        layers: 3,
        hidden: 24,
        heads: 4,
        kv_heads: 2,
        // Differs from hidden / heads if the architecture allows it.
        head_dim: if olmo2 { 6 } else { 8 },
        intermediate: 40,
        vocab: 50,
        context: 160,
        ..Shape::tiny(architecture)
    }
}

fn config(shape: &Shape) -> Config {
    let folder = tempfile::tempdir().unwrap();
    let path = folder.path().join("config.json");
    std::fs::write(&path, shape.config(0).to_string()).unwrap();
    Config::read_file(&path).unwrap()
}

/// Returns weights far from their initial values (larger matrices, uneven norms), so that no gradient is near zero.
fn weights(parameters: &Parameters) -> Vec<f32> {
    let mut values = parameters.start(7);
    for parameter in &parameters.list {
        for (i, value) in values[parameter.range.clone()].iter_mut().enumerate() {
            *value = if parameter.shape.len() == 1 { 1.0 + 0.3 * (i as f32).sin() } else { *value * 12.0 };
        }
    }
    values
}

fn text(vocab: usize, tokens: usize) -> Vec<u32> {
    (0..tokens).map(|i| ((i * i * 7 + i * 3 + 11) % vocab) as u32).collect()
}

#[test]
fn gradients_equal_central_differences_for_every_tensor() {
    // Two windows, each with more than one query block.
    let span = 80;
    let tokens = 160;
    for architecture in trained() {
        let shape = shape(architecture);
        let network = Network::new(config(&shape), span);
        let ids = text(shape.vocab, tokens + 1);
        let inputs = &ids[..tokens];
        let targets = &ids[1..];
        let mut at: Vec<f64> = weights(&network.parameters).into_iter().map(f64::from).collect();
        // Weight some predictions more, as in the final phase.
        let factors: Vec<f64> = (0..tokens).map(|i| (1 + 4 * (i % 3)) as f64 / tokens as f64).collect();
        let mut tape = Tape::default();
        let mut loss = |at: &[f64]| {
            let mut losses = Vec::new();
            network.forward(at, inputs, span, &mut tape);
            network.losses(at, targets, &mut tape, &mut losses);
            losses.iter().zip(&factors).map(|(loss, factor)| loss * factor).sum::<f64>()
        };
        let mut gradient = vec![0.0; at.len()];
        let mut tape = Tape::default();
        network.forward(&at, inputs, span, &mut tape);
        network.losses_back(&at, targets, &factors, &mut tape, &mut Vec::new(), &mut gradient);
        network.backward(&at, inputs, span, &mut tape, &mut gradient);
        let mut worst = 0.0f64;
        for parameter in &network.parameters.list {
            let size = gradient[parameter.range.clone()].iter().fold(0.0f64, |a, b| a.max(b.abs()));
            assert!(size > 1e-6, "{}, {}: no gradient", architecture.class, parameter.name);
            for place in [0.07, 0.33, 0.61, 0.98] {
                let i = parameter.range.start + (place * parameter.range.len() as f64) as usize;
                let old = at[i];
                let step = 1e-4;
                at[i] = old + step;
                let above = loss(&at);
                at[i] = old - step;
                let below = loss(&at);
                at[i] = old;
                let expected = (above - below) / (2.0 * step);
                let found = gradient[i];
                let error = (expected - found).abs() / size;
                worst = worst.max(error);
                assert!(error < 1e-5, "{}, {} at {i}: {expected:e}, not {found:e}", architecture.class, parameter.name);
            }
        }
        assert!(worst > 0.0, "two ways cannot agree to the last bit");
    }
}

#[test]
fn f32_gradients_are_those_of_f64() {
    for architecture in trained() {
        let shape = shape(architecture);
        let network = Network::new(config(&shape), 160);
        let ids = text(shape.vocab, 161);
        let narrow = weights(&network.parameters);
        let wide: Vec<f64> = narrow.iter().copied().map(f64::from).collect();
        let exact = gradient_of(&network, &wide, &ids);
        let found = gradient_of(&network, &narrow, &ids);
        for parameter in &network.parameters.list {
            let range = parameter.range.clone();
            let size = exact[range.clone()].iter().fold(0.0f64, |a, b| a.max(b.abs()));
            let error = range.map(|i| (exact[i] - f64::from(found[i])).abs()).fold(0.0, f64::max);
            assert!(error < 1e-4 * size, "{}, {}: {error:e} of {size:e}", architecture.class, parameter.name);
        }
    }
}

fn gradient_of<R: super::real::Real>(network: &Network, weights: &[R], ids: &[u32]) -> Vec<R> {
    let inputs = &ids[..ids.len() - 1];
    let targets = &ids[1..];
    let mut gradient = vec![R::ZERO; weights.len()];
    let mut tape = Tape::default();
    network.forward(weights, inputs, inputs.len(), &mut tape);
    let factor = R::of(1.0 / targets.len() as f64);
    network.losses_back(weights, targets, &vec![factor; targets.len()], &mut tape, &mut Vec::new(), &mut gradient);
    network.backward(weights, inputs, inputs.len(), &mut tape, &mut gradient);
    gradient
}

mod oracle {
    use candle_core::{DType, Device, Tensor};
    use candle_nn::VarBuilder;
    use candle_transformers::models::{llama, olmo2, qwen3};

    use super::*;

    /// Computes the last position's logits with candle's model of the same architecture.
    fn candle(shape: &Shape, weights: &[f32], network: &Network, ids: &[u32]) -> Vec<f32> {
        let cpu = Device::Cpu;
        let tensors = network.parameters.list.iter().map(|p| {
            let data = weights[p.range.clone()].to_vec();
            (p.name.clone(), Tensor::from_vec(data, p.shape.as_slice(), &cpu).unwrap())
        });
        let mut tensors: std::collections::HashMap<_, _> = tensors.collect();
        if shape.tied_embeddings {
            // candle's Llama requires the head tensor even if it is tied.
            tensors.insert("lm_head.weight".into(), tensors["model.embed_tokens.weight"].clone());
        }
        let from = VarBuilder::from_tensors(tensors, DType::F32, &cpu);
        let input = Tensor::new(ids, &cpu).unwrap().unsqueeze(0).unwrap();
        let config = shape.config(0);
        let logits = match shape.architecture.as_str() {
            "llama" => {
                let config: llama::LlamaConfig = serde_json::from_value(config).unwrap();
                let config = config.into_config(false);
                let mut cache = llama::Cache::new(false, DType::F32, &config, &cpu).unwrap();
                llama::Llama::load(from, &config).unwrap().forward(&input, 0, &mut cache).unwrap()
            }
            "qwen3" => {
                let config: qwen3::Config = serde_json::from_value(config).unwrap();
                qwen3::ModelForCausalLM::new(&config, from).unwrap().forward(&input, 0).unwrap()
            }
            _ => {
                let config: olmo2::Config = serde_json::from_value(config).unwrap();
                olmo2::Model::new(&config, from).unwrap().forward(&input, 0).unwrap()
            }
        };
        logits.flatten_all().unwrap().to_vec1().unwrap()
    }

    #[test]
    fn the_training_forward_gives_the_logits_of_candles_models() {
        for architecture in trained() {
            // candle's Llama requires head_dim = hidden / heads.
            let shape =
                Shape { head_dim: if architecture.model_type == "qwen3" { 8 } else { 6 }, ..shape(architecture) };
            let network = Network::new(config(&shape), 160);
            let ids = text(shape.vocab, 150);
            let weights = weights(&network.parameters);
            for length in [1, 2, 65, 150] {
                let mut tape = Tape::default();
                network.forward(&weights, &ids[..length], length, &mut tape);
                let logits = network.logits(&weights, &tape);
                let found = &logits[(length - 1) * shape.vocab..];
                let expected = candle(&shape, &weights, &network, &ids[..length]);
                let size = expected.iter().fold(0.0f32, |a, b| a.max(b.abs()));
                assert!(size > 1.0, "{}: logits of no size", architecture.class);
                for (i, (a, b)) in expected.iter().zip(found).enumerate() {
                    assert!(
                        (a - b).abs() < 2e-5 * size,
                        "{}, length {length}, logit {i}: {a}, not {b}",
                        architecture.class
                    );
                }
            }
        }
    }
}
