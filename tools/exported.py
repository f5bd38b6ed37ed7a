"""What transformers and lm-evaluation-harness say of exported folders, for tests/exported.rs to compare with.

    pip install torch transformers lm_eval
    python tools/exported.py logits OUT.safetensors "TEXT" FOLDER...
    python tools/exported.py lm-eval OUT.json TASKS LIMIT TASK,TASK,... FOLDER...

`logits` loads each folder in float32 and writes the ids of the text (a text of numbers is ids) and the logits of every
position, each folder's under its name. On the way it loads the folder through all that serving programs use (`unasked`,
`attended`, `empty`, `saved`), and stops where one gives something else. `lm-eval` scores each folder on the first LIMIT documents of TASKS/TASK.jsonl.gz under the harness' own task of that
name, and writes its results.
"""

import json
import sys
import tempfile
from pathlib import Path


# Logits of one model by two ways through the same weights in float32.
NEAR = {"rtol": 1e-4, "atol": 1e-4}


def refused(load, *said):
    """What a load is refused with; it may not ask."""
    try:
        load()
    except KeyError as error:
        assert all(word in str(error) for word in said), error
        return
    raise AssertionError("it was loaded")


def unasked(folder, has_code):
    """Tokenizer and config load without a question; the model too, or it is refused where a file has to be trusted."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    assert type(config).__module__.startswith("transformers."), type(config)
    if has_code:
        refused(lambda: AutoModelForCausalLM.from_pretrained(folder), "trust_remote_code=True")
        refused(lambda: AutoModel.from_pretrained(folder, attn_implementation="eager"), "trust_remote_code=True")
    return tokenizer


def register():
    """An attention of our own behind the interface by which servers put theirs in; how often it was called, by layer."""
    from transformers import AttentionInterface
    from transformers.masking_utils import AttentionMaskInterface, eager_mask
    from transformers.models.llama.modeling_llama import eager_attention_forward

    calls = []

    def attention(module, query, key, value, mask, scaling, dropout=0.0, softcap=None, **rest):
        import torch

        calls.append(module.layer_idx)
        if softcap is None:
            return eager_attention_forward(module, query, key, value, mask, scaling=scaling, dropout=0.0)
        groups = query.shape[1] // key.shape[1]
        key, value = key.repeat_interleave(groups, 1), value.repeat_interleave(groups, 1)
        scores = softcap * torch.tanh(query @ key.transpose(2, 3) * scaling / softcap)
        weights = torch.softmax(scores + mask[..., : key.shape[-2]], dim=-1)
        return (weights @ value).transpose(1, 2).contiguous(), weights

    AttentionInterface.register("ghostlab_probe", attention)
    AttentionMaskInterface.register("ghostlab_probe", eager_mask)
    return calls


def attended(model, ids, whole, calls):
    """Each attention implementation gives the same logits; every layer that has attention calls the one that is set, by its
    own number."""
    import torch

    dropped = getattr(model.config, "ghostlab", {}).get("dropped", [])
    kept = [layer for layer in range(model.config.num_hidden_layers) if f"attention {layer}" not in dropped]
    before = model.config._attn_implementation
    for name in ["eager", *(["sdpa"] if model._supports_sdpa else []), "ghostlab_probe"]:
        model.set_attn_implementation(name)
        calls.clear()
        given = model(ids, output_hidden_states=True)
        torch.testing.assert_close(given.logits[0], whole, **NEAR, msg=lambda said: f"{name}: {said}")
        assert len(given.hidden_states) == model.config.num_hidden_layers + 1
    assert calls == kept, calls
    model.set_attn_implementation(before)


def empty(folder, model, ids, whole, code):
    """The base model as vLLM makes it: from the config alone and without memory for weights, which come later."""
    import torch
    from accelerate import init_empty_weights
    from transformers import AutoConfig, AutoModel

    config = AutoConfig.from_pretrained(folder, **code)
    config._attn_implementation = "eager"
    with init_empty_weights(include_buffers=False):
        bare = AutoModel.from_config(config, dtype=torch.float32, **code)
    assert type(bare).is_backend_compatible() and bare.base_model_prefix == "model"
    assert all(weight.is_meta for weight in bare.parameters())
    assert bare.tp_plan and bare._pp_plan
    assert sum(isinstance(module, torch.nn.ModuleList) for module in bare.children()) == 1
    # As a server would: positions and no cache, a tuple back, the stream first.
    bare.load_state_dict(model.model.state_dict(), assign=True)
    places = torch.arange(ids.shape[1])[None]
    stream = bare.eval()(input_ids=ids, position_ids=places, use_cache=False, return_dict=False)[0]
    given = model.lm_head(stream)[0]
    cap = getattr(config, "final_logit_softcapping", None)
    given = given if cap is None else torch.tanh(given / cap) * cap
    torch.testing.assert_close(given, whole, **NEAR, msg=lambda said: f"from_config: {said}")


def saved(model, ids, whole, has_code):
    """What transformers saves of a model that it loaded from a folder is the same model, and as well guarded."""
    import torch
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        code = {}
        if has_code:
            refused(lambda: AutoModelForCausalLM.from_pretrained(folder), "trust_remote_code=True")
            code = {"trust_remote_code": True}
        again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **code).eval()
        torch.testing.assert_close(again(ids).logits[0], whole, **NEAR, msg=lambda said: f"saved: {said}")


def logits(out, text, folders):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    tensors, calls = {}, register()
    for folder in map(Path, folders):
        has_code = (folder / "modeling_ghostlab.py").exists()
        code = {"trust_remote_code": True} if has_code else {}
        tokenizer = unasked(folder, has_code)
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **code)
        odd = {key: value for key, value in info.items() if value}
        assert not odd, f"{folder}: {odd}"
        if all(word.isdigit() for word in text.split()):
            ids = torch.tensor([[int(word) for word in text.split()]])
        else:
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            whole = model.eval()(ids).logits[0]
            # Token by token, with the cache that generation uses.
            cached = model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=True)
            plain = model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=False)
            static = model.generate(ids, max_new_tokens=4, do_sample=False, cache_implementation="static")
            attended(model, ids, whole, calls)
            empty(folder, model, ids, whole, code)
            saved(model, ids, whole, has_code)
        assert torch.equal(cached, plain), f"{folder}: generation depends on the cache"
        assert torch.equal(static, plain), f"{folder}: generation depends on the static cache"
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
