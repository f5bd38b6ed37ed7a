"""What transformers and lm-evaluation-harness say of exported folders, for tests/exported.rs to compare with.

    pip install torch transformers lm_eval
    python tools/exported.py logits OUT.safetensors "TEXT" FOLDER...
    python tools/exported.py lm-eval OUT.json TASKS LIMIT TASK,TASK,... FOLDER...

`logits` loads each folder in float32 and writes the ids of the text (a text of numbers is ids) and the logits of every position, each folder's under
its name. `lm-eval` scores each folder on the first LIMIT documents of TASKS/TASK.jsonl.gz under the harness' own task of that
name, and writes its results.
"""

import json
import sys
import tempfile
from pathlib import Path


def logits(out, text, folders):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tensors = {}
    for folder in map(Path, folders):
        code = {"trust_remote_code": True} if (folder / "modeling_ghostlab.py").exists() else {}
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **code)
        odd = {key: value for key, value in info.items() if value}
        assert not odd, f"{folder}: {odd}"
        if all(word.isdigit() for word in text.split()):
            ids = torch.tensor([[int(word) for word in text.split()]])
        else:
            ids = AutoTokenizer.from_pretrained(folder, **code)(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            whole = model.eval()(ids).logits[0]
            # Token by token, with the cache that generation uses.
            cached = model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=True)
            plain = model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=False)
        assert torch.equal(cached, plain), f"{folder}: generation depends on the cache"
        tensors[f"{folder.name}.ids"] = ids[0].contiguous()
        tensors[f"{folder.name}.logits"] = whole.contiguous()
    save_file(tensors, out)


# Of these tasks the harness scores the test split, of the others the validation split.
TESTED = ("arc_easy", "arc_challenge", "openbookqa", "race")


def local_tasks(here, files):
    """Writes the harness' own tasks, each on a file of ours, into a folder; what they are called there, by task."""
    from lm_eval.tasks import TaskManager

    known = TaskManager()
    for name, file in files.items():
        own = known.task_index[name]
        # Of its splits only the scored one is there.
        split = "test" if name in TESTED else "validation"
        others = {f"{other}_split": None for other in ("training", "validation", "test") if other != split}
        local = {
            "include": str(own.yaml_path if hasattr(own, "yaml_path") else own["yaml_path"]),
            "task": f"local_{name}",
            "dataset_path": "parquet" if Path(file).suffix == ".parquet" else "json",
            "dataset_name": None,
            "dataset_kwargs": {"data_files": {split: str(Path(file).resolve())}},
            **others,
            f"{split}_split": split,
        }
        Path(here, f"local_{name}.yaml").write_text(json.dumps(local))
    return {name: f"local_{name}" for name in files}


def evaluate(manager, folder, tasks, limit, batch_size=8, samples=False, kind="float32"):
    """A folder's results on tasks of `local_tasks`, from loading the model on."""
    import lm_eval as harness

    return harness.simple_evaluate(
        model="hf",
        model_args={
            "pretrained": str(folder),
            "dtype": kind,
            "trust_remote_code": (Path(folder) / "modeling_ghostlab.py").exists(),
        },
        tasks=list(tasks),
        task_manager=manager,
        num_fewshot=0,
        limit=limit,
        batch_size=batch_size,
        device="cpu",
        log_samples=samples,
    )


def lm_eval(out, data, limit, names, folders):
    from lm_eval.tasks import TaskManager

    results = {}
    with tempfile.TemporaryDirectory() as here:
        tasks = local_tasks(here, {name: Path(data) / f"{name}.jsonl.gz" for name in names.split(",")})
        manager = TaskManager(include_path=here)
        for folder in map(Path, folders):
            scored = evaluate(manager, folder, tasks.values(), int(limit))
            results[folder.name] = {name: scored["results"][local] for name, local in tasks.items()}
    Path(out).write_text(json.dumps(results, default=str))


if __name__ == "__main__":
    command, out, *rest = sys.argv[1:]
    if command == "logits":
        logits(out, rest[0], rest[1:])
    else:
        lm_eval(out, *rest[:3], rest[3:])
