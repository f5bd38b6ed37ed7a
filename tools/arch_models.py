"""Generates small random backbones of every architecture and RoPE type, with the forward pass and greedy tokens of transformers,
for the comparisons in crates/core/tests/architectures.rs. The output is not committed.

    python tools/arch_models.py OUT [NAME...]

Writes OUT/NAME: config.json as written by transformers, config.hub-style.json in the older format of the hub, the weights, and
forward.safetensors. For each text t, forward.safetensors contains ids.t [tokens], logits.t [tokens, vocabulary] and
layer_input.t.i [tokens, C], the input of layer i. Text 0 is shorter than every attention window and original context, and text 1
is longer. For each prompt p, the file contains prompt.p [tokens], the greedy tokens greedy.p [new], and margins.p [new], the
differences between the two largest logits. Prompts 0 and 1 are the texts. Prompt 2 is the beginning of text 1, and grows beyond
every original context.
"""

import json
import sys
from pathlib import Path

import torch
import transformers
from safetensors.torch import load_file, save_file
from transformers import AutoModelForCausalLM

SHAPE = {
    "vocab_size": 300,
    # The head width of 18 channels is neither a power of two nor hidden / heads.
    "hidden_size": 60,
    "intermediate_size": 100,
    "num_hidden_layers": 4,
    "num_attention_heads": 6,
    "num_key_value_heads": 2,
    "head_dim": 18,
    "max_position_embeddings": 256,
    "bos_token_id": 1,
    "eos_token_id": 2,
    "pad_token_id": 0,
}
LENGTHS = (20, 97)
NEW = 12
WINDOW = 24
ORIGINAL = 64


def rope(kind, theta=10000.0, **more):
    return {"rope_parameters": {"rope_type": kind, "rope_theta": theta, **more}}


def of(name, **more):
    """Returns a function that creates a config of this class with the common shape and `more`. Shape entries set to None are omitted."""
    shape = {key: value for key, value in {**SHAPE, **more}.items() if value is not None or key not in SHAPE}
    return lambda: getattr(transformers, name)(**shape)


# Phi-3 has no head_dim. Its heads have hidden / heads channels.
PHI = {"head_dim": None, "hidden_size": 96, "num_attention_heads": 6}
PAIRS = 6  # rotated pairs of a head with 16 channels, 3/4 of which are rotated
FACTORS = {
    "short_factor": [1.0 + 0.1 * i for i in range(9)],
    "long_factor": [1.5 + 0.7 * i for i in range(9)],
}
GEMMA = {"query_pre_attn_scalar": 23, "sliding_window": WINDOW}
EXPERTS = {"num_experts_per_tok": 2, "tie_word_embeddings": False}

MODELS = {
    "llama-linear": of("LlamaConfig", **rope("linear", factor=4.0)),
    "llama-dynamic": of("LlamaConfig", **rope("dynamic", factor=3.0), **{"max_position_embeddings": ORIGINAL}),
    "llama-llama3": of(
        "LlamaConfig",
        **rope("llama3", 500000.0, factor=8.0, low_freq_factor=1.0, high_freq_factor=4.0, original_max_position_embeddings=ORIGINAL),
    ),
    "llama-yarn": of("LlamaConfig", **rope("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL)),
    "llama-yarn-all": of(
        "LlamaConfig",
        **rope(
            "yarn", factor=4.0, original_max_position_embeddings=ORIGINAL, truncate=False, mscale=0.7, mscale_all_dim=1.3, beta_fast=16, beta_slow=2
        ),
    ),
    "llama-yarn-factor": of("LlamaConfig", **rope("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL, attention_factor=1.4)),
    "llama-longrope": of("LlamaConfig", **rope("longrope", factor=4.0, original_max_position_embeddings=ORIGINAL, **FACTORS)),
    "llama-biases": of("LlamaConfig", attention_bias=True, mlp_bias=True, tie_word_embeddings=True, **rope("default")),
    "qwen2": of("Qwen2Config", tie_word_embeddings=False, **rope("default"), use_sliding_window=True, sliding_window=WINDOW, max_window_layers=1),
    "qwen2-yarn": of("Qwen2Config", **rope("yarn", factor=4.0, original_max_position_embeddings=ORIGINAL)),
    "qwen3-biases": of("Qwen3Config", attention_bias=True, **rope("default")),
    "olmo2-biases": of("Olmo2Config", attention_bias=True, head_dim=None, **rope("default")),
    "mistral-untied": of("MistralConfig", sliding_window=WINDOW, tie_word_embeddings=False, **rope("default")),
    "phi3": of("Phi3Config", **PHI, **rope("default")),
    "phi3-partial": of("Phi3Config", **PHI, partial_rotary_factor=0.75, sliding_window=WINDOW, tie_word_embeddings=True, **rope("default")),
    "phi3-longrope": of(
        "Phi3Config",
        **PHI,
        partial_rotary_factor=0.75,
        original_max_position_embeddings=ORIGINAL,
        **rope("longrope", **{key: value[:PAIRS] for key, value in FACTORS.items()}),
    ),
    "smollm3": of("SmolLM3Config", **rope("default", 2000000.0)),
    "smollm3-window": of(
        "SmolLM3Config",
        use_sliding_window=True,
        sliding_window=WINDOW,
        no_rope_layers=[0, 1, 1, 0],
        attention_bias=True,
        mlp_bias=True,
        tie_word_embeddings=False,
        **rope("default", 2000000.0),
    ),
    "gemma2": of("Gemma2Config", **GEMMA, attn_logit_softcapping=3.0, final_logit_softcapping=2.0, **rope("default")),
    "gemma2-wide": of("Gemma2Config", query_pre_attn_scalar=18, tie_word_embeddings=False, attn_logit_softcapping=None, **rope("default")),
    "gemma3_text": of("Gemma3TextConfig", **GEMMA, layer_types=["sliding_attention"] * 2 + ["full_attention", "sliding_attention"]),
    "gemma3_text-scaled": of(
        "Gemma3TextConfig",
        **GEMMA,
        num_hidden_layers=6,
        final_logit_softcapping=5.0,
        rope_parameters={
            "full_attention": {"rope_type": "linear", "factor": 8.0, "rope_theta": 1000000.0},
            "sliding_attention": {"rope_type": "default", "rope_theta": 10000.0},
        },
    ),
    "mixtral": of("MixtralConfig", num_local_experts=5, sliding_window=WINDOW, **EXPERTS, **rope("default", 1000000.0)),
    "mixtral-full": of("MixtralConfig", num_local_experts=4, **{**EXPERTS, "tie_word_embeddings": True}, **rope("default")),
    "qwen3_moe": of("Qwen3MoeConfig", num_experts=6, moe_intermediate_size=28, norm_topk_prob=True, **EXPERTS, **rope("default")),
    "qwen3_moe-mixed": of(
        "Qwen3MoeConfig",
        num_experts=6,
        moe_intermediate_size=28,
        decoder_sparse_step=2,
        mlp_only_layers=[3],
        attention_bias=True,
        use_sliding_window=True,
        sliding_window=WINDOW,
        **EXPERTS,
        **rope("default"),
    ),
}
# Configs that candle-transformers supports. Their head_dim is hidden / heads, and also scales the attention scores.
PLAIN = {"head_dim": SHAPE["hidden_size"] // SHAPE["num_attention_heads"], **rope("default")}
MODELS |= {
    "llama-plain": of("LlamaConfig", **PLAIN),
    "qwen2-plain": of("Qwen2Config", **PLAIN),
    "smollm3-plain": of("SmolLM3Config", **PLAIN),
    "gemma2-plain": of("Gemma2Config", query_pre_attn_scalar=PLAIN["head_dim"], sliding_window=WINDOW, **PLAIN),
    "mixtral-plain": of("MixtralConfig", num_local_experts=4, **EXPERTS, **PLAIN),
}
# Models that are stored and run in bf16, to check the scaling of embeddings.
ROUNDED = {"gemma2-bf16": of("Gemma2Config", **GEMMA, **rope("default"))}


def randomise(model):
    """Sets random weights, norms and biases that all affect the logits noticeably."""
    generator = torch.Generator().manual_seed(0)
    for name, weight in sorted(model.named_parameters()):
        noise = torch.randn(weight.shape, generator=generator)
        if name.endswith("norm.weight"):
            # Gemma adds 1 to its norm weights. The effective factors are near 1.
            weight.data = (0.0 if "gemma" in model.config.model_type else 1.0) + 0.2 * noise
        elif name.endswith(".bias"):
            weight.data = 0.5 * noise
        else:
            weight.data = noise / weight.shape[-1] ** 0.5
    return model


def hub_style(config):
    """Converts a config to the older format of the hub."""
    config = json.loads(json.dumps(config))
    parameters = config.pop("rope_parameters", None) or {}
    if "full_attention" in parameters:
        config["rope_local_base_freq"] = parameters["sliding_attention"]["rope_theta"]
        parameters = parameters["full_attention"]
    config["rope_theta"] = parameters.pop("rope_theta")
    if "partial_rotary_factor" in parameters:
        config["partial_rotary_factor"] = parameters.pop("partial_rotary_factor")
    if parameters.get("rope_type", "default") != "default":
        parameters["type"] = parameters.pop("rope_type")
        config["rope_scaling"] = parameters
    config["torch_dtype"] = config.pop("dtype")
    return config


def texts(vocabulary):
    generator = torch.Generator().manual_seed(1)
    return [torch.randint(3, vocabulary, (1, length), generator=generator) for length in LENGTHS]


def load(folder):
    """Loads a new model in f32. Models must not be reused, because the RoPE type `dynamic` depends on the longest earlier text."""
    model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True)
    assert not any(info.values()), f"{folder}: {info}"
    return model.eval()


def greedy(folder, ids):
    """Returns the greedy continuation of a prompt, and the margin between the two largest logits for each token."""
    model = load(folder)
    model.generation_config = type(model.generation_config)(pad_token_id=0)
    with torch.no_grad():
        made = model.generate(ids, do_sample=False, max_new_tokens=NEW, output_logits=True, return_dict_in_generate=True)
    tops = [logits[0].topk(2).values for logits in made.logits]
    return made.sequences[0, ids.shape[1] :].contiguous(), torch.stack([one - two for one, two in tops])


def forward(folder):
    tensors = {}
    both = texts(SHAPE["vocab_size"])
    for text, ids in enumerate(both):
        model = load(folder)
        with torch.no_grad():
            output = model(ids, output_hidden_states=True)
        tensors |= {f"ids.{text}": ids[0], f"logits.{text}": output.logits[0].contiguous()}
        for layer in range(model.config.num_hidden_layers):
            tensors[f"layer_input.{text}.{layer}"] = output.hidden_states[layer][0].contiguous()
    for place, prompt in enumerate([*both, both[1][:, : ORIGINAL - NEW // 2]]):
        tensors[f"prompt.{place}"] = prompt[0].clone()
        tensors[f"greedy.{place}"], tensors[f"margins.{place}"] = greedy(folder, prompt)
    save_file(tensors, folder / "forward.safetensors")


def write(folder, config, dtype):
    torch.manual_seed(0)
    model = randomise(AutoModelForCausalLM.from_config(config, dtype=torch.float32)).to(dtype)
    model.save_pretrained(folder)
    (folder / "generation_config.json").unlink(missing_ok=True)
    text = json.loads((folder / "config.json").read_text())
    (folder / "config.hub-style.json").write_text(json.dumps(hub_style(text), indent=2) + "\n")


def main(out, *names):
    torch.set_num_threads(2)
    for name, config in MODELS.items():
        if names and name not in names:
            continue
        folder = Path(out, name)
        write(folder, config(), torch.float32)
        forward(folder)
    for name, config in ROUNDED.items():
        if names and name not in names:
            continue
        folder = Path(out, name)
        write(folder, config(), torch.bfloat16)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.bfloat16)
        ids = texts(SHAPE["vocab_size"])[0]
        with torch.no_grad():
            first = model(ids, output_hidden_states=True).hidden_states[0]
        save_file({"ids.0": ids[0], "layer_input.0.0": first[0].contiguous()}, folder / "forward.safetensors")
    if not names or "llama-own-head" in names:
        # The config ties the embeddings, but the weights contain a different head.
        folder = Path(out, "llama-own-head")
        write(folder, of("LlamaConfig", tie_word_embeddings=True, **rope("default"))(), torch.float32)
        weights = load_file(folder / "model.safetensors")
        weights["lm_head.weight"] = weights["model.embed_tokens.weight"].flip(0).contiguous()
        save_file(weights, folder / "model.safetensors", metadata={"format": "pt"})
        forward(folder)


if __name__ == "__main__":
    main(*sys.argv[1:])
