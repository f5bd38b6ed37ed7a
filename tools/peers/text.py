"""Benchmarks on text: dense forward passes, generation, and grids of variants."""

import csv
import json
import math
import os
import shutil
import statistics
import subprocess
import sys
import time
from pathlib import Path

from bench import LOSS, LOSS_BF16, REAL, TINY, Differs, Row, difference, fastest_batch, has_amx, request_round

# Our names of torch's float types.
TORCH_NAMES = {"float32": "f32", "bfloat16": "bf16"}
RECOVERIES = ["none", "prune-and-comp", "replaceme-ls", "linearpatch-rotate", "ghosted"]


def text_file(real, split):
    """Returns the file of a text. For the published text, calibration uses the validation split."""
    if real:
        return REAL / f"corpora/wikitext2-{'validation' if split == 'train' else split}.parquet"
    return TINY / f"corpora/wiki-{split}.jsonl.gz"


def join_rows(file):
    """Returns the text with its rows joined by the rule `wikitext2`."""
    import datasets

    kind = "parquet" if file.suffix == ".parquet" else "json"
    return "\n\n".join(datasets.load_dataset(kind, data_files=str(file), split="train")["text"])


def tokenize_windows(file, backbone, count, length):
    """Returns the windows that the rule `wikitext2` cuts from a text, tokenized by transformers: `[count, length]`."""
    from transformers import AutoTokenizer

    folder, options = locate_backbone(backbone)
    ids = AutoTokenizer.from_pretrained(folder, **options)(join_rows(file))["input_ids"]
    assert len(ids) >= count * length, f"{file}: {len(ids)} tokens are fewer than {count} windows of {length}"
    return [ids[start : start + length] for start in range(0, count * length, length)]


def locate_backbone(backbone):
    """Returns the folder of a backbone, and the options that transformers needs for a GGUF file."""
    path = Path(backbone)
    return (path.parent, {"gguf_file": path.name}) if path.suffix == ".gguf" else (path, {})


def load_model(backbone, kind="float32"):
    import torch
    from transformers import AutoModelForCausalLM

    folder, options = locate_backbone(backbone)
    code = (folder / "modeling_ghostlab.py").exists()
    return AutoModelForCausalLM.from_pretrained(folder, dtype=getattr(torch, kind), trust_remote_code=code, **options).eval()


def compute_losses(model, ids, batch):
    """Returns the mean loss over the predicted tokens of each window."""
    import torch

    found = []
    with torch.inference_mode():
        for first in range(0, len(ids), batch):
            some = torch.tensor(ids[first : first + batch])  # [batch, length]
            logits = model(some, use_cache=False).logits[:, :-1]  # [batch, length - 1, vocab]
            targets = some[:, 1:].flatten()
            loss = torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), targets, reduction="none")
            found += loss.view(len(some), -1).double().mean(dim=1).tolist()
    return found


def perplexity(of_windows):
    return math.exp(statistics.fmean(of_windows))


def forward(bench):
    count, length = bench.size((64, 512), (4, 64))
    ids = tokenize_windows(text_file(bench.real, "test"), bench.backbone, count, length)
    file = bench.create_folder("forward") / "windows.json"
    file.write_text(json.dumps(ids))
    for how in bench.select_types((("f32", "float32", LOSS, "1.5"), *split_types("", ""), ("bf16", "bfloat16", LOSS_BF16, "1.5"))):
        yield from forward_in(bench, "forward", bench.backbone, (file, ids), how)


def split_types(aim_3, aim_6):
    """Returns the types with f32 numbers as sums of bf16 numbers. They need AMX, and are compared with the peer in f32."""
    return (("bf16x3", "float32", LOSS, aim_3), ("bf16x6", "float32", LOSS, aim_6)) if has_amx() else ()


def forward_in(bench, part, backbone, given, how):
    """Benchmarks both sides in one float type. In bf16, ghostlab computes only matrix products in bf16, and the peer
    computes everything in bf16. If the processor has AMX, the peer also runs in bf16 without it."""
    (file, ids), (kind, theirs_kind, tolerance, aim) = given, how
    count, length = len(ids), len(ids[0])
    driver, model = bench.start_driver("forward", backbone, file, kind), load_model(backbone, theirs_kind)
    sizes = [size for size in bench.size((1, 2, 4, 8), (4,)) if size <= count] or [count]
    batch = fastest_batch(sizes, lambda size: compute_losses(model, ids[: sizes[-1]], size))
    request_round(driver)

    def ours():
        said = request_round(driver)
        return said["seconds"], said["losses"]

    def theirs():
        started = time.perf_counter()
        found = compute_losses(model, ids, batch)
        return time.perf_counter() - started, found

    limited = [Limited(bench, limit, backbone, file, theirs_kind, batch) for limit in bench.without_amx if kind == "bf16"]
    (mine_seconds, *their_seconds), (mine, *others) = bench.run_rounds(ours, theirs, *(side.round for side in limited))
    for process in (driver, *(side.process for side in limited)):
        process.communicate()
    peer = f"transformers in {TORCH_NAMES[theirs_kind]}"
    peers = [peer, f"{peer} without AMX"]
    for peer, seconds, other in zip(peers, their_seconds, others):
        apart = difference("the loss of each window", mine, other, tolerance)
        notes = [f"perplexity {perplexity(mine):.5f} and {perplexity(other):.5f}", f"transformers in batches of {batch}"]
        what, said = f"{kind}, {count} windows of {length}", f"losses {apart:.0e} ({tolerance:.0e})"
        yield Row(part, what, peer, mine_seconds, seconds, said, aim if peer == peers[0] else "", notes, count * length)


class Limited:
    """transformers in a separate process, in which an environment variable limits oneDNN."""

    def __init__(self, bench, limit, *arguments):
        name, value = limit.split("=")
        command = [sys.executable, Path(__file__).with_name("limited.py"), *map(str, arguments), str(bench.threads)]
        pipes = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
        self.process = subprocess.Popen(command, env=os.environ | {name: value}, text=True, **pipes)
        # Warm up.
        self.round()

    def round(self):
        said = request_round(self.process)
        return said["seconds"], said["losses"]


# Model whose shape, embedding and head the wide backbone has, and its number of layers.
WIDE = ("llama-3.1-8b", 2)


def random_wide(bench):
    """Returns the folder of a random wide backbone, which all parts share."""
    (like, layers), folder = WIDE, bench.folder / "random-wide"
    if not folder.exists():
        if not bench.tiny.exists():
            build = "cargo build --release --manifest-path tools/tiny/Cargo.toml --target-dir target"
            sys.exit(f"error: {bench.tiny} is missing: build it with `{build}`")
        command = [bench.tiny, "random", "--like", like, "--layers", str(layers), folder]
        subprocess.run(command, check=True, capture_output=True)
    return folder


def wide(bench):
    import random

    # The wide backbone takes gigabytes. A small one suffices for quick runs, which only check agreement.
    folder = TINY / "llama" if bench.quick else random_wide(bench)
    count, length = bench.size((2, 512), (1, 16))
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    ids = [[random.Random(at).randrange(vocabulary) for at in range(row * length, (row + 1) * length)] for row in range(count)]
    file = bench.folder / "wide.json"
    file.write_text(json.dumps(ids))
    types = ("f32", "float32", LOSS, "1.1"), *split_types("2.5", "1.5"), ("bf16", "bfloat16", LOSS_BF16, "2.0")
    for how in bench.select_types(types):
        yield from forward_in(bench, "wide", folder, (file, ids), how)


def whole(bench):
    """Benchmarks the perplexity of a published model, including loading. Our time includes the program's startup. The peer's
    time excludes imports."""
    named = os.environ.get("SMOLLM")
    if not named:
        print("whole: skipped: set SMOLLM to the GGUF file of SmolLM2-135M", flush=True)
        return
    count, length = bench.size((32, 512), (2, 64))
    test, file = text_file(bench.real, "test"), bench.create_folder("whole") / "grid.yaml"
    grid = {
        "name": "whole",
        "backbones": {"dense": {"path": str(Path(named).resolve())}},
        "corpora": {"test": {"path": str(test), "rule": "wikitext2", "limit": count}},
        "backbone": ["dense"],
        "evaluate": {"perplexity": {"corpus": "test", "length": length}},
    }
    file.write_text(json.dumps(grid))
    types = ("f32", "float32", LOSS, "1.4"), *split_types("", ""), ("bf16", "bfloat16", LOSS_BF16, "1.5")
    for kind, theirs_kind, tolerance, aim in bench.select_types(types):
        model, ids = load_model(named, theirs_kind), tokenize_windows(test, named, count, length)
        batch = fastest_batch(bench.size((1, 2, 4), (2,)), lambda size: compute_losses(model, ids[:4], size))
        del model

        def ours():
            store, results = bench.create_folder("whole/store"), bench.create_folder("whole/results")
            seconds, _ = bench.run_program("run", file, "--store", store, "--results", results, "--dtype", kind)
            with open(next(results.rglob("results.csv")), newline="") as table:
                (row,) = csv.DictReader(table)
            return seconds, math.log(next(float(value) for name, value in row.items() if name.startswith("ppl ")))

        def theirs():
            started = time.perf_counter()
            found = compute_losses(load_model(named, theirs_kind), tokenize_windows(test, named, count, length), batch)
            return time.perf_counter() - started, statistics.fmean(found)

        seconds, (mine, other) = bench.run_rounds(ours, theirs)
        apart = difference("the mean loss", [mine], [other], tolerance)
        notes = [f"from {Path(named).name}; {count} windows", f"transformers in batches of {batch}, loading included"]
        said = f"losses {apart:.0e} ({tolerance:.0e})"
        what = f"{kind}, SmolLM2-135M, windows of {length}"
        yield Row("whole", what, f"transformers in {TORCH_NAMES[theirs_kind]}", *seconds, said, aim, notes, count * length)


def generate(bench):
    """Benchmarks greedy generation from prompts of the text, one at a time and sixteen together."""
    length, new = bench.size((64, 64), (8, 4))
    for batch in bench.size((1, 16), (2,)):
        prompts = tokenize_windows(text_file(bench.real, "test"), bench.backbone, max(batch, bench.size(4, 2)), length)
        yield generate_in(bench, "generate", bench.backbone, (prompts, new, batch), ("f32", "float32"))
    prompts = tokenize_windows(text_file(bench.real, "test"), bench.backbone, bench.size(16, 2), length)
    yield generate_in(bench, "generate", bench.backbone, (prompts, new, len(prompts)), ("f32", "float32"), cuts_of(bench))
    if bench.quick:
        return
    folder = random_wide(bench)
    vocabulary = json.loads((folder / "config.json").read_text())["vocab_size"]
    prompts = [[(row * 7919 + at * 31) % vocabulary for at in range(16)] for row in range(2)]
    for how in bench.select_types((("f32", "float32"), ("bf16", "bfloat16"))):
        yield generate_in(bench, "generate", folder, (prompts, 8, 1), how)


def cuts_of(bench):
    """Returns ten cuts as late in the model as the paper's, as (start, end). The last layer is kept."""
    layers = json.loads((bench.backbone / "config.json").read_text())["num_hidden_layers"]
    every = [(end - depth, end) for end in range(layers - 1, 0, -1) for depth in (1, 2, 3, 4, 5) if end - depth > layers // 2]
    return every[: bench.size(10, 2)]


def without(model, layers, cut):
    """Returns the model without the layers of a cut, with renumbered cache indices."""
    import torch

    kept = [layer for at, layer in enumerate(layers) if not cut[0] <= at < cut[1]]
    for at, layer in enumerate(kept):
        layer.self_attn.layer_idx = at
    model.model.layers, model.config.num_hidden_layers = torch.nn.ModuleList(kept), len(kept)
    return model


def generate_in(bench, part, backbone, given, how, cuts=()):
    """Benchmarks generation on both sides in one float type. In bf16, near-ties may change tokens, so the number of equal tokens is
    reported. With cuts, ghostlab runs the dense backbone and all variants together, and the peer runs them one by one."""
    import torch

    (prompts, new, batch), (kind, theirs_kind) = given, how
    file = bench.folder / "prompts.json"
    file.write_text(json.dumps(prompts))
    named = ",".join(f"{first}-{end}" for first, end in cuts)
    driver, model = bench.start_driver("generate", backbone, file, kind, new, named), load_model(backbone, theirs_kind)
    layers = list(model.model.layers)
    settings = {"max_new_tokens": new, "min_new_tokens": new, "do_sample": False, "pad_token_id": 0}

    def ours():
        said = request_round(driver, str(batch))
        return said["seconds"], said["ids"]

    def theirs():
        started, found = time.perf_counter(), []
        with torch.inference_mode():
            for cut in [(0, 0), *cuts]:
                without(model, layers, cut)
                for first in range(0, len(prompts), batch):
                    some = torch.tensor(prompts[first : first + batch])
                    made = model.generate(some, attention_mask=torch.ones_like(some), eos_token_id=None, **settings)
                    found += made[:, some.shape[1] :].tolist()
        return time.perf_counter() - started, found

    ours(), theirs()
    seconds, (mine, other) = bench.run_rounds(ours, theirs)
    driver.communicate()
    alike = sum(a == b for one, two in zip(mine, other) for a, b in zip(one, two))
    all_tokens = len(prompts) * new * (1 + len(cuts))
    if kind == "f32" and alike < all_tokens:
        raise Differs(f"greedy tokens: {alike} of {all_tokens} agree")
    channels = json.loads((Path(backbone) / "config.json").read_text())["hidden_size"]
    what = f"{len(prompts)} prompts of {len(prompts[0])} tokens, {new} new each, {batch} together, C = {channels}, {kind}"
    if cuts:
        what += f", dense and {len(cuts)} cuts"
    said = f"{alike} of {all_tokens} tokens alike"
    return Row(part, what, f"transformers in {kind}", *seconds, said, tokens=all_tokens)


def cell_of(folder):
    """Returns the depth and recovery of an exported cell from the end of its name: `dense.streamline-3.ghosted`."""
    cell = json.loads((folder / "ghostlab.json").read_text())["cell"]
    depth, recovery = cell.removeprefix("dense.").split(".")[:2]
    return depth.rsplit("-", 1)[1], recovery


class Variants:
    """Grid of one backbone, with its cells exported, and a store that contains everything except scores."""

    def __init__(self, bench, name, backbone, real, axes, calibration, count, length):
        self.bench, self.name, self.folder = bench, name, bench.create_folder(name)
        self.file, self.store = self.folder / "grid.yaml", self.folder / "store"
        test = text_file(real, "test")
        whole = axes | {
            "name": name,
            "backbones": {"dense": {"path": str(backbone)}},
            "corpora": {
                "train": {"path": str(text_file(real, "train")), "rule": "wikitext2"},
                "test": {"path": str(test), "rule": "wikitext2", "limit": count},
            },
            "backbone": ["dense"],
            "recovery": RECOVERIES,
            "calibration": {"corpus": "train"} | calibration,
            "evaluate": {"perplexity": {"corpus": "test", "length": length}},
        }
        self.file.write_text(json.dumps(whole))
        self.store.mkdir()
        bench.run_program("export", self.file, "--to", self.folder / "out", "--store", self.store, "--dtype", "f32")
        self.folders = {("0", ""): backbone}
        for folder in sorted((self.folder / "out").iterdir()):
            self.folders[cell_of(folder)] = folder
        self.ids, model = tokenize_windows(test, backbone, count, length), load_model(backbone)
        self.batch = fastest_batch(bench.size((2, 8), (4,)), lambda size: compute_losses(model, self.ids[:16], size))

    def fresh_store(self):
        """Returns a copy of the store without scores."""
        shutil.rmtree(self.folder / "round", ignore_errors=True)
        return shutil.copytree(self.store, self.folder / "round")

    def ours(self):
        store, results = self.fresh_store(), self.bench.create_folder(f"{self.name}/results")
        seconds, _ = self.bench.run_program("run", self.file, "--store", store, "--results", results)
        with open(next(results.rglob("results.csv")), newline="") as file:
            rows = list(csv.DictReader(file))
        column = next(name for name in rows[0] if name.startswith("ppl "))
        return seconds, {(row["depth"], row["recovery"]): float(row[column]) for row in rows}

    def theirs(self):
        started, found = time.perf_counter(), {}
        for cell, folder in self.folders.items():
            found[cell] = perplexity(compute_losses(load_model(folder), self.ids, self.batch))
        return time.perf_counter() - started, found

    def row(self, what, aim=""):
        seconds, (mine, other) = self.bench.run_rounds(self.ours, self.theirs)
        if mine.keys() != other.keys():
            raise Differs(f"{self.name}: our cells are {sorted(mine)}, theirs {sorted(other)}")
        logarithms = [[math.log(of[cell]) for cell in sorted(mine)] for of in (mine, other)]
        apart = difference(f"mean losses of {sorted(mine)}", *logarithms, LOSS)
        notes = [f"transformers in batches of {self.batch}, loading included"]
        return Row(self.name, what, "transformers", *seconds, f"losses {apart:.0e} ({LOSS:.0e})", aim, notes)

    def predicted(self):
        """Returns the cost of scoring all cells one by one relative to scoring them together, from the cost model."""
        _, said = self.bench.run_program("plan", self.file, "--store", self.fresh_store())
        line = next(line for line in said.splitlines() if line.startswith("cost: "))
        return 100 / float(line.split("(")[1].split("%")[0])


def grid(bench):
    count, length, sequences = bench.size((200, 256, 32), (4, 64, 8))
    axes = {"criterion": "llm-streamline", "depth": bench.size([3, 5], [3])}
    calibration = {"sequences": sequences, "length": length}
    variants = Variants(bench, "grid", bench.backbone, bench.real, axes, calibration, count, length)
    what = f"dense and {len(variants.folders) - 1} repaired variants, perplexity of {count} windows of {length}"
    yield variants.row(what, "5")


# The paper removes 7 or 11 of 32 layers. These cuts begin near layers 23 and 19.
LAYERS, LAST, DEPTHS = 32, 29, [7, 11]


def late(bench):
    import torch
    from transformers import LlamaConfig, LlamaForCausalLM

    torch.manual_seed(0)
    count, length = bench.size((24, 256), (2, 64))
    width, heads = bench.size((256, 4), (64, 2))
    own = json.loads((TINY / "llama/config.json").read_text())
    config = LlamaConfig(
        num_hidden_layers=LAYERS,
        hidden_size=width,
        intermediate_size=11 * width // 4,
        num_attention_heads=heads,
        num_key_value_heads=heads // 2,
        **{name: own[name] for name in ("vocab_size", "max_position_embeddings", "bos_token_id", "eos_token_id")},
    )
    backbone = bench.create_folder("late-backbone")
    LlamaForCausalLM(config).save_pretrained(backbone)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        shutil.copy(TINY / "llama" / file, backbone)
    axes = {
        "criterion": {"name": "explicit", "order": list(range(LAST, LAST - max(DEPTHS), -1))},
        "depth": bench.size(DEPTHS, DEPTHS[:1]),
    }
    # Calibrate on few tokens, because the cost model's estimate includes the calibration.
    variants = Variants(bench, "late", backbone, False, axes, {"sequences": 4, "length": 128}, count, length)
    cells = len(variants.folders)
    begin = " and ".join(str(LAST + 1 - depth) for depth in axes["depth"])
    what = f"dense and {cells - 1} variants of {LAYERS} random layers cut from {begin} on, {count} windows of {length}"
    yield variants.row(what)

    driver = bench.start_driver("grid", variants.file)

    def timed(how):
        return lambda: (request_round(driver, f"{how} {variants.fresh_store()}")["seconds"], None)

    seconds, _ = bench.run_rounds(timed("shared"), timed("separate"))
    driver.communicate()
    what = f"{cells} cells together against one by one"
    yield Row("late", what, "ghostlab, cell by cell", *seconds, "", "", [f"cost model: {variants.predicted():.2f}"])
