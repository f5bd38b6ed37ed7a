#!/usr/bin/env python3
"""What the paper's tables look like, as facts: columns, groups, rules, rows, shading; no numbers.

    tools/paper_tables.py ../shared/paper/ghosted_layers.tex > tests/fixtures/paper_tables.txt

A table begins with its number and LaTeX label, and has a line for each of its lines: `head` or `row`, the rules above it,
its cells (letters, digits, points and slashes of them; `#` a number or an address, `_` empty, `*N` over N rows, `N:` over N
columns, `↑` and `↓` an arrow) and which columns are shaded. A rule that stands twice is one.
"""

import re
import sys

SKIPPED = r"\\cellcolor\{[^}]*\}|\\citep?\{[^}]*\}|\\textcolor\{[^}]*\}|\\(begin|end)\{[^}]*\}|\\rotatebox\[[^]]*\]\{[^}]*\}"


def lines(source):
    """Those of the document, each file where it is put in."""
    files = {name.removesuffix(".tex"): text for name, text in re.findall(r"%% file: (\S+)\n(.*?)(?=%% file: |\Z)", source, re.S)}
    put_in = lambda name: re.sub(r"\\input\{([^}]*)\}", lambda found: put_in(found[1]), files[name])
    return put_in("main")


def tables(source):
    """Number, label and tabular of each table."""
    prefix, count = "", 0
    pattern = r"(\\appendix\b)|\\begin\{table\*?\}(.*?)\\end\{table"
    for appendix, table in re.findall(pattern, lines(source), re.S):
        if appendix:
            prefix, count = "A", 0
            continue
        count += 1
        label = re.search(r"\\label\{tab:([^}]*)\}", table)[1]
        yield f"table{prefix}{count}", label, re.search(r"\\begin\{tabular\}\{[^}]*\}(.*?)\\end\{tabular\}", table, re.S)[1]


def cell(text):
    """A cell in a word, and whether it is shaded."""
    shaded = "\\jygl" in text or "\\cellcolor" in text
    over = re.search(r"\\multicolumn\{(\d+)\}\{[^}]*\}", text)
    span = re.search(r"\\multirow\{(\d+)\}\{\*\}", text)
    text = re.sub(r"\\multicolumn\{\d+\}\{[^}]*\}|\\multirow\{\d+\}\{\*\}", "", text)
    arrow = "↑" if "\\uparrow" in text else "↓" if "\\downarrow" in text else ""
    text = re.sub(SKIPPED, "", text)
    text = re.sub(r"\\[a-zA-Z]+|\\.", "", text)
    word = re.sub(r"[^a-z0-9/.]", "", text.lower())
    word = "#" if re.match(r"\d+\.\d", word) else word or "_"
    return (f"{over[1]}:" if over else "") + word + (f"*{span[1]}" if span else "") + arrow, shaded


def facts(tabular):
    tabular = re.sub(r"(?<!\\)%.*", "", tabular).replace("\\&", "")
    kind, heads = "head", []
    for chunk in tabular.split("\\\\"):
        rules, whole = [], False
        chunk = chunk.strip()
        while found := re.match(r"\\(toprule|midrule|bottomrule)|\\cmidrule(?:\([lr]*\))?\{(\d+-\d+)\}|\\rowcolor\{[^}]*\}", chunk):
            rule = "cmidrule" + found[2] if found[2] else found[1]
            whole |= rule is None
            if rule not in (None, "toprule") and rule not in rules[-1:]:
                rules.append(rule)
            chunk = chunk[found.end():].lstrip()
        if not chunk:
            continue
        if "midrule" in rules:
            kind = "row"
        cells = [cell(text) for text in chunk.split("&")]
        words = [word for word, _ in cells]
        if kind == "head":
            heads = words
        # What is said of a place on the web may be that there is none.
        linked = lambda at: kind == "row" and heads[at] in ("officialrepository", "downloadlink")
        words = ["#" if linked(at) else word for at, word in enumerate(words)]
        shaded = [at for at, (_, shaded) in enumerate(cells, 1) if shaded or whole]
        end = [f"shaded{shaded[0]}-{shaded[-1]}"] if shaded else []
        yield " ".join([kind, ",".join(rules) or "-", *words, *end])


for number, label, tabular in tables(open(sys.argv[1], encoding="utf-8").read()):
    print(f"[{number} {label}]", *facts(tabular), sep="\n")
