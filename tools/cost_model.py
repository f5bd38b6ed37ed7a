"""Compares the cost model with the measured time of each job of a run.

    python3 tools/cost_model.py                      # `reproduce all` from an empty store
    python3 tools/cost_model.py table4 figure1       # some artifacts
    python3 tools/cost_model.py --events FILE        # a run with recorded events

The predicted time of a job is the number of its floating-point operations divided by the average rate of this kind of job in
the run, as in the progress display. Jobs shorter than --least seconds are included in the sums but not compared.
"""

import argparse
import json
import subprocess
import tempfile
from collections import defaultdict
from datetime import datetime
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
ALLOWED = 0.25


def read_events(given):
    if given.events:
        yield from open(given.events)
        return
    with tempfile.TemporaryDirectory() as folder:
        places = [f"--{name}={folder}/{name}" for name in ("store", "results", "reports")]
        command = [given.ghostlab, "reproduce", *(given.artifacts or ["all"]), "--events", *places]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as run:
            yield from run.stdout
        if run.returncode:
            raise SystemExit(f"{' '.join(map(str, command))} failed with exit code {run.returncode}")


def iterate_jobs(lines):
    """Iterates over the label, kind of work, operations and seconds of each job."""
    kinds, begun = {}, {}
    for event in map(json.loads, lines):
        match event["event"]:
            case "planned":
                begun = {}
                kinds |= {work["work"]: work["kind"] for work in event["work"]}
            case "started":
                begun[event["job"]] = (event, timestamp(event))
            case "finished":
                job, since = begun.pop(event["job"])
                yield job["label"], kinds.get(job["work"], "?"), job["flops"], timestamp(event) - since


def timestamp(event):
    return datetime.fromisoformat(event["time"].replace("Z", "+00:00")).timestamp()


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("artifacts", nargs="*", metavar="ARTIFACT")
    parser.add_argument("--events", metavar="FILE", help="read recorded events instead of running")
    parser.add_argument("--least", type=float, default=1.0, metavar="SECONDS", help="do not compare jobs shorter than this")
    parser.add_argument("--ghostlab", default=ROOT / "target/release/ghostlab", help="path of the program")
    given = parser.parse_args()
    by_kind = defaultdict(list)
    for label, kind, flops, seconds in iterate_jobs(read_events(given)):
        by_kind[kind].append((label, flops, seconds))
    print("| kind | jobs | TFLOP | seconds | GFLOP/s | compared | within 25 % | share of their time |")
    print("| --- | ---: | ---: | ---: | ---: | ---: | ---: | ---: |")
    beyond = []
    for kind, all_jobs in by_kind.items():
        flops, seconds = sum(job[1] for job in all_jobs), sum(job[2] for job in all_jobs)
        judged = [job for job in all_jobs if job[2] >= given.least]
        off = {job: job[1] / flops * seconds / job[2] - 1 for job in judged}
        within = [job for job in judged if abs(off[job]) <= ALLOWED]
        beyond += [(job, off[job]) for job in judged if job not in within]
        share = sum(job[2] for job in within) / max(sum(job[2] for job in judged), 1e-9)
        print(
            f"| {kind} | {len(all_jobs)} | {flops / 1e12:,.2f} | {seconds:,.1f} | {flops / seconds / 1e9:,.1f}"
            f" | {len(judged)} | {len(within)} | {share:.0%} |"
        )
    for (label, flops, seconds), off in sorted(beyond, key=lambda job: -job[0][2]):
        print(f"off by more than {ALLOWED:.0%}: {label}: {flops / 1e9:,.1f} GFLOP in {seconds:.2f} s, predicted {off:+.0%}")


if __name__ == "__main__":
    main()
