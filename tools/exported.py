"""Loads exported folders in transformers and lm-evaluation-harness, for the comparisons in tests/exported.rs.

    pip install torch transformers lm_eval
    python tools/exported.py logits OUT.safetensors "TEXT" FOLDER...
    python tools/exported.py generate OUT.safetensors "TEXT" FOLDER...
    python tools/exported.py lm-eval OUT.json TASKS LIMIT TASK,TASK,... FOLDER...

`logits` loads each folder in float32, and writes the token ids of the text and the logits of every position under the folder's
name. A text of numbers is read as token ids. It also checks the interfaces that serving programs use (`check_loading`,
`check_attention`, `check_empty_model`, `check_saved_model`), and fails if one gives a different result. `generate` is for larger
models: it leaves out the last three checks, and computes the logits in float64, because their rounding errors in float32 are
close to the tolerance.

`lm-eval` scores each folder on the first LIMIT documents of TASKS/TASK.jsonl.gz with the harness's task of that name, and
writes the results.
"""

import json
import sys
import tempfile
from pathlib import Path


# Tolerance for logits of the same float32 weights, computed in two ways.
TOLERANCES = {"rtol": 1e-4, "atol": 1e-4}


def assert_load_fails(load, *words):
    """Checks that a load fails with a message that contains all `words`, without prompting the user."""
    try:
        load()
    except KeyError as error:
        assert all(word in str(error) for word in words), error
        return
    raise AssertionError("the load must fail")


def check_loading(folder, has_code):
    """Checks that tokenizer and config load without a prompt, and that a model with code is rejected unless it is trusted."""
    from transformers import AutoConfig, AutoModel, AutoModelForCausalLM, AutoTokenizer

    tokenizer, config = AutoTokenizer.from_pretrained(folder), AutoConfig.from_pretrained(folder)
    assert type(config).__module__.startswith("transformers."), type(config)
    if has_code:
        assert_load_fails(lambda: AutoModelForCausalLM.from_pretrained(folder), "trust_remote_code=True")
        assert_load_fails(lambda: AutoModel.from_pretrained(folder, attn_implementation="eager"), "trust_remote_code=True")
    return tokenizer


def register_probe():
    """Registers a probe as attention implementation, like serving programs do. Returns the list of layers that call it."""
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


def check_attention(model, ids, whole, calls):
    """Checks that all attention implementations give the same logits, and that each layer with attention calls the selected
    one with its own index."""
    import torch

    dropped = getattr(model.config, "ghostlab", {}).get("dropped", [])
    layers = range(model.config.num_hidden_layers)
    # A number is the index of a layer that lacks both sublayers.
    kept = [layer for layer in layers if layer not in dropped and f"attention {layer}" not in dropped]
    before = model.config._attn_implementation
    for name in ["eager", *(["sdpa"] if model._supports_sdpa else []), "ghostlab_probe"]:
        model.set_attn_implementation(name)
        calls.clear()
        result = model(ids, output_hidden_states=True)
        torch.testing.assert_close(result.logits[0], whole, **TOLERANCES, msg=lambda message: f"{name}: {message}")
        assert len(result.hidden_states) == model.config.num_hidden_layers + 1
    assert calls == kept, calls
    model.set_attn_implementation(before)


def check_empty_model(folder, model, ids, whole, code):
    """Checks a base model created as vLLM does: from the config, on the meta device, with the weights loaded later."""
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
    # Call the model as serving programs do: with positions, without a cache, and with a tuple result that starts with
    # the residual stream.
    bare.load_state_dict(model.model.state_dict(), assign=True)
    positions = torch.arange(ids.shape[1])[None]
    stream = bare.eval()(input_ids=ids, position_ids=positions, use_cache=False, return_dict=False)[0]
    result = model.lm_head(stream)[0]
    cap = getattr(config, "final_logit_softcapping", None)
    result = result if cap is None else torch.tanh(result / cap) * cap
    torch.testing.assert_close(result, whole, **TOLERANCES, msg=lambda message: f"from_config: {message}")


def check_saved_model(model, ids, whole, has_code):
    """Checks that a model saved by transformers loads as the same model, and still requires trust for its code."""
    import torch
    from transformers import AutoModelForCausalLM

    with tempfile.TemporaryDirectory() as folder:
        model.save_pretrained(folder)
        code = {}
        if has_code:
            assert_load_fails(lambda: AutoModelForCausalLM.from_pretrained(folder), "trust_remote_code=True")
            code = {"trust_remote_code": True}
        again = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, **code).eval()
        torch.testing.assert_close(again(ids).logits[0], whole, **TOLERANCES, msg=lambda message: f"saved: {message}")


def logits(out, text, folders, large=False):
    import torch
    from safetensors.torch import save_file
    from transformers import AutoModelForCausalLM

    tensors, calls = {}, register_probe()
    for folder in map(Path, folders):
        has_code = (folder / "modeling_ghostlab.py").exists()
        code = {"trust_remote_code": True} if has_code else {}
        tokenizer = check_loading(folder, has_code)
        model, info = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32, output_loading_info=True, **code)
        problems = {key: value for key, value in info.items() if value}
        assert not problems, f"{folder}: {problems}"
        if all(word.isdigit() for word in text.split()):
            ids = torch.tensor([[int(word) for word in text.split()]])
        else:
            ids = tokenizer(text, return_tensors="pt")["input_ids"]
        with torch.no_grad():
            whole = model.eval()(ids).logits[0]
            # Decoding with a cache must give the same tokens.
            cached = model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=True)
            plain = model.generate(ids, max_new_tokens=4, do_sample=False, use_cache=False)
            static = model.generate(ids, max_new_tokens=4, do_sample=False, cache_implementation="static")
            if large:
                whole = model.double()(ids).logits[0]
            else:
                check_attention(model, ids, whole, calls)
                check_empty_model(folder, model, ids, whole, code)
                check_saved_model(model, ids, whole, has_code)
        assert torch.equal(cached, plain), f"{folder}: generation depends on the cache"
        assert torch.equal(static, plain), f"{folder}: generation depends on the static cache"
        tensors[f"{folder.name}.ids"] = ids[0].contiguous()
        tensors[f"{folder.name}.logits"] = whole.contiguous()
    save_file(tensors, out)


# Tasks whose test split the harness scores. For other tasks, it scores the validation split.
TEST_SPLIT_TASKS = ("arc_easy", "arc_challenge", "openbookqa", "race")


def local_tasks(here, files):
    """Writes copies of the harness's tasks that read our files into a folder. Returns the name of each copy by task."""
    from lm_eval.tasks import TaskManager

    known = TaskManager()
    for name, file in files.items():
        task = known.task_index[name]
        # Only the scored split exists.
        split = "test" if name in TEST_SPLIT_TASKS else "validation"
        others = {f"{other}_split": None for other in ("training", "validation", "test") if other != split}
        local = {
            "include": str(task.yaml_path if hasattr(task, "yaml_path") else task["yaml_path"]),
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
    """Loads a folder's model, and returns its results on tasks of `local_tasks`."""
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
    if command in ("logits", "generate"):
        logits(out, rest[0], rest[1:], large=command == "generate")
    else:
        lm_eval(out, *rest[:3], rest[3:])
