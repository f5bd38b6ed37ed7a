"""Writes files in the hub's formats with the libraries that created the files on the hub, for tests/python.rs.

    pip install datasets pyarrow safetensors numpy
    python tools/real_formats.py OUT

The rows of the tasks are those of tests/fixtures/lm_eval/docs. Texts and weights are synthetic. Every table has the features of
the dataset on the hub. For example, class labels are integers, and `choices` is a struct of lists.
"""

import gzip
import json
import sys
from pathlib import Path

import numpy as np
from datasets import ClassLabel, Dataset, Features, List, Value
from safetensors.numpy import load_file, save_file

ROOT = Path(__file__).resolve().parent.parent
DOCS = ROOT / "tests" / "fixtures" / "lm_eval" / "docs"

TEXT = Value("string")
CHOICES = {"text": List(TEXT), "label": List(TEXT)}
ARC = {"id": TEXT, "question": TEXT, "choices": CHOICES, "answerKey": TEXT}
TASKS = {
    "arc_easy": ("test", ARC),
    "arc_challenge": ("test", ARC),
    "hellaswag": (
        "validation",
        {
            "ind": Value("int32"),
            **{name: TEXT for name in ("activity_label", "ctx_a", "ctx_b", "ctx")},
            "endings": List(TEXT),
            **{name: TEXT for name in ("source_id", "split", "split_type", "label")},
        },
    ),
    "winogrande": ("validation", {name: TEXT for name in ("sentence", "option1", "option2", "answer")}),
    "boolq": (
        "validation",
        {"question": TEXT, "passage": TEXT, "idx": Value("int32"), "label": ClassLabel(names=["False", "True"])},
    ),
    "openbookqa": ("test", {"id": TEXT, "question_stem": TEXT, "choices": CHOICES, "answerKey": TEXT}),
    "rte": (
        "validation",
        {
            "sentence1": TEXT,
            "sentence2": TEXT,
            "label": ClassLabel(names=["entailment", "not_entailment"]),
            "idx": Value("int32"),
        },
    ),
    "copa": (
        "validation",
        {
            **{name: TEXT for name in ("premise", "choice1", "choice2", "question")},
            "idx": Value("int32"),
            "label": ClassLabel(names=["choice1", "choice2"]),
        },
    ),
    "race": ("test", {"article": TEXT, "problems": TEXT}),
}
# WikiText's rows keep their newline and spaces, and a blank line is an empty row. PTB's sentences have no surrounding spaces.
WIKITEXT = ["", " = A Mill = \n", "", " The mill stood by the brook . It ground rye @-@ wheat for Élise . \n", ""]
PTB = ["the miller sold N sacks of flour", "mr. <unk> is chairman of the mill"]
C4 = [
    {"text": "The mill by the brook.\nIt is old.", "timestamp": "2019-04-25T12:57:54Z", "url": "https://mill.example/a"},
    {"text": "Flour, “rye” and wheat — 40%.", "timestamp": "2019-04-26T00:00:00Z", "url": "https://mill.example/b"},
]


def table(rows, features, path, shards=1):
    """Writes Parquet files like `datasets` does when it pushes to the hub, with several row groups if there are enough rows."""
    data = Dataset.from_list(rows, features=Features(features))
    path.parent.mkdir(parents=True, exist_ok=True)
    for shard in range(shards):
        name = path.name.format(shard, shards)
        data.shard(shards, shard, contiguous=True).to_parquet(path.with_name(name), batch_size=3)


def tasks(out):
    for name, (split, features) in TASKS.items():
        rows = [json.loads(line) for line in (DOCS / f"{name}.jsonl").read_text(encoding="utf-8").splitlines()]
        rows = [{key: row[key] for key in features} for row in rows]
        table(rows, features, out / "tasks" / name / (split + "-{:05d}-of-{:05d}.parquet"))
        table(rows, features, out / "shards" / name / (split + "-{:05d}-of-{:05d}.parquet"), shards=2)


def texts(out):
    table([{"text": row} for row in WIKITEXT], {"text": TEXT}, out / "wikitext" / "test-00000-of-00001.parquet")
    table([{"sentence": row} for row in PTB], {"sentence": TEXT}, out / "ptb" / "0000.parquet")
    # C4's shards consist of several concatenated gzip members.
    members = [gzip.compress((json.dumps(row, ensure_ascii=False) + "\n").encode()) for row in C4]
    (out / "c4-train.00000-of-01024.json.gz").write_bytes(b"".join(members))
    (out / "texts.json").write_text(json.dumps({"wikitext": WIKITEXT, "ptb": PTB, "c4": [row["text"] for row in C4]}))


def weights(out):
    """Writes the small Llama of the tests in float16, once as a single file and once in shards with an index."""
    own = ROOT / "tests" / "fixtures" / "arch" / "llama-gqa"
    tensors = {name: value.astype(np.float16) for name, value in load_file(own / "model.safetensors").items()}
    for folder in ("whole", "sharded"):
        (out / folder).mkdir(exist_ok=True)
        (out / folder / "config.json").write_bytes((own / "config.json").read_bytes())
    save_file(tensors, out / "whole" / "model.safetensors", metadata={"format": "pt"})
    names = sorted(tensors)
    shards = [names[: len(names) // 2], names[len(names) // 2 :]]
    weight_map = {}
    for number, shard in enumerate(shards, 1):
        file = f"model-{number:05d}-of-{len(shards):05d}.safetensors"
        save_file({name: tensors[name] for name in shard}, out / "sharded" / file, metadata={"format": "pt"})
        weight_map.update(dict.fromkeys(shard, file))
    size = sum(value.nbytes for value in tensors.values())
    index = {"metadata": {"total_size": size}, "weight_map": weight_map}
    (out / "sharded" / "model.safetensors.index.json").write_text(json.dumps(index, indent=2) + "\n")


def main():
    out = Path(sys.argv[1])
    out.mkdir(parents=True, exist_ok=True)
    tasks(out)
    texts(out)
    weights(out)


if __name__ == "__main__":
    main()
