"""Draws what a command prints in a terminal as an SVG: `terminal_picture.py OUT.svg LINES COMMAND...`.

    python tools/terminal_picture.py docs/pictures/table2.svg 25 target/release/ghostlab reproduce table2

The command must have run before, so that it prints its table at once. Only the first LINES lines are drawn.
"""

import html
import os
import subprocess
import sys
from pathlib import Path

COLUMN, LINE, MARGIN = 7.2, 16, 14
COLOURS = {"paper": "#1e1e2e", "text": "#cdd6f4", "prompt": "#a6e3a1"}


def drawn(command, lines):
    rows = [f"$ {command}", *lines]
    width = 2 * MARGIN + COLUMN * max(map(len, rows))
    height = 2 * MARGIN + LINE * len(rows)
    parts = [
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width:.0f} {height}" role="img">',
        f"<title>{html.escape(command)} in a terminal</title>",
        f'<rect width="100%" height="100%" rx="8" fill="{COLOURS["paper"]}"/>',
        '<g font-family="DejaVu Sans Mono, Menlo, Consolas, monospace" font-size="12">',
    ]
    for number, row in enumerate(rows):
        colour = COLOURS["prompt" if number == 0 else "text"]
        baseline = MARGIN + LINE * number + 12
        # A fixed length keeps the columns of a table below each other in any font.
        length = COLUMN * len(row)
        text = html.escape(row).replace(" ", "\u00a0")
        parts.append(f'<text x="{MARGIN}" y="{baseline}" fill="{colour}" textLength="{length:.1f}">{text}</text>' if row else "")
    return "\n".join([*filter(None, parts), "</g>", "</svg>", ""])


def main(out, lines, *command):
    printed = subprocess.run(command, capture_output=True, text=True, check=True, env={**os.environ, "COLUMNS": "120"})
    shown = " ".join([Path(command[0]).name, *command[1:]])
    Path(out).write_text(drawn(shown, printed.stdout.splitlines()[: int(lines)]))


if __name__ == "__main__":
    main(*sys.argv[1:])
