//! Setting pairs that differ in the backbone, the engine or the device.

use serde_json::json;

use super::{Pair, Setting, between, pair, planned};
use crate::common::world::build_tokenizer;

/// Returns setting pairs that differ in the backbone.
pub(super) fn weights() -> Vec<Pair> {
    vec![
        pair("other weights", &["model.content"], change_one_weight),
        pair("another dtype of a tensor", &["model.content"], store_norm_in_bf16),
        pair("another epsilon of the norms", &["model.content"], |setting| {
            setting.change_json("backbone/config.json", |config| config["rms_norm_eps"] = json!(1e-6));
        }),
        pair("another tokenizer", &["model.tokenizer"], |setting| {
            let mut other = build_tokenizer(300);
            other["model"]["vocab"]["w7"] = json!(8);
            other["model"]["vocab"]["w8"] = json!(7);
            setting.world.write("backbone/tokenizer.json", other.to_string());
        }),
        between("rounded weights", &["model.weights"], Setting::remove_latency, |setting| {
            setting.remove_latency();
            setting.replace_in_grid("backbone: tiny\n", "backbone: tiny\nweights: q8_0\n");
        }),
        between(
            "repairs of rounded weights",
            &["calibration.weights"],
            |setting| {
                setting.remove_latency();
                setting.replace_in_grid("backbone: tiny\n", "backbone: tiny\nweights: q8_0\n");
            },
            |setting| {
                setting.remove_latency();
                setting.replace_in_grid(
                    "backbone: tiny\n",
                    "backbone: tiny\nweights: {type: q8_0, calibrated: rounded}\n",
                );
            },
        ),
    ]
}

/// Returns setting pairs that differ in the engine or the device.
pub(super) fn engines() -> Vec<Pair> {
    vec![
        pair("candle", &["engine.name"], |setting| setting.add_arguments(&["--engine", "candle"])),
        pair("bf16", &["engine.dtype"], |setting| setting.add_arguments(&["--dtype", "bf16", "--kernels", "portable"])),
        planned(
            "another kernel family",
            &["engine.device"],
            |setting| setting.add_arguments(&["--dtype", "bf16", "--kernels", "portable"]),
            |setting| setting.add_arguments(&["--dtype", "bf16", "--kernels", "amx"]),
        ),
        planned(
            "a GPU",
            // A batch on a GPU contains more tokens, so the batch settings differ as well.
            &["engine.device", "measure.prefill.machine.gpu.device", "measure.task.batch", "measure.windows.batch"],
            |setting| setting.add_arguments(&["--engine", "candle", "--device", "cpu", "--dtype", "f32"]),
            |setting| setting.add_arguments(&["--engine", "candle", "--device", "cuda", "--dtype", "f32"]),
        ),
        planned(
            "another GPU",
            &["measure.prefill.machine.gpu.device"],
            |setting| setting.add_arguments(&["--device", "cuda:0", "--dtype", "f32"]),
            |setting| setting.add_arguments(&["--device", "cuda:1", "--dtype", "f32"]),
        ),
    ]
}

/// Flips the lowest bit of the last weight.
fn change_one_weight(setting: &mut Setting) {
    let path = setting.world.path("backbone/model.safetensors");
    let mut bytes = std::fs::read(&path).unwrap();
    let last = bytes.len() - 4;
    bytes[last] ^= 1;
    std::fs::write(path, bytes).unwrap();
}

/// Stores the final norm's weights in bf16.
fn store_norm_in_bf16(setting: &mut Setting) {
    let path = setting.world.path("backbone/model.safetensors");
    let bytes = std::fs::read(&path).unwrap();
    let tensors = safetensors::SafeTensors::deserialize(&bytes).unwrap();
    let norm = tensors.tensor("model.norm.weight").unwrap();
    assert_eq!(norm.dtype(), safetensors::Dtype::F32);
    // A bf16 value is the upper half of an f32.
    let halves: Vec<u8> = norm.data().chunks_exact(4).flat_map(|float| [float[2], float[3]]).collect();
    let shape = norm.shape().to_vec();
    let half = safetensors::tensor::TensorView::new(safetensors::Dtype::BF16, shape, &halves).unwrap();
    let others = tensors.iter().filter(|(name, _)| *name != "model.norm.weight");
    let all: Vec<_> = others.chain([("model.norm.weight", half)]).collect();
    safetensors::serialize_to_file(all, None, &path).unwrap();
}
