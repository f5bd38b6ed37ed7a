"""Scores a GGUF file with transformers, which dequantizes it, for tests/smollm2.rs: `gguf_scores.py FILE TEXT WINDOWS REQUESTS.json OUT.json`.

Writes the perplexity of the first WINDOWS windows of 512 tokens of a Parquet text (rows joined by blank lines), and the
log-likelihood of each request, which is a pair of context and continuation. Both are summed in float64.
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

LENGTH = 512


def log_likelihoods(model, ids, count):
    """Returns the log-probabilities of the last `count` tokens in float64."""
    with torch.no_grad():
        logits = model(torch.tensor([ids]), logits_to_keep=count + 1).logits[0, :-1]
    # A few rows at a time: float64 logits of a window take 200 MB.
    parts = zip(logits.split(32), torch.tensor(ids[-count:]).split(32), strict=True)
    return torch.cat([torch.log_softmax(rows.double(), -1).gather(1, targets[:, None])[:, 0] for rows, targets in parts])


def perplexity(model, tokenizer, path, count):
    rows = pyarrow.parquet.read_table(path)["text"].to_pylist()
    ids = tokenizer("\n\n".join(rows), add_special_tokens=False)["input_ids"]
    windows = [ids[start : start + LENGTH] for start in range(0, count * LENGTH, LENGTH)]
    losses = torch.stack([-log_likelihoods(model, window, LENGTH - 1) for window in windows])
    return float(losses.mean().exp())


def log_likelihood(model, tokenizer, context, continuation):
    """Splits a request like lm-evaluation-harness, which moves trailing blanks of the context to the continuation."""
    text = context + continuation
    ids, before = (tokenizer(part, add_special_tokens=False)["input_ids"] for part in (text, context.rstrip()))
    return float(log_likelihoods(model, ids, len(ids) - len(before)).sum())


def main(file, text, windows, requests, out):
    folder, name = Path(file).parent, Path(file).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    pairs = json.loads(Path(requests).read_text())
    scores = {
        "perplexity": perplexity(model, tokenizer, text, int(windows)),
        "log_likelihoods": [log_likelihood(model, tokenizer, *pair) for pair in pairs],
    }
    Path(out).write_text(json.dumps(scores))


if __name__ == "__main__":
    main(*sys.argv[1:])
