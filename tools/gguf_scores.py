"""Compares `ghostlab score` with transformers on a GGUF file, which transformers dequantizes: `gguf_scores.py FILE WINDOWS SAMPLES...`.

    pip install torch transformers gguf pyarrow
    ghostlab score FILE --tasks TASK --rows ROWS --samples samples --documents 20
    python tools/gguf_scores.py FILE wikitext2-test.parquet samples/samples_TASK.jsonl...

Prints the perplexity of the first 32 windows of 512 tokens of the text (rows joined by blank lines), summed in float64. For
each file of samples, prints the number of requests and the largest relative difference of a log-likelihood.
"""

import json
import sys
from pathlib import Path

import pyarrow.parquet
import torch
from transformers import AutoModelForCausalLM, AutoTokenizer

LENGTH, WINDOWS = 512, 32


def log_likelihoods(model, ids):
    """Returns the log-probability of each token except the first, in float64."""
    with torch.no_grad():
        logits = model(torch.tensor([ids])).logits[0].double()
    shares = torch.log_softmax(logits, -1)
    return shares[range(len(ids) - 1), ids[1:]]


def perplexity(model, tokenizer, path):
    rows = pyarrow.parquet.read_table(path)["text"].to_pylist()
    ids = tokenizer("\n\n".join(rows), add_special_tokens=False)["input_ids"]
    windows = [ids[start : start + LENGTH] for start in range(0, WINDOWS * LENGTH, LENGTH)]
    losses = torch.stack([-log_likelihoods(model, window) for window in windows])
    return float(losses.mean().exp())


def encoded(tokenizer, context, continuation):
    """Splits a request like lm-evaluation-harness, which moves trailing blanks of the context to the continuation."""
    blanks = len(context) - len(context.rstrip())
    if blanks:
        context, continuation = context[:-blanks], context[-blanks:] + continuation
    whole = tokenizer(context + continuation, add_special_tokens=False)["input_ids"]
    return whole, len(tokenizer(context, add_special_tokens=False)["input_ids"])


def compare(model, tokenizer, path):
    worst, requests = 0.0, 0
    for line in Path(path).read_text().splitlines():
        sample = json.loads(line)
        arguments = sample["arguments"]
        pairs = [list(pair.values()) for pair in arguments.values()] if isinstance(arguments, dict) else arguments
        for (context, continuation), response in zip(pairs, sample["filtered_resps"], strict=True):
            ids, start = encoded(tokenizer, context, continuation)
            theirs = float(log_likelihoods(model, ids)[start - 1 :].sum())
            ours = float(response[0])
            worst = max(worst, abs(ours - theirs) / abs(theirs))
            requests += 1
    return worst, requests


def main(file, text, *samples):
    folder, name = Path(file).parent, Path(file).name
    model = AutoModelForCausalLM.from_pretrained(folder, gguf_file=name, dtype=torch.float32).eval()
    tokenizer = AutoTokenizer.from_pretrained(folder, gguf_file=name)
    print(f"perplexity of {WINDOWS} windows: {perplexity(model, tokenizer, text):.9f}")
    for path in samples:
        worst, requests = compare(model, tokenizer, path)
        print(f"{Path(path).stem}: {requests} log-likelihoods, largest relative difference {worst:.2e}")


if __name__ == "__main__":
    main(*sys.argv[1:])
