"""Shared parts of the benchmark: sizes, alternating rounds, tolerances, and a folder for temporary files."""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "data/tiny"
# A trained backbone and published data, if they exist next to the checkout.
REAL = ROOT.parent / "shared/real"
# Tolerances in nats with f32 on both sides, for losses of windows and for log-likelihoods of answers.
LOSS, LIKELIHOOD = 1e-4, 1e-3
# Tolerances with bf16. Peers compute everything in bf16, and ghostlab only matrix products.
LOSS_BF16, LIKELIHOOD_BF16 = 5e-2, 2.0


class Differs(Exception):
    """Raised if the two sides give different results for the same input."""


def difference(what, ours, theirs, tolerance):
    """Returns the largest difference of two lists. Raises `Differs` if it exceeds the tolerance."""
    if len(ours) != len(theirs) or not ours:
        raise Differs(f"{what}: {len(ours)} numbers of ours, {len(theirs)} of theirs")
    for at, (a, b) in enumerate(zip(ours, theirs)):
        # The negated comparison also catches NaN.
        if not abs(a - b) <= tolerance:
            raise Differs(f"{what}, number {at}: ours {a!r}, theirs {b!r}: more than {tolerance:g} apart")
    return max(abs(a - b) for a, b in zip(ours, theirs))


@dataclass
class Row:
    """Table row with the seconds of each round and the largest difference of the results."""

    part: str
    what: str
    peer: str
    ours: list
    theirs: list
    apart: str
    aim: str = ""
    notes: list = field(default_factory=list)
    # Number of tokens per round, if a rate is more informative than seconds.
    tokens: int = 0

    def ratios(self):
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs)]


class Bench:
    """Settings of the benchmark: paths of the programs, sizes, and a folder for temporary files."""

    def __init__(self, arguments, folder):
        self.quick, self.full, self.folder = arguments.quick, arguments.full, Path(folder)
        self.rounds = 1 if self.quick else arguments.rounds
        self.threads, self.types = arguments.threads, arguments.types
        # Without AMX in the processor, there is nothing to disable.
        self.without_amx = ["ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"] if has_amx() else []
        self.ghostlab, self.driver = Path(arguments.ghostlab).resolve(), Path(arguments.driver).resolve()
        self.tiny = self.ghostlab.with_name("ghostlab-tiny")
        self.real = REAL.exists() and not self.quick
        self.backbone = REAL / "backbone" if self.real else TINY / "llama"

    def size(self, whole, quick):
        return quick if self.quick else whole

    def select_types(self, rows):
        """Selects the rows with a requested float type. Each row is a type, or starts with one."""
        return [row for row in rows if self.types is None or (row if isinstance(row, str) else row[0]) in self.types]

    def create_folder(self, name):
        """Creates an empty folder."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def run_program(self, *arguments):
        """Runs the program. Returns its wall time in seconds, and its output."""
        command = [self.ghostlab, *map(str, arguments), "--threads", str(self.threads)]
        environment = {name: value for name, value in os.environ.items() if name != "GHOSTLAB_STORE"}
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - started
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        return seconds, done.stdout

    def start_driver(self, *arguments):
        """Starts the driver, which then waits for its rounds."""
        command = [self.driver, *map(str, arguments), str(self.threads)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def run_rounds(self, *sides):
        """Runs all sides in each round. Each side returns its seconds and its result. Returns all seconds, and the last results."""
        seconds, results = [[] for _ in sides], [None for _ in sides]
        for _ in range(self.rounds):
            for side, run in enumerate(sides):
                taken, results[side] = run()
                seconds[side].append(taken)
        return seconds, results


def has_amx():
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text().split()


def request_round(driver, line=""):
    """Sends a line to the driver, and returns its answer."""
    driver.stdin.write(line + "\n")
    driver.stdin.flush()
    said = driver.stdout.readline()
    if not said:
        raise RuntimeError(f"the driver ended with exit code {driver.wait()}: {' '.join(map(str, driver.args))}")
    return json.loads(said)


def fastest_batch(sizes, run):
    """Returns the fastest batch size of the peer. Each size is tried once, after a warm-up."""
    if len(sizes) == 1:
        return sizes[0]
    run(sizes[0])
    seconds = {}
    for size in sizes:
        started = time.perf_counter()
        run(size)
        seconds[size] = time.perf_counter() - started
    return min(seconds, key=seconds.get)
