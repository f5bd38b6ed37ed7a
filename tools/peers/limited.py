"""Runs the dense forward of transformers in a separate process, with one round per input line.

`limited.py BACKBONE WINDOWS TYPE BATCH THREADS`. The process is separate because oneDNN reads its limits when torch is imported.
"""

import json
import sys
import time
from pathlib import Path

sys.path[1:1] = [str(Path(__file__).resolve().parents[1])]


def main():
    backbone, windows, kind, batch, threads = sys.argv[1:]
    import logging

    import torch
    from text import compute_losses, load_model

    torch.set_num_threads(int(threads))
    logging.disable(logging.WARNING)
    ids, model = json.loads(Path(windows).read_text()), load_model(backbone, kind)
    for _ in sys.stdin:
        started = time.perf_counter()
        found = compute_losses(model, ids, int(batch))
        print(json.dumps({"seconds": time.perf_counter() - started, "losses": found}), flush=True)


if __name__ == "__main__":
    main()
