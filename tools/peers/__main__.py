"""Benchmarks ghostlab against its peers, on the same inputs, in alternating rounds. Run by `tools/bench_peers.sh`.

The benchmark stops with an error if results differ by more than their tolerance.
"""

import argparse
import os
import subprocess
import sys
import tempfile
from pathlib import Path

# Keep the libraries offline and quiet.
os.environ |= {"HF_HUB_OFFLINE": "1", "HF_DATASETS_OFFLINE": "1", "HF_HUB_DISABLE_TELEMETRY": "1"}
os.environ |= {"HF_DATASETS_DISABLE_PROGRESS_BARS": "1", "TQDM_DISABLE": "1", "TOKENIZERS_PARALLELISM": "true"}
sys.path[1:1] = [str(Path(__file__).resolve().parents[1])]

from bench import ROOT, Bench, Differs  # noqa: E402

PARTS = {
    "forward": "dense forward pass in f32 and bf16, against transformers in the same type, in bf16 also without AMX",
    "wide": "the same with two layers and the head of Llama-3.1-8B (random weights)",
    "whole": "perplexity of SmolLM2-135M including loading, against transformers; SMOLLM is its GGUF file",
    "generate": "greedy generation, against transformers",
    "llamacpp": "dense forward pass and greedy generation in f32, bf16 and q8_0, against llama.cpp in LLAMA_CPP",
    "ik": "the same against ik_llama.cpp in IK_LLAMA_CPP; also needs LLAMA_CPP",
    "choices": "900 documents of nine tasks with the dense backbone, against lm-evaluation-harness",
    "grid": "dense backbone and ten repaired variants on 200 windows, against transformers one by one",
    "solve": "least-squares map of 4,096 channels, against torch",
    "table2": "scores of table 2 of the tiny backbones, against lm-evaluation-harness cell by cell",
    "late": "grid with cuts from layer 19 or 23 of 32 on, cells together against one by one, with the cost model",
}


def arguments():
    parts = "\n".join(f"  {name:<9} {what}" for name, what in PARTS.items())
    parser = argparse.ArgumentParser(
        prog="bench_peers.sh",
        description=__doc__,
        epilog=f"parts, all by default:\n{parts}",
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("parts", nargs="*", metavar="PART")
    parser.add_argument("--quick", action="store_true", help="use small sizes and one round, as a smoke test")
    parser.add_argument("--full", action="store_true", help="score all cells of table 2 with the harness, not one per depth")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument(
        "--types", type=lambda given: given.split(","), metavar="TYPE,…",
        help="float types (default: all); on processors without bf16 instructions, peers take minutes per round in bf16",
    )
    parser.add_argument("--threads", type=int, default=len(os.sched_getaffinity(0)), help="threads per side")
    parser.add_argument("--save", action="store_true", help="append the rows to benches/results and update docs/performance.md")
    parser.add_argument("--ghostlab", default=ROOT / "target/release/ghostlab", help="path of the program")
    parser.add_argument("--driver", default=ROOT / "target/release/examples/peers", help="path of the example peers")
    given = parser.parse_args()
    for part in given.parts:
        if part not in PARTS:
            parser.error(f"unknown part `{part}`: expected {', '.join(PARTS)}")
    if given.quick and given.save:
        parser.error("--quick and --save exclude each other: times of quick runs are meaningless")
    for program in (given.ghostlab, given.driver):
        if not Path(program).is_file():
            parser.error(f"{program} is not built: cargo build --release --bin ghostlab --example peers")
    return given


def main():
    given = arguments()
    with tempfile.TemporaryDirectory() as folder:
        os.environ |= {"HF_HOME": f"{folder}/hf", "HF_MODULES_CACHE": f"{folder}/hf/modules"}
        # Set these before importing the libraries, which read them on import.
        os.environ["OMP_NUM_THREADS"] = os.environ["RAYON_NUM_THREADS"] = str(given.threads)
        import logging

        import llamacpp
        import report
        import solve
        import tasks
        import text
        import torch

        torch.set_num_threads(given.threads)
        logging.disable(logging.WARNING)
        bench, clock, rows = Bench(given, folder), report.Clock(), []
        program = subprocess.run([bench.ghostlab, "--version"], capture_output=True, text=True).stdout.strip()
        try:
            for part in given.parts or PARTS:
                module = next(module for module in (text, llamacpp, tasks, solve) if hasattr(module, part))
                for row in getattr(module, part)(bench):
                    rows.append(row)
                    print(f"{part}: {row.what}: {report.summarize(bench, row)}", flush=True)
        finally:
            # Print the measurements even after an error.
            measured = f"{report.describe_conditions(bench, clock, program)}\n\n{report.format_table(bench, rows)}"
            print(f"\n{measured}")
    if given.save:
        report.save(bench, clock, program, rows)


if __name__ == "__main__":
    try:
        main()
    except Differs as differs:
        raise SystemExit(f"results differ: {differs}") from None
