"""Generates small random backbones and their forward pass in transformers, for the comparisons in crates/core/tests/arch.rs.

    pip install torch transformers safetensors
    python tools/arch_fixtures.py [OUT]

Writes tests/fixtures/arch/{mistral,qwen2}: config.json as written by transformers, config.hub-style.json in the older format of
the hub, the weights, and forward.safetensors with input_ids [2, 96], logits [2, 96, vocabulary] and layer_input.i [2, 96, C],
the input of layer i. The other folders have the same format, but were created before this script.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import MistralConfig, MistralForCausalLM, Qwen2Config, Qwen2ForCausalLM

ROOT = Path(__file__).resolve().parent.parent
SHAPE = {
    "vocab_size": 320,
    "hidden_size": 64,
    "intermediate_size": 112,
    "num_hidden_layers": 4,
    "num_attention_heads": 4,
    "num_key_value_heads": 2,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
}
# The attention windows are shorter than the sequences, so that they affect the results. In Mistral, every layer has a window. In
# Qwen2, only layers from the third on have one.
MODELS = {
    "mistral": lambda: MistralForCausalLM(
        MistralConfig(
            **SHAPE,
            head_dim=32,
            sliding_window=24,
            rms_norm_eps=1e-5,
            rope_parameters={"rope_type": "default", "rope_theta": 10000.0},
        )
    ),
    "qwen2": lambda: Qwen2ForCausalLM(
        Qwen2Config(
            **SHAPE,
            use_sliding_window=True,
            sliding_window=40,
            max_window_layers=2,
            tie_word_embeddings=True,
            rope_parameters={"rope_type": "default", "rope_theta": 1000000.0},
        )
    ),
}


def randomise(model):
    """Sets random weights, norms and biases that all affect the logits noticeably."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("norm.weight"):
            weight.data = 1.0 + 0.2 * noise
        elif name.endswith(".bias"):
            weight.data = 0.5 * noise
        else:
            weight.data = noise / weight.shape[1] ** 0.5


def hub_style(config):
    """Converts a config to the older format of the hub."""
    config = dict(config)
    config["rope_theta"] = config.pop("rope_parameters")["rope_theta"]
    config["torch_dtype"] = config.pop("dtype")
    config.pop("layer_types", None)
    return config


def main():
    out = Path(sys.argv[1]) if len(sys.argv) > 1 else ROOT / "tests" / "fixtures" / "arch"
    for name, make in MODELS.items():
        folder = out / name
        folder.mkdir(parents=True, exist_ok=True)
        model = make().eval()
        randomise(model)
        ids = torch.randint(0, SHAPE["vocab_size"], (2, 96), generator=torch.Generator().manual_seed(1))
        with torch.no_grad():
            output = model(ids, output_hidden_states=True)
        tensors = {"input_ids": ids, "logits": output.logits.contiguous()}
        for layer in range(SHAPE["num_hidden_layers"]):
            tensors[f"layer_input.{layer}"] = output.hidden_states[layer].contiguous()
        versions = {"torch": torch.__version__, "transformers": transformers.__version__}
        save_file(tensors, folder / "forward.safetensors", metadata={"versions": json.dumps(versions)})
        model.save_pretrained(folder)
        (folder / "generation_config.json").unlink(missing_ok=True)
        config = json.loads((folder / "config.json").read_text())
        (folder / "config.hub-style.json").write_text(json.dumps(hub_style(config), indent=2) + "\n")
        print(name, tuple(output.logits.shape), f"{output.logits.abs().max():.3f}")


if __name__ == "__main__":
    main()
