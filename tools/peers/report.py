"""Table of a benchmark, with a description of the machine and the versions."""

import csv
import os
import platform
import re
import statistics
import subprocess
import time
from importlib.metadata import version
from pathlib import Path

LIBRARIES = ("torch", "transformers", "lm_eval", "numpy")
# Maximum fraction of the CPU time that other processes use on a quiet machine.
QUIET = 0.03


class Clock:
    """CPU time of the whole machine and of this process with its children, in seconds."""

    def __init__(self):
        self.began, self.before = time.time(), self.seconds()

    @staticmethod
    def seconds():
        times = os.times()
        ours = times.user + times.system + times.children_user + times.children_system
        stat = Path("/proc/stat")
        if not stat.exists():
            return None, ours
        # The fields are user, nice, system, idle, iowait, irq, softirq and steal.
        fields = [int(field) for field in stat.read_text().splitlines()[0].split()[1:9]]
        return (sum(fields) - fields[3] - fields[4]) / os.sysconf("SC_CLK_TCK"), ours

    def others(self):
        """Returns the fraction of CPU time used by other processes since the start, or None if unknown."""
        (all_before, ours_before), (all_now, ours_now) = self.before, self.seconds()
        if all_now is None:
            return None
        passed = (time.time() - self.began) * (os.cpu_count() or 1)
        return max(0.0, (all_now - all_before) - (ours_now - ours_before)) / max(passed, 1e-9)


def processor_name():
    try:
        lines = Path("/proc/cpuinfo").read_text().splitlines()
        return next(line.split(":", 1)[1].strip() for line in lines if line.startswith("model name"))
    except (OSError, StopIteration):
        return platform.processor() or platform.machine()


def summarize(bench, row):
    """Summarizes a row for progress output."""
    return row.apart or "ran" if bench.quick or not row.ours else f"{format_spread(row.ratios(), 2)} times as fast as {row.peer}"


def format_spread(values, digits):
    middle = f"{statistics.median(values):,.{digits}f}"
    if len(values) == 1:
        return middle
    return f"{middle} ({min(values):,.{digits}f}–{max(values):,.{digits}f})"


def format_table(bench, rows):
    """Formats the rows as a Markdown table. Omits the times of quick runs, which are meaningless."""
    lines = [
        "| part | what | ours, s | theirs, s | | times as fast | aim | furthest apart (allowed) |",
        "| --- | --- | ---: | ---: | --- | ---: | ---: | --- |",
    ]
    for row in rows:
        speed = [f"{row.tokens / statistics.median(of):,.1f}" for of in (row.ours, row.theirs)] if row.tokens and row.ours else []
        speed = [f"{' tokens/s against '.join(speed)}"] if speed else []
        what = "; ".join([row.what, *([] if bench.quick else [*speed, *row.notes])])
        ours, theirs, ratios = (format_spread(of, 2) if of else "–" for of in (row.ours, row.theirs, row.ratios()))
        times = f"– | – | {row.peer} | –" if bench.quick or not row.ours else f"{ours} | {theirs} | {row.peer} | **{ratios}**"
        lines.append(f"| {row.part} | {what} | {times} | {row.aim} | {row.apart} |")
    return "\n".join(lines)


def describe_conditions(bench, clock, program):
    """Describes the machine, the versions and the load by other processes in a paragraph."""
    others = clock.others()
    libraries = ", ".join(f"{name} {version(name)}" for name in LIBRARIES)
    said = [
        f"{time.strftime('%Y-%m-%d', time.gmtime())}, {processor_name()}, {os.cpu_count()} cores, {bench.threads} threads on each side,"
        f" {platform.system()} {platform.machine()}.",
        f"{program}; Python {platform.python_version()}, {libraries}.",
        f"Median of {bench.rounds} alternating rounds, lowest and highest in parentheses; {(time.time() - clock.began) / 60:.0f} minutes.",
    ]
    if bench.quick:
        said.append("**Small sizes (`--quick`) only show that both sides agree. Their times are meaningless and omitted.**")
    elif others is None:
        said.append("The load by other processes is unknown.")
    elif others > QUIET:
        said.append(
            f"**The machine was not quiet: other processes used {100 * others:.0f} % of its CPU time. Their load slows the peer"
            " most, because its threads wait for each other at every operation. Measure again.**"
        )
    else:
        said.append(f"Other processes used {100 * others:.1f} % of the CPU time.")
    if not bench.real:
        said.append("Backbone and data are those embedded in the program.")
    return "\n".join(said)


def save(bench, clock, program, rows):
    """Appends the rows to the CSV file of this day and processor, and regenerates docs/performance.md."""
    import performance

    date, name = time.strftime("%Y-%m-%d", time.gmtime()), processor_with_instructions()
    slug = "-".join(re.findall(r"[a-z0-9]+", name.lower().replace("avx-512", "avx512")))
    file = performance.RESULTS / f"{date}-{slug}.csv"
    head = ["git", "rev-parse", "--short", "HEAD"]
    commit = subprocess.run(head, cwd=performance.ROOT, capture_output=True, text=True).stdout.strip()
    conditions = describe_conditions(bench, clock, program).replace("\n", " ").replace("**", "")
    new = not file.exists()
    with file.open("a", newline="", encoding="utf-8") as out:
        table = csv.DictWriter(out, performance.FIELDS, lineterminator="\n")
        if new:
            table.writeheader()
        for row in rows:
            table.writerow({"date": date, "processor": name, "commit": commit, **csv_fields(row, conditions)})
    performance.PAGE.write_text(performance.format_page(), encoding="utf-8")
    print(f"wrote {file.relative_to(performance.ROOT)} and {performance.PAGE.relative_to(performance.ROOT)}")


def csv_fields(row, conditions):
    """Returns the CSV fields of a measurement, with rates if tokens are counted, and with seconds otherwise."""
    found = {"part": row.part, "what": row.what, "peer": row.peer, "aim": row.aim}
    notes = [*row.notes, *([row.apart] if row.apart else [])]
    if row.ours:
        seconds, ratios = (statistics.median(row.ours), statistics.median(row.theirs)), row.ratios()
        values = [row.tokens / of for of in seconds] if row.tokens else seconds
        found |= {"ours": f"{values[0]:.4g}", "theirs": f"{values[1]:.4g}", "unit": "tokens/s" if row.tokens else "s"}
        found |= {"ratio": f"{statistics.median(ratios):.2f}", "low": f"{min(ratios):.2f}", "high": f"{max(ratios):.2f}"}
        notes.append(f"ours {format_spread(row.ours, 2)} s, theirs {format_spread(row.theirs, 2)} s")
    return found | {"note": "; ".join([*notes, conditions])}


def processor_with_instructions():
    """Returns the short name of the processor, with its widest vector instructions."""
    cpuinfo = Path("/proc/cpuinfo")
    flags = cpuinfo.read_text().split() if cpuinfo.exists() else []
    widest = (("amx_bf16", "AMX"), ("avx512f", "AVX-512"), ("avx2", "AVX2"))
    found = next((name for flag, name in widest if flag in flags), platform.machine())
    names = (("EPYC", "AMD EPYC"), ("Xeon", "Intel Xeon"))
    return f"{next((short for word, short in names if word in processor_name()), processor_name())} ({found})"
