#!/usr/bin/env python3
"""Generates docs/performance.md from benches/results/*.csv: `tools/performance.py`, or `--check` to compare only.

Each table has the newest measurement of every processor, part, work, float type and peer. Measurements without a ratio, and those
against older versions of ghostlab, are only in the files.
"""

import argparse
import csv
import re
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benches/results"
PAGE = ROOT / "docs/performance.md"
FIELDS = "date,processor,commit,part,what,peer,ours,theirs,ratio,low,high,unit,aim,note".split(",")
# Files without comparisons to a peer.
REASONS, NOTES = "reasons.csv", "notes.csv"
# Prefix of the processor names of each table.
TABLES = ("AMD", "Intel", "NVIDIA")
MAX_LINES, MAX_WIDTH = 120, 158

HEAD = """\
# Performance

`tools/performance.py` generates this page from [`benches/results`](../benches/results), whose CSV files also have spreads and notes.
Rates without a unit are tokens/s, and a ratio above 1 means that ghostlab is faster.
Ratios are in the order of the processors in the heading; the other columns are those of the first one with a measurement.
Both sides use the same number of threads and float type, but peers run `q8_0` against our bf16, and f32 against our bf16x3 and bf16x6.

```sh
just bench-peers                     # all parts, on a quiet machine; adds a CSV file and updates this page
just bench-peers choices grid        # some parts, printed only; --help lists parts and options
LLAMA_CPP=…/llama.cpp just bench-peers llamacpp   # a peer that you build
```

Python is `target/python`, or `GHOSTLAB_PYTHON`.
A run ends if results differ by more than a tolerance.
On a GPU, `tools/gpu_bench.sh` measures instead ([engines.md](engines.md)).
"""

# Prefix of rows about older versions of ghostlab, which are not peers.
OWN_VERSION = "ghostlab at "
# Our types that are compared with the peer's f32.
SPLIT = re.compile(r"\bbf16x[36]\b")
TYPE = re.compile(r"\b(?:f16|bf16(?:x[36])?|f32|f64|q8_0)\b")


def read(name):
    with open(RESULTS / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def newest_measurements():
    """Returns the newest row of each processor, part, work and peer, in the order in which they were first measured."""
    newest = {}
    for path in sorted(RESULTS.glob("*.csv")):
        if path.name in (REASONS, NOTES):
            continue
        rows = read(path.name)
        if not rows or list(rows[0]) != FIELDS:
            sys.exit(f"{path}: expected the columns {','.join(FIELDS)}")
        for number, row in enumerate(rows):
            key = row["processor"], row["part"], row["what"], row["peer"]
            # For equal dates, the last row of the last file counts.
            row["place"] = row["date"], path.name, number
            if row["ratio"] and not row["peer"].startswith(OWN_VERSION) and (key not in newest or row["place"] > newest[key]["place"]):
                newest[key] = row
    return list(newest.values())


def float_type(row):
    """Returns the float type that distinguishes rows for the same work, or an empty string."""
    found = SPLIT.search(row["what"]) or TYPE.search(row["peer"]) or TYPE.search(row["what"])
    return found[0] if found else ""


def work(row):
    """Returns part, work and peer without float types."""
    what = re.sub(rf"{TYPE.pattern}(?:, )?|, {TYPE.pattern}", "", row["what"]).strip(" ,")
    return row["part"], what, re.sub(rf" in {TYPE.pattern}", "", row["peer"])


def format_lines(rows, processors):
    """Returns a table row for each work and peer."""
    works = {}
    for row in rows:
        works.setdefault(work(row), {}).setdefault(float_type(row), {})[row["processor"]] = row
    return [format_line(*key, types, processors) for key, types in works.items()]


def format_line(part, what, peer, types, processors):
    """Returns a table row. A cell has one line per float type, or one line if all are equal."""
    cells = []
    for name, measured in types.items():
        shown = [measured[processor]["ratio"] if processor in measured else "–" for processor in processors]
        while shown[-1] == "–":
            shown.pop()
        first = next(measured[processor] for processor in processors if processor in measured)
        rates = [format_rate(first, side) for side in ("ours", "theirs")]
        cells.append((name, first["date"], first["commit"], *rates, "/".join(shown)))
    columns = [[cell or "–" for cell in column] for column in zip(*cells)]
    merged = ["<br>".join(column if len(set(column)) > 1 else column[:1]) for column in columns]
    return f"| `{part}`: {what.replace(' = ', '=')} | {peer} | {' | '.join(merged)} |"


def format_rate(row, side):
    """Returns a rate or time, with its unit unless it is the usual one."""
    if not row[side]:
        return ""
    value = float(row[side])
    text = f"{value:,.0f}" if value >= 1000 else f"{value:g}"
    return text if row["unit"] == "tokens/s" else f"{text} {row['unit']}"


def find_reason(row, reasons):
    fields = ("processor", "part", "what", "peer")
    # The fields of a reason are prefixes. The longest processor prefix wins.
    fits = [of for of in reasons if all(row[field].startswith(of[field]) for field in fields)]
    return max(fits, key=lambda of: len(of["processor"]))["reason"] if fits else "not known"


def explain_slower_rows(rows):
    """Returns an item for each reason, with the rows that it explains."""
    reasons, found = read(REASONS), {}
    for row in rows:
        if float(row["ratio"]) < 1:
            name = f"{row['part']} {float_type(row)}".strip()
            found.setdefault(find_reason(row, reasons), {}).setdefault(name, []).append(row["ratio"])
    wrap = textwrap.TextWrapper(MAX_WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return [wrap.fill(f"- {because}: {', '.join(format_ratios(names))}.") for because, names in found.items()]


def format_ratios(names):
    """Returns the ratios of each part and float type."""
    return [f"{name} {', '.join(ratios)}" for name, ratios in names.items()]


def format_section(rows):
    """Returns the section of a vendor, with processors ordered by their latest measurement, newest first."""
    newest = sorted(rows, key=lambda row: row["place"], reverse=True)
    processors = list(dict.fromkeys(row["processor"] for row in newest))
    names = ["part and work", "peer", "type", "date", "commit", "ours", "theirs", "ratio"]
    head = [f"| {' | '.join(names)} |", "|" + " --- |" * 5 + " ---: |" * 3]
    return "\n".join([f"## {' / '.join(processors)}", "", *head, *format_lines(rows, processors)]) + "\n"


def format_page():
    rows, parts = newest_measurements(), [HEAD]
    for vendor in TABLES:
        parts.append(format_section([row for row in rows if row["processor"].startswith(vendor)]))
    parts.append("\n".join(["## Slower than a peer", "", *explain_slower_rows(rows)]) + "\n")
    text = "\n".join(parts)
    lines = text.count("\n")
    if lines > MAX_LINES:
        sys.exit(f"docs/performance.md would have {lines} lines, more than {MAX_LINES}")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="only compare; exit with code 1 if the page is stale")
    check, text = parser.parse_args().check, format_page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/performance.md is stale: run tools/performance.py")


if __name__ == "__main__":
    main()
