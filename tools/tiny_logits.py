"""Computes logits of the tiny backbones with transformers, for the comparisons in tests/tiny.rs.

    pip install torch transformers safetensors
    python tools/tiny_logits.py

Loads every backbone of data/tiny/ in float32 and writes tests/fixtures/tiny/logits.safetensors. For each backbone, the file
contains the token ids of a text, and the logits at some positions, [positions, vocabulary].
"""

import json
from pathlib import Path

import torch
import transformers
from safetensors.torch import save_file
from transformers import AutoModelForCausalLM, AutoTokenizer

ROOT = Path(__file__).resolve().parent.parent
TEXT = (
    "Question: What does the pet of Anna eat?\nAnswer: The weather was fine. On Monday Boris found the lamp and Clara "
    "lost the spoon. = = History = = the price of honey rose N % to $ N a ton"
)
# Logits are stored for every 8th position and for the last one.
EVERY = 8


def main():
    tensors, versions = {}, {"torch": torch.__version__, "transformers": transformers.__version__}
    for folder in sorted((ROOT / "data" / "tiny").iterdir()):
        if not (folder / "config.json").exists():
            continue
        tokenizer = AutoTokenizer.from_pretrained(folder)
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
        model.eval()
        ids = tokenizer(TEXT, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            logits = model(ids).logits[0]
        positions = sorted({*range(0, logits.shape[0], EVERY), logits.shape[0] - 1})
        tensors[f"{folder.name}.ids"] = ids[0].to(torch.int64).contiguous()
        tensors[f"{folder.name}.positions"] = torch.tensor(positions, dtype=torch.int64)
        tensors[f"{folder.name}.logits"] = logits[positions].contiguous()
        print(folder.name, model.config.model_type, tuple(logits.shape), f"{logits.abs().max():.3f}")
    target = ROOT / "tests" / "fixtures" / "tiny" / "logits.safetensors"
    target.parent.mkdir(parents=True, exist_ok=True)
    save_file(tensors, target, metadata={"text": TEXT, "versions": json.dumps(versions)})
    print("written:", target)


if __name__ == "__main__":
    main()
