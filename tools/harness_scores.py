"""Records scores of lm-evaluation-harness on synthetic definitions and rows: `harness_scores.py OUT MODEL`.

Writes OUT/defs (definitions of all output types with likelihoods, a tag, and groups), OUT/rows, and OUT/scores.json with the
results and samples of `simple_evaluate` on a model folder in each setting. Nothing is downloaded.
"""

import json
import logging
import pathlib
import random
import sys

import lm_eval
from lm_eval.tasks import TaskManager

WORDS = "the river bends north of an old mill where a small boat waits and nobody sees it sinks slowly down the hill".split()
SYSTEM = "You answer in few words."
SPLITS = {"train": 13, "dev": 9, "test": 8}
# Number of bootstrap samples. The harness's default of 100,000 takes minutes for each F1.
DRAWS = 1_000

COMMON = """dataset_path: json
dataset_kwargs:
  data_files: {train: ROWS/train.jsonl, dev: ROWS/dev.jsonl, test: ROWS/test.jsonl}
test_split: test
metadata: {version: 1.0}
"""
TRAINED = COMMON + "training_split: train\n"
CHOICE = TRAINED + "output_type: multiple_choice\n"
DEFINITIONS = {
    "plain": CHOICE + 'doc_to_text: "Question: {{question}}\\nAnswer:"\ndoc_to_choice: choices\ndoc_to_target: answer\n'
    "metric_list: [{metric: acc}, {metric: acc_norm}, {metric: acc_bytes}]\n",
    "letters": CHOICE + 'description: "Choose a letter.\\n\\n"\nfewshot_split: dev\nfewshot_config: {sampler: first_n}\n'
    'doc_to_text: "{{question.strip()}}\\nA. {{choices[0]}}\\nB. {{choices[1]}}\\nC. {{choices[2]}}\\nAnswer:"\n'
    "doc_to_choice: [A, B, C]\ndoc_to_target: answer\nmetric_list: [{metric: acc, aggregation: mean, higher_is_better: true}]\ntag: made_tag\n",
    "pairs": CHOICE + 'doc_to_text: "{{first}} Is that: {{second}}"\ndoc_to_choice: ["no", "yes"]\ndoc_to_target: label\n'
    "metric_list: [{metric: acc}, {metric: f1}, {metric: mcc}]\ntag: made_tag\n",
    "several_right": CHOICE + 'doc_to_text: "{{question}}"\ndoc_to_choice: choices\ndoc_to_target: "{{right}}"\nnum_fewshot: 0\n'
    "metric_list: [{metric: acc}]\n",
    "contexts": CHOICE + 'doc_to_text: label\ndoc_to_choice: "{{[first, second]}}"\ndoc_to_target: tail\nmetric_list: [{metric: acc}]\n',
    "sentences": COMMON + 'output_type: multiple_choice\ndoc_to_text: ""\ndoc_to_choice: "{{[first, second]}}"\ndoc_to_target: 0\n'
    'target_delimiter: ""\nnum_fewshot: 0\nmetric_list: [{metric: acc}]\n',
    "by_text": CHOICE + 'doc_to_text: "{{question}}:"\ndoc_to_choice: choices\ndoc_to_target: "{{choices[answer]}}"\n'
    "metric_list: [{metric: acc}, {metric: exact_match}, {metric: brier_score}]\n",
    "informed": CHOICE + 'doc_to_text: "{{question}}"\ndoc_to_choice: choices\ndoc_to_target: answer\n'
    "fewshot_delimiter: \"\\n\"\ntarget_delimiter: \": \"\nmetric_list: [{metric: acc}, {metric: acc_mutual_info}]\n",
    "begun": CHOICE + 'doc_to_text: "{{question}}"\ndoc_to_choice: choices\ndoc_to_target: answer\ngen_prefix: "It is"\n'
    "metric_list: [{metric: acc}, {metric: acc_norm}]\n",
    "itself": COMMON + 'output_type: multiple_choice\ndoc_to_text: "{{first}} ->"\ndoc_to_choice: ["{{tail}}", "no"]\n'
    "doc_to_target: label\n".replace('["{{tail}}", "no"]', "\"{{[tail, 'no']}}\"") + "metric_list: [{metric: acc}]\n",
    "last_word": TRAINED + "output_type: loglikelihood\n"
    "doc_to_text: \"{{text.split(' ')[:-1]|join(' ')}}\"\ndoc_to_target: \"{{' '+text.split(' ')[-1]}}\"\n"
    "metric_list: [{metric: perplexity, aggregation: perplexity, higher_is_better: false}, {metric: acc}]\n",
    "described": TRAINED + 'output_type: loglikelihood\ndescription: "Go on"\ndoc_to_text: "{{first}} "\ndoc_to_target: "{{tail}}"\n',
    "whole": COMMON + 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: "{{long}}"\n',
    "short_whole": COMMON + 'output_type: loglikelihood_rolling\ndoc_to_text: ""\ndoc_to_target: text\n'
    "metric_list: [{metric: word_perplexity}, {metric: byte_perplexity}, {metric: bits_per_byte}]\n",
}
GROUPS = {
    "made_inner": "group: made_inner\ntask: [plain, begun]\naggregate_metric_list: [{metric: acc, weight_by_size: true}, {metric: acc_norm, weight_by_size: true}]\n"
    "metadata: {version: 2}\n",
    "made_outer": "group: made_outer\ntask: [made_inner, made_tag, several_right]\naggregate_metric_list: [{metric: acc, weight_by_size: true}]\n"
    "metadata: {version: 2}\n",
}


def text(draw, least, most):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))


def row(draw, place):
    choices = [f"{text(draw, 1, 3)} {k}é"[: draw.randint(6, 30)].strip() for k in "abc"]
    return {
        "question": f" {text(draw, 3, 8)} {place}?", "choices": choices, "answer": draw.randrange(3), "right": [0, 2],
        "first": text(draw, 3, 6) + f" {place}", "second": text(draw, 3, 6), "label": draw.randrange(2), "tail": text(draw, 1, 2),
        "text": text(draw, 6, 14), "long": "\n".join(text(draw, 60, 90) for _ in range(6)) + " ",
    }


def plain(value):
    """Converts a value of a sample to JSON. NumPy values become numbers."""
    return value.tolist() if hasattr(value, "tolist") else str(value)


def main(out, model):
    logging.disable(logging.WARNING)
    out = pathlib.Path(out)
    defs, rows = out / "defs", out / "rows"
    for folder in (defs, rows):
        folder.mkdir(parents=True)
    for split, count in SPLITS.items():
        draw = random.Random(split)
        (rows / f"{split}.jsonl").write_text("".join(json.dumps(row(draw, place)) + "\n" for place in range(count)))
    for name, body in DEFINITIONS.items():
        (defs / f"{name}.yaml").write_text(f"task: {name}\n" + body.replace("ROWS", str(rows)))
    for name, body in GROUPS.items():
        (defs / f"{name}.yaml").write_text(body)
    # Disable the harness's logits cache. It confuses requests that split the same text differently (`a: b` as `a` + `: b` and
    # `a:` + ` b`), and scores the second with the positions of the first.
    lm = lm_eval.api.registry.get_model("hf")(pretrained=model, dtype="float32", device="cpu", batch_size=16, logits_cache=False)
    asked = []
    for shots, chat in [(None, False), (5, False), (None, True), (5, True)]:
        manager = TaskManager(include_path=str(defs), include_defaults=False)
        names = ["made_outer", *sorted(set(DEFINITIONS) - {"plain", "begun", "letters", "pairs", "several_right"})]
        found = lm_eval.simple_evaluate(
            model=lm,
            tasks=names,
            num_fewshot=shots,
            task_manager=manager,
            apply_chat_template=chat,
            fewshot_as_multiturn=chat,
            system_instruction=SYSTEM if chat else None,
            log_samples=True,
            bootstrap_iters=DRAWS,
        )
        asked.append({
            "shots": shots, "chat": chat, "max_length": lm.max_length,
            **{key: found[key] for key in ("results", "n-samples", "n-shot", "higher_is_better", "versions", "samples")},
        })
    (out / "scores.json").write_text(json.dumps({"system": SYSTEM, "draws": DRAWS, "asked": asked}, default=plain))


if __name__ == "__main__":
    main(*sys.argv[1:])
