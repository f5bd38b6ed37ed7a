"""Compares a device with this machine's CPU. Run by `tools/gpu_bench.sh`.

Results must agree within the tolerances that `ghostlab compare` uses for float types. The exit code is 1 if a part fails.
"""

import argparse
import csv
import gc
import gzip
import json
import os
import platform
import subprocess
import sys
import tempfile
import time
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
TINY, REAL = ROOT / "data/tiny", ROOT.parent / "shared/real"
TASKS = ["arc_easy", "arc_challenge", "hellaswag", "winogrande", "boolq", "openbookqa", "rte", "copa", "race"]
RECOVERIES = ["none", "prune-and-comp", "replaceme-ls", "replaceme-cos", "linearpatch-diag", "linearpatch-rotate", "ghosted"]
# The most important type comes first, because the time limit may stop the later ones.
TYPES = ["bf16", "f32", "f16"]


class Failed(Exception):
    """Raised if a command fails."""


class Bench:
    def __init__(self, given, folder):
        self.given, self.folder, self.began = given, Path(folder), time.monotonic()
        self.until = self.began + given.limit
        self.program = Path(os.environ["GHOSTLAB"]).resolve()
        self.backbone = REAL / "backbone" if REAL.exists() and not given.quick else TINY / "llama"

    def is_tiny(self):
        return self.backbone == TINY / "llama"

    def left(self):
        return self.given.limit - (time.monotonic() - self.began)

    def begin(self, last):
        """Sets the deadline of a part to half of the remaining time, so that a hanging part leaves time for the others."""
        self.until = time.monotonic() + self.left() * (1 if last else 0.5)

    def size(self, whole, quick):
        return quick if self.given.quick else whole

    def device(self, dtype):
        return ["--engine", "candle", "--device", self.given.device, "--dtype", dtype]

    def sides(self):
        """Returns the options of the CPU and of the device in each float type, by name."""
        return {"own kernels, f32": self.CPU} | {self.name(dtype): self.device(dtype) for dtype in TYPES}

    def name(self, dtype):
        return f"candle on {self.given.device}, {dtype}"

    CPU = ["--engine", "cpu", "--device", "cpu", "--dtype", "f32"]

    def run(self, *words):
        """Runs the program. Returns the seconds, stdout and stderr."""
        command = [str(self.program), *map(str, words)]
        started = time.monotonic()
        # A timeout ends this part, but not the whole benchmark.
        done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=max(1, self.until - time.monotonic()))
        seconds = time.monotonic() - started
        if done.returncode:
            raise Failed(f"{' '.join(command)}\nexit code {done.returncode}\n{(done.stdout + done.stderr)[-2000:]}")
        return seconds, done.stdout, done.stderr

    def store_options(self, name):
        """Returns the options for a new store with this name."""
        return ["--store", self.folder / name / "store"]

    def grid(self, name, content, engine, *words):
        """Runs a grid with an empty store. Returns the seconds, the results folder and stderr."""
        file = self.folder / f"{name}.yaml"
        file.write_text(json.dumps(content))  # JSON is YAML
        results = self.folder / name / "results"
        seconds, _, said = self.run("run", file, *engine, *words, *self.store_options(name), "--results", results)
        (table,) = results.rglob("results.csv")
        return seconds, table.parent, said

    def compare(self, first, second):
        return json.loads(self.run("compare", first, second, "--json")[1])["answer"]


def tiny_grid(bench):
    """Returns a grid with all repairs of table 2 at one depth, on nine tasks and two texts."""
    names = ["llama", "qwen3", "olmo2"][: bench.size(3, 1)]
    text = {"wiki": ("wiki-test", "wikitext2"), "web": ("web-validation", "c4"), "train": ("web-train", "c4")}
    corpora = {of: {"path": str(TINY / f"corpora/{file}.jsonl.gz"), "rule": rule} for of, (file, rule) in text.items()}
    return {
        "backbones": {of: {"path": str(TINY / of)} for of in names},
        "corpora": corpora | {of: corpora[of] | {"limit": bench.size(32, 1)} for of in ("wiki", "web")},
        "tasks": {task: {"path": str(TINY / f"tasks/{task}.jsonl.gz")} for task in TASKS},
        "backbone": names,
        "criterion": "llm-streamline",
        "depth": 4,
        "recovery": RECOVERIES,
        "calibration": {"corpus": "train", "sequences": bench.size(128, 4), "length": 256, "operator_sequences": bench.size(32, 2)},
        "evaluate": {
            "perplexity": [{"corpus": of, "length": 256} for of in ("wiki", "web")],
            "tasks": [{"name": task, "limit": bench.size(300, 2)} for task in TASKS],
        },
    }


def parity(bench, found):
    """Compares a grid on both sides: perplexities, answers, boundary errors, and the total time."""
    content = tiny_grid(bench)
    cpu_seconds, expected, _ = bench.grid("parity-cpu", content, bench.CPU)
    found["own kernels, f32"], wrong = {"seconds": cpu_seconds}, []
    for dtype in TYPES:
        seconds, results, said = bench.grid(f"parity-{dtype}", content, bench.device(dtype))
        compared = bench.compare(expected, results)
        furthest, beyond, judged = {}, [], 0
        for value in compared["values"]:
            first, second = value["first"]["value"], value["second"]["value"]
            judged += value["beyond"] is not None
            if value["beyond"]:
                beyond.append(f"{value['cell']} {value['first']['metric']}: {first} and {second}")
            # A missing value counts as an infinite difference.
            apart = abs(second - first) / max(abs(first), 1e-30) if None not in (first, second) else float("inf")
            kind = value["first"]["metric"].split(" ")[0].split("(")[0].split("@")[0]
            furthest[kind] = max(furthest.get(kind, 0.0), apart)
        only = [compared[of] for of in ("only_first", "only_second")]
        of = {"seconds": seconds, "compared": compared["compared"], "judged": judged, "beyond": beyond, "furthest": furthest}
        found[bench.name(dtype)] = of | {"only": sum(map(len, only)), "notes": memory_notes(said)}
        # In half precision, rounding may make a criterion select another cut.
        if beyond or not judged or (dtype == "f32" and any(only)):
            wrong.append(f"{dtype}: {len(beyond)} of {judged} values exceed the tolerance, {sum(map(len, only))} are unpaired")
    return wrong


def memory_notes(said):
    """Returns the lines about memory limits and overflow."""
    return [line for line in said.splitlines() if "out of device memory" in line or "loaded on demand" in line or "overflow" in line]


def text(bench):
    """Returns the text to score: WikiText-2 for the trained backbone, or the bundled text, repeated to fill the windows."""
    if not bench.is_tiny():
        return REAL / "corpora/wikitext2-test.parquet"
    file = bench.folder / "text.jsonl"
    if not file.exists():
        with gzip.open(TINY / "corpora/wiki-test.jsonl.gz", "rt") as once:
            file.write_text(once.read() * bench.size(13, 1))
    return file


def score(bench, model, count, length, engine, name):
    words = ["score", model, "--perplexity", text(bench), "--length", length, "--windows", count, "--json", *engine]
    seconds, answer, said = bench.run(*words, *bench.store_options(name))
    return seconds, json.loads(answer)["answer"]["scores"][0]["value"], said


def rate(bench, model, count, length, engine, name):
    """Returns the tokens per second of scoring a text, and the perplexity."""
    corpora = {"text": {"path": str(text(bench)), "rule": "wikitext2", "limit": count}}
    evaluate = {"perplexity": [{"corpus": "text", "length": length}]}
    found, events = run_and_measure_rate(bench, {"corpora": corpora, "evaluate": evaluate}, model, engine, name)
    (perplexity,) = [event["value"] for event in events if event["event"] == "scored"]
    return found | {"perplexity": perplexity}


def run_and_measure_rate(bench, content, model, engine, name):
    """Runs a grid of one dense backbone. Returns its tokens per second and its events. The rate excludes the first batch, because
    its time includes startup and loading."""
    content |= {"backbones": {"m": {"path": str(model)}}, "backbone": "m"}
    file = bench.folder / f"rate-{name}.yaml"
    file.write_text(json.dumps(content))
    stored = bench.store_options(f"rate-{name}")
    words = ["run", file, "--events", *engine, *stored, "--results", bench.folder / f"rate-{name}/results"]
    seconds, said, _ = bench.run(*words)
    events = [json.loads(line) for line in said.splitlines() if line.startswith("{")]
    at = lambda event: datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()
    done = [(at(event), event.get("ran", event["tokens"])) for event in events if event["event"] == "advanced"]
    # Events with nearly equal times belong to one batch.
    behind = [(time, tokens) for time, tokens in done if time > done[0][0] + 1e-3]
    found = {"tokens": sum(tokens for _, tokens in done), "whole_seconds": seconds}
    if behind:
        return {"tokens_per_second": sum(tokens for _, tokens in behind) / (behind[-1][0] - done[0][0])} | found, events
    begun = next(at(event) for event in events if event["event"] == "started")
    return {"tokens_per_second_with_loading": found["tokens"] / (done[-1][0] - begun)} | found, events


def forward(bench, found):
    """Measures tokens per second of the dense backbone, and of wide layers with random weights."""
    wrong, length = [], bench.size(512, 128)
    for name, model in [("trained", bench.backbone), ("wide", wide(bench))]:
        if model is None:
            found[name] = "skipped: ghostlab-tiny is not in the folder of the program; build it, or set --wide"
            continue
        of, count = found.setdefault(name, {}), bench.size(1100 if name == "trained" else 550, 4)
        if name == "trained":
            of["own kernels, f32"] = exact = rate(bench, model, count, length, bench.CPU, f"{name}-cpu")
        for dtype in TYPES:
            # Products in f32 are ten times slower.
            some = count // 5 + 1 if (name, dtype) == ("wide", "f32") else count
            ours = of[bench.name(dtype)] = rate(bench, model, some, length, bench.device(dtype), f"{name}-{dtype}")
            of[f"transformers on {bench.given.device}, {dtype}"] = transformers(bench, model, length, dtype)
            most = 1e-3 if dtype == "f32" else 5e-3
            if name == "trained" and not abs(ours["perplexity"] / exact["perplexity"] - 1) <= most:
                wrong.append(f"perplexity in {dtype}: {ours['perplexity']}, on the CPU {exact['perplexity']}")
    return wrong


def wide(bench):
    """Returns a folder with four random layers of 4,096 channels, or None if it cannot be generated."""
    if bench.given.quick:
        return bench.given.wide
    folder, maker = bench.folder / "wide", bench.program.with_name("ghostlab-tiny")
    if bench.given.wide or folder.exists() or not maker.exists():
        return bench.given.wide or (folder if folder.exists() else None)
    subprocess.run([maker, "random", "--like", "llama-3.1-8b", "--layers", "4", folder], check=True, capture_output=True)
    return folder


def transformers(bench, model, length, dtype):
    """Measures the tokens per second of transformers on the same device, for logits and cross entropy of random tokens."""

    def scored(torch, loaded, ids):
        logits = loaded(ids, use_cache=False).logits[:, :-1]
        torch.nn.functional.cross_entropy(logits.flatten(0, 1).float(), ids[:, 1:].flatten()).item()

    return measure_fastest(bench, model, dtype, (length, 0), bench.size((4, 16, 64), (2,)), scored)


def measure_fastest(bench, model, dtype, lengths, batches, run, rounds=None):
    """Returns the tokens per second of transformers at the best batch size. `lengths` are the input and output tokens per row."""
    try:
        import torch

        loaded = load_with_transformers(bench, model, dtype)
    except ImportError as error:
        return f"skipped: {error}"
    best = {"tokens_per_second": 0.0, "torch": torch.__version__}
    for batch in batches:
        ids = torch.randint(3, 200, (batch, lengths[0]), device=bench.given.device)
        try:
            seconds = mean_seconds(bench, lambda: run(torch, loaded, ids), rounds)
        except torch.OutOfMemoryError:
            torch.cuda.empty_cache()
            continue
        if batch * sum(lengths) / seconds > best["tokens_per_second"]:
            best |= {"tokens_per_second": batch * sum(lengths) / seconds, "batch": batch}
    # Free torch's cached memory for the program.
    del loaded
    gc.collect()
    if bench.given.device.startswith("cuda"):
        torch.cuda.empty_cache()
    return best


def generation(bench, found):
    """Measures greedy generation for many prompts together, in tokens per second, including prompt tokens."""
    # Use several times as many prompts as fit on a device at once.
    count, words, new = bench.size(6144, 8), 64, bench.size(64, 8)
    with gzip.open(TINY / "corpora/wiki-test.jsonl.gz", "rt") as file:
        texts = " ".join(json.loads(line)["text"] for line in file).split()
    # Start each prompt with a different number, because common prefixes would be computed only once.
    rows = [{"text": f"{at} " + " ".join(texts[at % 64 * words :][:words])} for at in range(count)]
    (bench.folder / "prompts.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    definition = bench.folder / "prompts.yaml"
    asked = {"until": ["\u00a7\u00a7\u00a7"], "do_sample": False, "max_gen_toks": new}
    definition.write_text(json.dumps({
        "task": "prompts", "dataset_path": "json", "dataset_kwargs": {"data_files": {"test": "prompts.jsonl"}},
        "output_type": "generate_until", "test_split": "test", "doc_to_text": "{{text}}", "doc_to_target": "{{text}}",
        "generation_kwargs": asked, "metric_list": [{"metric": "exact_match", "aggregation": "mean", "higher_is_better": True}],
    }))

    def content(limit):
        return {"evaluate": {"tasks": [{"definition": str(definition), "generated": True, "limit": limit}]}}

    for name, model in [("trained", bench.backbone), ("wide", wide(bench))]:
        if model is None:
            continue
        of = found.setdefault(name, {})
        for dtype in ["bf16", "f32"]:
            # Products in f32 are ten times slower.
            some = count // 3 if (name, dtype) == ("wide", "f32") else count
            label = f"generation-{name}-{dtype}"
            of[bench.name(dtype)], _ = run_and_measure_rate(bench, content(some), model, bench.device(dtype), label)
            of[f"transformers on {bench.given.device}, {dtype}"] = generate_with_transformers(bench, model, words, new, dtype)
        if name == "trained":
            # Run this last, so that a time limit drops this measurement first.
            of["own kernels, f32"], _ = run_and_measure_rate(bench, content(min(count, 512)), model, bench.CPU, "generation-cpu")
    return []


def generate_with_transformers(bench, model, length, new, dtype):
    """Measures transformers on the same device, with prompts of random tokens."""

    def generated(torch, loaded, ids):
        fixed = {"do_sample": False, "min_new_tokens": new, "max_new_tokens": new, "pad_token_id": 0}
        loaded.generate(ids, attention_mask=torch.ones_like(ids), **fixed)

    return measure_fastest(bench, model, dtype, (length, new), bench.size((64, 256, 1024), (2,)), generated, 1)


def load_with_transformers(bench, model, dtype):
    import torch
    from transformers import AutoModelForCausalLM, utils

    utils.logging.disable_progress_bar()
    types = {"f32": torch.float32, "f16": torch.float16, "bf16": torch.bfloat16}
    return AutoModelForCausalLM.from_pretrained(model, dtype=types[dtype]).to(bench.given.device).eval()


def mean_seconds(bench, once, rounds=None):
    """Returns the mean time of several rounds in seconds."""
    import torch

    wait = torch.cuda.synchronize if bench.given.device.startswith("cuda") else lambda: None
    rounds = rounds or bench.size(5, 1)
    with torch.inference_mode():
        once()
        wait()
        started = time.monotonic()
        for _ in range(rounds):
            once()
        wait()
    return (time.monotonic() - started) / rounds


def tasks(bench, found):
    """Scores the dense backbone on nine tasks, with an empty store."""
    files = [TINY / f"tasks/{task}.jsonl.gz" for task in TASKS]
    for place, (name, engine) in enumerate(bench.sides().items()):
        words = ["score", TINY / "llama", "--tasks", *files, "--documents", bench.size(300, 2), "--json", *engine]
        seconds, answer, _ = bench.run(*words, *bench.store_options(f"tasks-{place}"))
        scores = json.loads(answer)["answer"]["scores"]
        found[name] = {"seconds": seconds, "percent": {f"{of['of']} {of['metric']}": of["value"] for of in scores}}
    return []


def latency(bench, found):
    """Measures prefill times and decoding rates of the dense, pruned and repaired model, using a grid."""
    length, batches = bench.size(512, 64), [1, bench.size(16, 2)]
    for name, model in [("trained", bench.backbone), ("wide", wide(bench))]:
        if model is None:
            continue
        of, depth = found.setdefault(name, {}), 4 if name == "trained" else 1
        content = tiny_grid(bench)
        content |= {"backbones": {"m": {"path": str(model)}}, "backbone": ["m"], "depth": depth, "recovery": ["none", "ghosted"]}
        content["calibration"] = content["calibration"] | bench.size({"sequences": 32}, {})
        content["evaluate"] = {"latency": {"length": length, "batch": batches, "decode": bench.size(64, 4)}}
        # Skip wide layers on the CPU, which would take minutes. Run the device first, in case the time limit is reached.
        own = {"own kernels, f32": bench.CPU} if name == "trained" else {}
        sides = {bench.name("bf16"): bench.device("bf16")} | own
        for place, (side, engine) in enumerate(sides.items()):
            if engine == bench.CPU:
                content["evaluate"]["latency"]["batch"] = batches[:1]
            _, results, _ = bench.grid(f"latency-{name}-{place}", content, engine)
            with open(results / "results.csv") as file:
                rows = list(csv.DictReader(file))
            times = [key for key in rows[0] if key.startswith(("prefill_ms", "speedup", "decode_tps", "decode_speedup"))]
            of[side] = {row["recovery"] or "dense": {key: row[key] for key in times} for row in rows}
            of[side]["machine"] = read_machine(results)
    return []


def read_machine(results):
    """Returns the machine recorded in `run.json`."""
    told = json.loads((results / "run.json").read_text())
    return told.get("machine")


def memory(bench, found):
    """Compares the perplexity computed with too little memory for all weights with that computed with enough memory."""
    length, count = bench.size(512, 128), bench.size(50, 4)
    weights = sum(file.stat().st_size for file in Path(bench.backbone).glob("*.safetensors")) / 1e9
    _, expected, _ = score(bench, bench.backbone, count, length, bench.device("f32"), "memory-all")
    # On a GPU, the limit also covers activations, which leave no memory for weights here.
    little = ["--memory", "0.012"] if bench.given.device == "cpu" else ["--device-memory", f"{weights / 4:.4f}"]
    bounded = bench.device("f32") + little
    seconds, ours, said = score(bench, bench.backbone, count, length, bounded, "memory-little")
    wrong = [] if abs(ours / expected - 1) <= 1e-5 else [f"perplexity {ours} with little memory, {expected} with enough"]
    if not memory_notes(said):
        wrong.append("no layers were loaded on demand, because all of them fit into the memory")
    found |= {"perplexity": {"all": expected, "little": ours}, "seconds": seconds, "notes": memory_notes(said)}
    return wrong


PARTS = {"parity": parity, "memory": memory, "tasks": tasks, "forward": forward, "generation": generation, "latency": latency}


def machine(bench):
    def run_and_capture(*command):
        try:
            return subprocess.run(command, capture_output=True, text=True, timeout=60).stdout.strip()
        except (OSError, subprocess.TimeoutExpired):
            return None

    lines = Path("/proc/cpuinfo").read_text().splitlines() if Path("/proc/cpuinfo").exists() else []
    return {
        "date": time.strftime("%Y-%m-%d"),
        "cpu": next((line.split(":")[1].strip() for line in lines if line.startswith("model name")), platform.machine()),
        "cores": len(os.sched_getaffinity(0)),
        "gpu": run_and_capture("nvidia-smi", "--query-gpu=name,driver_version,memory.total", "--format=csv,noheader"),
        "program": run_and_capture(str(bench.program), "--version"),
        "doctor": (run_and_capture(str(bench.program), "doctor") or "").splitlines(),
        "device": bench.given.device,
        "backbone": "tiny-llama" if bench.is_tiny() else "trained on English",
    }


def arguments():
    whats = "\n".join(f"  {name:<8} {part.__doc__}" for name, part in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="gpu_bench.sh", description=__doc__, epilog=f"parts, all by default:\n{whats}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--device", default="cuda", help="device to compare with the CPU: cuda, cuda:1, or cpu (candle's)")
    parser.add_argument("--quick", action="store_true", help="use small sizes, as a smoke test")
    parser.add_argument("--limit", type=float, default=470, metavar="SECONDS", help="time limit of all parts together")
    parser.add_argument("--wide", metavar="FOLDER", help="backbone of realistic width (default: four random layers)")
    parser.add_argument("--to", default="gpu.json", metavar="FILE", help="output file")
    given = parser.parse_args()
    unknown = [part for part in given.parts if part not in PARTS]
    if unknown:
        parser.error(f"unknown part `{unknown[0]}`: expected {', '.join(PARTS)}")
    return given


def main():
    given, bad = arguments(), 0
    with tempfile.TemporaryDirectory() as folder:
        bench = Bench(given, folder)
        report = {"machine": machine(bench), "parts": {}}
        names = given.parts or list(PARTS)
        for name in names:
            started, found = time.monotonic(), {}
            bench.begin(name == names[-1])
            if bench.left() <= 0:
                wrong = ["skipped: the time limit was reached"]
            else:
                try:
                    wrong = PARTS[name](bench, found)
                except (Failed, OSError, ValueError, KeyError, RuntimeError, subprocess.SubprocessError) as error:
                    wrong = [f"{type(error).__name__}: {error}"]
            seconds = time.monotonic() - started
            report["parts"][name] = {"seconds": seconds, "failed": wrong, "found": found}
            bad += bool(wrong)
            print(f"{name}: {'failed' if wrong else 'ok'}, {seconds:.0f} s", *wrong, sep="\n  ", flush=True)
            # Save the report after each part, because the next part may crash the machine.
            Path(given.to).write_text(json.dumps(report, indent=1) + "\n")
    print(f"wrote {given.to}")
    return 1 if bad else 0


if __name__ == "__main__":
    sys.exit(main())
