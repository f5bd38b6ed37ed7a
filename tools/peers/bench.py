"""What every part of the bench uses: sizes, rounds by turns, what may differ, and a folder for everything that is made."""

import json
import os
import shutil
import subprocess
import time
from dataclasses import dataclass, field
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
TINY = ROOT / "data/tiny"
# A backbone that somebody trained and published data, where they lie beside the checkout.
REAL = ROOT.parent / "shared/real"
# f32 on both sides: losses of windows to a ten-thousandth, log-likelihoods of a whole answer to a thousandth of a nat.
LOSS, LIKELIHOOD = 1e-4, 1e-3
# In bf16, where they have everything in it, and ours only what is multiplied: what eight bits of a mantissa leave.
LOSS_BF16, LIKELIHOOD_BF16 = 5e-2, 2.0


class Differs(Exception):
    """Both sides were given the same and say different things."""


def difference(what, ours, theirs, tolerance):
    """The greatest difference of two lists, which may not be above the tolerance."""
    if len(ours) != len(theirs) or not ours:
        raise Differs(f"{what}: {len(ours)} numbers of ours, {len(theirs)} of theirs")
    for at, (a, b) in enumerate(zip(ours, theirs)):
        # Also where one of them is no number.
        if not abs(a - b) <= tolerance:
            raise Differs(f"{what}, number {at}: ours {a!r}, theirs {b!r}: more than {tolerance:g} apart")
    return max(abs(a - b) for a, b in zip(ours, theirs))


@dataclass
class Row:
    """A line of the table: seconds of each round, and how far results were apart."""

    part: str
    what: str
    peer: str
    ours: list
    theirs: list
    apart: str
    aim: str = ""
    notes: list = field(default_factory=list)
    # Tokens of a round, where a rate says more than seconds.
    tokens: int = 0

    def ratios(self):
        return [theirs / ours for ours, theirs in zip(self.ours, self.theirs)]


class Bench:
    """Where the program is, how much is run, and a folder for everything that is made."""

    def __init__(self, arguments, folder):
        self.quick, self.full, self.folder = arguments.quick, arguments.full, Path(folder)
        self.rounds = 1 if self.quick else arguments.rounds
        self.threads, self.types = arguments.threads, arguments.types
        # Without AMX torch is what it is anyway.
        self.without_amx = ["ONEDNN_MAX_CPU_ISA=AVX512_CORE_BF16"] if has_amx() else []
        self.ghostlab, self.driver = Path(arguments.ghostlab).resolve(), Path(arguments.driver).resolve()
        self.tiny = self.ghostlab.with_name("ghostlab-tiny")
        self.real = REAL.exists() and not self.quick
        self.backbone = REAL / "backbone" if self.real else TINY / "llama"

    def size(self, whole, quick):
        return quick if self.quick else whole

    def of_types(self, rows):
        """Those of a float type that is asked for: each is one, or begins with one."""
        return [row for row in rows if self.types is None or (row if isinstance(row, str) else row[0]) in self.types]

    def new(self, name):
        """An empty folder."""
        folder = self.folder / name
        shutil.rmtree(folder, ignore_errors=True)
        folder.mkdir(parents=True)
        return folder

    def program(self, *arguments):
        """Runs the program; the seconds from its start to its end, and what it printed."""
        command = [self.ghostlab, *map(str, arguments), "--threads", str(self.threads)]
        environment = {name: value for name, value in os.environ.items() if name != "GHOSTLAB_STORE"}
        started = time.perf_counter()
        done = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True)
        seconds = time.perf_counter() - started
        if done.returncode:
            raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        return seconds, done.stdout

    def started(self, *arguments):
        """The driver, waiting for its rounds."""
        command = [self.driver, *map(str, arguments), str(self.threads)]
        return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True)

    def by_turns(self, *sides):
        """Runs each side once a round; each gives its seconds and what came of it. All seconds, and the last results."""
        seconds, results = [[] for _ in sides], [None for _ in sides]
        for _ in range(self.rounds):
            for side, run in enumerate(sides):
                taken, results[side] = run()
                seconds[side].append(taken)
        return seconds, results


def has_amx():
    cpuinfo = Path("/proc/cpuinfo")
    return cpuinfo.exists() and "amx_bf16" in cpuinfo.read_text().split()


def answer(driver, line=""):
    """What the driver says to a line."""
    driver.stdin.write(line + "\n")
    driver.stdin.flush()
    said = driver.stdout.readline()
    if not said:
        raise RuntimeError(f"the driver ended with exit code {driver.wait()}: {' '.join(map(str, driver.args))}")
    return json.loads(said)


def fastest(sizes, run):
    """The batch size with which the other side is fastest; each is tried once, after one for warming up."""
    if len(sizes) == 1:
        return sizes[0]
    run(sizes[0])
    seconds = {}
    for size in sizes:
        started = time.perf_counter()
        run(size)
        seconds[size] = time.perf_counter() - started
    return min(seconds, key=seconds.get)
