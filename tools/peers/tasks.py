"""Benchmarks on tasks: nine tasks of one backbone, and table 2."""

import contextlib
import io
import json
import statistics
import time
from pathlib import Path

import exported
from bench import LIKELIHOOD, LIKELIHOOD_BF16, REAL, ROOT, TINY, Row, difference, fastest_batch

TASKS = ("arc_easy", "arc_challenge", "hellaswag", "winogrande", "boolq", "openbookqa", "rte", "copa", "race")
HARNESS = "lm-evaluation-harness"


def task_files(real):
    """Returns the files of the nine tasks: published ones if available, otherwise those of the tiny world."""
    published = {task: list((REAL / "tasks").glob(f"{task}.*")) if real else [] for task in TASKS}
    return {task: (own or [TINY / f"tasks/{task}.jsonl.gz"])[0] for task, own in published.items()}


def read_likelihoods(results):
    """Returns the log-likelihoods in a results folder, by cell and task, of all choices in order."""
    import pyarrow.parquet as parquet

    (file,) = Path(results).rglob("documents.parquet")
    found = {}
    for row in parquet.read_table(file, columns=["cell", "task", "log_likelihood"]).to_pylist():
        place = row["cell"], row["task"].split("(")[0]
        found.setdefault(place, []).append(row["log_likelihood"])
    return found


class Harness:
    """lm-evaluation-harness with our task files."""

    def __init__(self, bench, of_tasks):
        from lm_eval.tasks import TaskManager

        here = bench.create_folder("harness")
        self.tasks = exported.local_tasks(here, of_tasks)
        self.manager = TaskManager(include_path=str(here))

    def score(self, folder, limit, batch, kind="float32"):
        """Loads and scores a folder. Returns the seconds and, by task, the log-likelihoods of all choices in order."""
        started = time.perf_counter()
        # Hide the progress bars of the harness.
        with contextlib.redirect_stderr(io.StringIO()):
            scored = exported.evaluate(self.manager, folder, self.tasks.values(), limit, batch, samples=True, kind=kind)
        seconds = time.perf_counter() - started
        found = {}
        for task, own in self.tasks.items():
            documents = sorted(scored["samples"][own], key=lambda document: document["doc_id"])
            found[task] = [float(choice[0]) for document in documents for choice in document["filtered_resps"]]
        return seconds, found


def largest_difference(cell, mine, other, tolerance=LIKELIHOOD):
    """Returns the largest difference between the log-likelihoods of a cell over all tasks."""
    return max(difference(f"{cell}, {task}: ln p of a choice", mine[task], other[task], tolerance) for task in TASKS)


def choices(bench):
    limit, of_tasks = bench.size(100, 2), task_files(bench.real)
    harness = Harness(bench, of_tasks)
    grid = {
        "name": "choices",
        "backbones": {"dense": {"path": str(bench.backbone)}},
        "tasks": {task: {"path": str(file)} for task, file in of_tasks.items()},
        "backbone": ["dense"],
        "evaluate": {"tasks": [{"name": task, "limit": limit} for task in of_tasks]},
    }
    file = bench.create_folder("choices") / "grid.yaml"
    file.write_text(json.dumps(grid))
    published = [task for task, file in of_tasks.items() if REAL in file.parents]
    kinds = bench.select_types((("f32", "float32", LIKELIHOOD), ("bf16", "bfloat16", LIKELIHOOD_BF16)))
    for kind, theirs_kind, tolerance in kinds:
        sizes = bench.size((8, 32), (8,))
        batch = fastest_batch(sizes, lambda size: harness.score(bench.backbone, min(limit, 5), size, theirs_kind))

        def ours():
            # Use a new store, so that nothing is reused from earlier rounds.
            store, results = bench.create_folder("choices/store"), bench.create_folder("choices/results")
            seconds, _ = bench.run_program("run", file, "--store", store, "--results", results, "--dtype", kind)
            return seconds, {task: of for (_, task), of in read_likelihoods(results).items()}

        seconds, (mine, other) = bench.run_rounds(ours, lambda: harness.score(bench.backbone, limit, batch, theirs_kind))
        worst = largest_difference("dense", mine, other, tolerance)
        notes = [f"the harness in batches of {batch}"]
        if published:
            notes.append(f"published documents of {', '.join(published)}; the tiny world's of the others")
        what = f"{limit * len(TASKS)} documents of nine tasks, {kind}"
        yield Row("choices", what, f"{HARNESS} in {kind}", *seconds, f"ln p {worst:.0e} ({tolerance:.0e})", "7", notes)


def table2(bench):
    limit = bench.size(300, 2)
    harness = Harness(bench, task_files(False))
    rounds = [Table2(bench, harness, name, limit) for name in bench.size(("llama", "qwen3", "olmo2"), ("llama",))]
    ours, theirs = [of.ours for of in rounds], [of.theirs for of in rounds]
    cells, scored = (sum(getattr(of, count) for of in rounds) for count in ("cells", "scored"))
    notes = ["a round is a backbone", f"in all {sum(ours):.0f} s against {sum(theirs):.0f} s, {sum(theirs) / sum(ours):.1f} times"]
    if scored < cells:
        notes.append(f"**extrapolated**: the harness scored {scored} of the {cells} cells, one for each backbone and depth")
    worst = max(of.worst for of in rounds)
    what = f"scoring table 2 (tiny), {cells} cells"
    yield Row("table2", what, HARNESS, ours, theirs, f"ln p {worst:.0e} ({LIKELIHOOD:.0e})", "15", notes)


class Table2:
    """Table 2 of one backbone, with our time and the time of the harness, which is extrapolated to the same number of cells."""

    def __init__(self, bench, harness, name, limit):
        settings = ["--set", f"backbone=tiny-{name}"]
        if bench.quick:
            tasks = ",".join(f"{{name: {task}, limit: {limit}}}" for task in TASKS)
            small = ("calibration.sequences=8", "calibration.operator_sequences=8", "recovery=none,ghosted")
            for value in (*small, "include=[]", "depth=4", f"evaluate.tasks=[{tasks}]"):
                settings += ["--set", value]
        experiment = ROOT / "experiments/table2.yaml"
        folder = bench.create_folder("table2")
        store, results = bench.create_folder("table2/store"), bench.create_folder("table2/results")
        bench.run_program("export", experiment, *settings, "--to", folder / "out", "--store", store)
        # `run` would also score the perplexities of the profile.
        self.ours, _ = bench.run_program("reproduce", "table2", *settings, "--store", store, "--results", results)
        mine = {}
        for (cell, task), of_task in read_likelihoods(results).items():
            mine.setdefault(cell, {})[task] = of_task
        by_depth = {0: [(next(cell for cell in mine if cell.endswith(".dense")), TINY / name)]}
        (record,) = results.rglob("run.json")
        depths = {of["cell"]["name"]: of["cell"]["depth"] for of in json.loads(record.read_text())["cells"]}
        for out in sorted((folder / "out").iterdir()):
            cell = json.loads((out / "ghostlab.json").read_text())["cell"]
            by_depth.setdefault(depths[cell], []).append((cell, out))
        sizes = bench.size((16, 64), (8,))
        batch = fastest_batch(sizes, lambda size: harness.score(TINY / name, min(limit, 30), size))
        self.theirs, self.worst, self.cells, self.scored = 0.0, 0.0, 0, 0
        for at, of_depth in enumerate(by_depth.values()):
            measured = []
            # Score one cell per depth, alternating between cells with and without an operator file.
            for cell, out in of_depth if bench.full else [of_depth[at % len(of_depth)]]:
                seconds, other = harness.score(out, limit, batch)
                measured.append(seconds)
                self.worst = max(self.worst, largest_difference(cell, mine[cell], other))
            self.theirs += statistics.fmean(measured) * len(of_depth)
            self.cells += len(of_depth)
            self.scored += len(measured)
