"""Runs lm-evaluation-harness on a task with generated answers: `golden_answers.py OUT BACKBONE`, using `simple_evaluate`.

Writes synthetic rows in the schema of GSM8K, the definition `definitions/made_up.yaml`, and `golden.json` below OUT.
`golden.json` contains the answers in document order, and the exact match of each filter.
"""

import gzip
import json
import os
import pathlib
import sys

os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "TOKENIZERS_PARALLELISM": "false"}

import lm_eval
import torch
from lm_eval.models.huggingface import HFLM
from lm_eval.tasks import TaskManager

DEFINITION = r"""
task: made_up
dataset_path: json
dataset_kwargs: {data_files: {train: TRAIN, test: TEST}}
output_type: generate_until
training_split: train
fewshot_split: train
test_split: test
num_fewshot: 2
doc_to_text: "Question: {{question}}\nAnswer:"
doc_to_target: "{{answer.split('#### ')[-1]}}"
generation_kwargs: {until: ["Question:", "\n\n"], do_sample: false, temperature: 0.0, max_gen_toks: 16}
filter_list:
  - name: strict-match
    filter:
      - {function: regex, regex_pattern: "^ (.+)$"}
      - {function: take_first}
  - name: flexible-extract
    filter:
      - {function: regex, group_select: 0, regex_pattern: "([A-Za-z]+(?: [A-Za-z]+)*)"}
      - {function: take_first}
metric_list:
  - {metric: exact_match, aggregation: mean, higher_is_better: true, ignore_case: true, ignore_punctuation: false}
metadata: {version: 1.0}
"""


def rows(tiny):
    for line in gzip.open(tiny / "tasks/arc_easy.jsonl.gz", "rt"):
        row = json.loads(line)
        answer = row["choices"]["text"][row["choices"]["label"].index(row["answerKey"])]
        yield {"question": row["question"], "answer": f"It is so.\n#### {answer}"}


def main(out, backbone):
    torch.set_num_threads(2)
    out, backbone = pathlib.Path(out), pathlib.Path(backbone)
    every = list(rows(backbone.parent))
    train, test = out / "train.jsonl", out / "test.jsonl"
    for path, part in [(train, every[100:130]), (test, every[:60])]:
        path.write_text("".join(f"{json.dumps(row)}\n" for row in part))
    folder = out / "definitions"
    folder.mkdir()
    (folder / "made_up.yaml").write_text(DEFINITION.replace("TRAIN", str(train)).replace("TEST", str(test)))
    model = HFLM(pretrained=str(backbone), device="cpu", dtype="float32", batch_size=1)
    manager = TaskManager(include_path=str(folder), include_defaults=False)
    done = lm_eval.simple_evaluate(model, tasks=["made_up"], task_manager=manager, log_samples=True, bootstrap_iters=0)
    # There is one sample per document and filter.
    samples = sorted(done["samples"]["made_up"], key=lambda sample: sample["doc_id"])
    answers = [sample["resps"][0][0] for sample in samples if sample["filter"] == "strict-match"]
    named = {key.split(",")[1]: value for key, value in done["results"]["made_up"].items() if key.startswith("exact_match,")}
    (out / "golden.json").write_text(json.dumps({"answers": answers, "scores": named}))


if __name__ == "__main__":
    main(*sys.argv[1:])
