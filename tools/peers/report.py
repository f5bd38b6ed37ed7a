"""The table of a bench, and what it was measured with."""

import os
import platform
import statistics
import time
from importlib.metadata import version
from pathlib import Path

BEGIN, END = "<!-- measured: `just bench-peers` writes what is between here -->", "<!-- and here -->"
LIBRARIES = ("torch", "transformers", "lm_eval", "numpy")
# Above this share of the processors' time others were at work, too.
QUIET = 0.03


class Clock:
    """Seconds of the processors: all that were spent, and those that were ours."""

    def __init__(self):
        self.began, self.before = time.time(), self.seconds()

    @staticmethod
    def seconds():
        times = os.times()
        ours = times.user + times.system + times.children_user + times.children_system
        stat = Path("/proc/stat")
        if not stat.exists():
            return None, ours
        # user nice system idle iowait irq softirq steal
        fields = [int(field) for field in stat.read_text().splitlines()[0].split()[1:9]]
        return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK"), ours

    def others(self):
        """The share of all processors' time that others took since the beginning; none where the system does not tell."""
        (all_before, ours_before), (all_now, ours_now) = self.before, self.seconds()
        if all_now is None:
            return None
        passed = (time.time() - self.began) * (os.cpu_count() or 1)
        return max(0.0, (all_now - all_before) - (ours_now - ours_before)) / max(passed, 1e-9)


def processor():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def short(bench, row):
    """A row in a few words, for whoever waits."""
    return row.apart or "ran" if bench.quick or not row.ours else f"{spread(row.ratios(), 2)} times as fast as {row.peer}"


def spread(values, digits):
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def table(bench, rows):
    """Of small sizes what agrees, and no times: somebody would believe them."""
    lines = [
        "| part | what | ours, s | theirs, s | | times as fast | aim | furthest apart (allowed) |",
        "| --- | --- | ---: | ---: | --- | ---: | ---: | --- |",
    ]
    for row in rows:
        what = "; ".join([row.what, *([] if bench.quick else row.notes)])
        ours, theirs, ratios = (spread(of, 2) if of else "–" for of in (row.ours, row.theirs, row.ratios()))
        times = f"– | – | {row.peer} | –" if bench.quick or not row.ours else f"{ours} | {theirs} | {row.peer} | **{ratios}**"
        lines.append(f"| {row.part} | {what} | {times} | {row.aim} | {row.apart} |")
    return "\n".join(lines)


def circumstances(bench, clock, program):
    """Machine, versions and how quiet it was, as a paragraph."""
    others = clock.others()
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    said = [
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {processor()}, {os.cpu_count()} cores, {bench.threads} threads on each side,"
        f" {platform.system()} {platform.machine()}.",
        f"{program}; Python {platform.python_version()}, {libraries}.",
        f"Median of {bench.rounds} rounds by turns, lowest and highest in brackets; {(time.time() - clock.began) / 60:.0f} minutes.",
    ]
    if bench.quick:
        said.append("**Small sizes (`--quick`): they show that both sides agree; their times mean nothing and are left out.**")
    elif others is None:
        said.append("How quiet the machine was is not known.")
    elif others > QUIET:
        said.append(
            f"**The machine was not quiet: others took {100 * others:.0f} % of its processors' time, which slows the other side"
            " most (its threads wait for each other at every operation). To be measured again.**"
        )
    else:
        said.append(f"Others took {100 * others:.1f} % of the processors' time meanwhile.")
    if not bench.real:
        said.append("Backbone and data are the embedded ones.")
    return "\n".join(said)


def write(file, text):
    """Puts the text between the marks of a file."""
    whole = Path(file).read_text()
    if BEGIN not in whole or END not in whole:
        raise SystemExit(f"{file}: the marks are not there: {BEGIN} and {END}")
    before, after = whole.split(BEGIN)[0], whole.split(END)[1]
    new = Path(file).with_suffix(".new")
    new.write_text(f"{before}{BEGIN}\n\n{text}\n\n{END}{after}")
    new.replace(file)
