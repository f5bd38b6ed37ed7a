#!/usr/bin/env python3
"""Extracts the layout of the paper's tables: columns, groups, rules, rows and shading, without numbers.

    tools/paper_tables.py ../shared/paper/ghosted_layers.tex > tests/fixtures/paper_tables.txt

Each table starts with its number and LaTeX label. Each of its lines gives `head` or `row`, the rules above it, the cells, and the
shaded columns. Cells consist of letters, digits, points and slashes. `#` is a number or URL, `_` an empty cell, `*N` a cell over
N rows, `N:` a cell over N columns, and `↑` or `↓` an arrow. Repeated rules count once.
"""

import re
import sys

SKIPPED = r"\\cellcolor\{[^}]*\}|\\citep?\{[^}]*\}|\\textcolor\{[^}]*\}|\\(begin|end)\{[^}]*\}|\\rotatebox\[[^]]*\]\{[^}]*\}"


def lines(source):
    """Returns the text of the document, with each file at its `\\input`."""
    files = {name.removesuffix(".tex"): text for name, text in re.findall(r"%% file: (\S+)\n(.*?)(?=%% file: |\Z)", source, re.S)}
    put_in = lambda name: re.sub(r"\\input\{([^}]*)\}", lambda found: put_in(found[1]), files[name])
    return put_in("main")


def tables(source):
    """Iterates over the number, label and tabular environment of each table."""
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
    """Returns the normalized text of a cell, and whether it is shaded."""
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
        # Columns of links may contain remarks instead of URLs.
        linked = lambda at: kind == "row" and heads[at] in ("officialrepository", "downloadlink")
        words = ["#" if linked(at) else word for at, word in enumerate(words)]
        shaded = [at for at, (_, shaded) in enumerate(cells, 1) if shaded or whole]
        end = [f"shaded{shaded[0]}-{shaded[-1]}"] if shaded else []
        yield " ".join([kind, ",".join(rules) or "-", *words, *end])


for number, label, tabular in tables(open(sys.argv[1], encoding="utf-8").read()):
    print(f"[{number} {label}]", *facts(tabular), sep="\n")
