"""What transformers and lm-evaluation-harness say of exported folders, for tests/export_python.rs to compare with.

    pip install torch transformers lm_eval
    python tools/exported.py logits OUT.safetensors "TEXT" FOLDER...
    python tools/exported.py lm-eval OUT.json TASKS LIMIT TASK,TASK,... FOLDER...

`logits` loads each folder in float32 and writes the ids of the text and the logits of every position, each folder's under
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
        tokenizer = AutoTokenizer.from_pretrained(folder, **code)
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **code)
        odd = {key: value for key, value in info.items() if value}
        assert not odd, f"{folder}: {odd}"
        ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            whole = model.eval()(ids).logits[0]
            # Token by token, with the cache that generation uses.
            cached = model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=True)
            plain = model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=False)
        assert torch.equal(cached, plain), f"{folder}: generation depends on the cache"
        tensors[f"{folder.name}.ids"] = ids[0].contiguous()
        tensors[f"{folder.name}.logits"] = whole.contiguous()
    save_file(tensors, out)


def lm_eval(out, data, limit, names, folders):
    import lm_eval as harness
    from lm_eval.tasks import TaskManager

    known, names, results = TaskManager(), names.split(","), {}
    with tempfile.TemporaryDirectory() as here:
        for name in names:
            file = Path(data).resolve() / f"{name}.jsonl.gz"
            own = known.task_index[name]
            # The harness' own task on another file. Of its splits only the scored one is there.
            split = "test" if name in ("arc_easy", "arc_challenge", "openbookqa", "race") else "validation"
            others = {f"{other}_split": None for other in ("training", "validation", "test") if other != split}
            local = {
                "include": str(own.yaml_path if hasattr(own, "yaml_path") else own["yaml_path"]),
                "task": f"local_{name}",
                "dataset_path": "json",
                "dataset_name": None,
                "dataset_kwargs": {"data_files": {split: str(file)}},
                **others,
                f"{split}_split": split,
            }
            Path(here, f"local_{name}.yaml").write_text(json.dumps(local))
        for folder in map(Path, folders):
            code = (folder / "modeling_ghostlab.py").exists()
            scored = harness.simple_evaluate(
                model="hf",
                model_args={"pretrained": str(folder), "dtype": "float32", "trust_remote_code": code},
                tasks=[f"local_{name}" for name in names],
                task_manager=TaskManager(include_path=here),
                num_fewshot=0,
                limit=int(limit),
                batch_size=8,
                device="cpu",
                log_samples=False,
            )
            results[folder.name] = {name: scored["results"][f"local_{name}"] for name in names}
    Path(out).write_text(json.dumps(results, default=str))


if __name__ == "__main__":
    command, out, *rest = sys.argv[1:]
    if command == "logits":
        logits(out, rest[0], rest[1:])
    else:
        lm_eval(out, *rest[:3], rest[3:])
