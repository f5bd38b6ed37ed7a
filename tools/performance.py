#!/usr/bin/env python3
"""Makes docs/performance.md of benches/results/*.csv: `tools/performance.py`, or `--check` to compare only.

Each table has the newest row of every processor, part, work and peer. Rows without a ratio stay in the files.
"""

import argparse
import csv
import sys
import textwrap
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
RESULTS = ROOT / "benches/results"
PAGE = ROOT / "docs/performance.md"
FIELDS = "date,processor,commit,part,what,peer,ours,theirs,ratio,low,high,unit,aim,note".split(",")
# What is no measurement of ours beside a peer's.
REASONS, NOTES = "reasons.csv", "notes.csv"
# Title and beginning of the processor's name.
TABLES = (("AMD", "AMD"), ("Intel", "Intel"), ("GPU", "NVIDIA"))
MAX_LINES, MAX_WIDTH = 120, 158

HEAD = """\
# Performance

`tools/performance.py` writes this page from [`benches/results`](../benches/results), which also has single rounds, notes and older rows.
Both sides compute in the float type that a row names, with as many threads. A ratio above 1 means that ghostlab is faster.

```sh
just bench-peers                     # all parts: 35 minutes on two quiet cores; adds a CSV file and updates this page
just bench-peers choices grid        # some parts, printed only; --help lists the parts
just bench-peers --rounds 5 --save   # all parts in five rounds, saved
just bench-peers --quick             # small sizes: shows that all parts run and agree
LLAMA_CPP=…/llama.cpp just bench-peers llamacpp   # beside llama.cpp, which you build
```

Python is `target/python`, or `GHOSTLAB_PYTHON`. Rounds go by turns, and results that differ by more than a tolerance end the run.
On a busy machine the ratios mean nothing: rows say in their note how much of the processors' time other processes took.
On a GPU `tools/gpu_bench.sh` measures instead ([engines.md](engines.md)).
"""


def read(name):
    with open(RESULTS / name, newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def measurements():
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
            # Of one day the last file's last row counts.
            row["place"] = row["date"], path.name, number
            if row["ratio"] and (key not in newest or row["place"] > newest[key]["place"]):
                newest[key] = row
    return list(newest.values())


def amount(text):
    """Writes a number with separators of thousands."""
    return f"{float(text):,.{len(text.partition('.')[2])}f}" if text else "–"


def lines_of(vendor):
    """Returns a table row for each part, work and peer: the newest measurement, and the ratios on other processors of the vendor."""
    works = {}
    for row in sorted(vendor, key=lambda row: row["place"], reverse=True):
        works.setdefault((row["part"], row["what"], row["peer"]), []).append(row)
    return [line(*works[key]) for key in dict.fromkeys((row["part"], row["what"], row["peer"]) for row in vendor)]


def line(row, *others):
    spread = f" ({row['low']}–{row['high']})" if row["low"] else ""
    also = ", ".join(f"{of['ratio']} on {of['processor']}" for of in others)
    cells = [row["part"], row["what"], row["peer"], amount(row["ours"]), amount(row["theirs"]), row["unit"]]
    return "| " + " | ".join([*cells, f"**{row['ratio']}**{spread}", row["processor"], row["date"], also]) + " |"


def reason(row, reasons):
    fields = ("processor", "part", "what", "peer")
    # The fields of a reason are beginnings, the longest processor first.
    fits = [of for of in reasons if all(row[field].startswith(of[field]) for field in fields)]
    return max(fits, key=lambda of: len(of["processor"]))["reason"] if fits else "not known"


def slower(rows):
    """Returns an item for each reason, with the rows that it explains."""
    reasons, found = read(REASONS), {}
    for row in rows:
        if float(row["ratio"]) < 1:
            place = f"{row['part']} {row['ratio']} ({row['what'].partition(', ')[0]}, {row['processor']})"
            found.setdefault(reason(row, reasons), []).append(place)
    wrap = textwrap.TextWrapper(MAX_WIDTH, subsequent_indent="  ", break_on_hyphens=False)
    return [wrap.fill(f"- {because}: {', '.join(places)}.") for because, places in found.items()]


def page():
    rows, parts = measurements(), [HEAD]
    for title, processor in TABLES:
        own = [row for row in rows if row["processor"].startswith(processor)]
        head = ["| part | work | peer | ours | theirs | unit | times as fast | processor | date | others |"]
        head += ["| --- | --- | --- | ---: | ---: | --- | ---: | --- | --- | --- |"]
        parts.append("\n".join([f"## {title}", "", *head, *lines_of(own)]) + "\n")
    parts.append("\n".join(["## Slower than a peer", "", *slower(rows)]) + "\n")
    text = "\n".join(parts)
    lines = text.count("\n")
    if lines > MAX_LINES:
        sys.exit(f"docs/performance.md would have {lines} lines, more than {MAX_LINES}")
    return text


def main():
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--check", action="store_true", help="compare only; exit code 1 where the page is stale")
    check, text = parser.parse_args().check, page()
    if not check:
        PAGE.write_text(text, encoding="utf-8")
        print(f"wrote {PAGE.relative_to(ROOT)}")
    elif not PAGE.exists() or PAGE.read_text(encoding="utf-8") != text:
        sys.exit("docs/performance.md is stale: run tools/performance.py")


if __name__ == "__main__":
    main()
