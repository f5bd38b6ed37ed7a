"""Computes reference results for Neural Block Linearization of MLPs, and of attentions and MLPs together, in float64.
crates/core/tests/nbl.rs compares the engines with them. The published scripts linearize attentions only.

    pip install numpy torch tokenizers safetensors
    python tools/nbl_mlp.py ../shared/oracles/beyond

The forward pass, the texts, the bound and the map come from `make.py` of the reference data `beyond`. Writes
tests/fixtures/nbl_mlp.json.
"""

import importlib.util
import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
# Backbones without and with norms after the sublayers.
BACKBONES = ["tiny-llama", "tiny-olmo2"]
# Unit of the cut, input of the map and of the bound, and number of replaced sublayers.
VARIANTS = [("mlp", "stream", 2), ("mlp", "normed", 4), ("sublayers", "stream", 6), ("sublayers", "normed", 6)]


def bundled(path):
    """Returns the file of this checkout that a path in the settings refers to."""
    return str(ROOT / "data" / path.rpartition("main/data/")[2])


def load_reference(folder):
    spec = importlib.util.spec_from_file_location("make", folder / "make.py")
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def reference_results(make, folder, world):
    backbone = Path(world["backbone"])
    net, tokenizer = make.Net(backbone, torch.float64), Tokenizer.from_file(str(backbone / "tokenizer.json"))
    calibration, evaluation = world["calibration"], world["evaluation"]
    _, ids = make.Text(folder, tokenizer, calibration).calibration(*(calibration[key] for key in ("sequences", "length", "seed")))
    windows = make.Text(folder, tokenizer, evaluation).evaluation(evaluation["length"], evaluation["limit"])
    streams = []
    streams.append(make.along(net.start(ids), net.full, streams))

    def sublayer_input(sublayer, stream):
        weights = net.layers[sublayer // 2]
        if sublayer % 2 == 0:
            return net.into_attention(weights, stream)
        return stream if net.kind == "olmo2" else net.rms(stream, weights["post_attention_layernorm"])

    bounds, maps = {"stream": [], "normed": []}, {"stream": [], "normed": []}
    for sublayer in range(2 * net.L):
        before, after = (streams[at].reshape(-1, net.C) for at in (sublayer, sublayer + 1))
        for name, read in (("stream", before), ("normed", sublayer_input(sublayer, before))):
            bounds[name].append(make.correlations(read, after - before + read))
            maps[name].append(make.lmmse(read, after - before))
    damage = make.Against(net, windows)
    variants = {}
    for unit, name, count in VARIANTS:
        # Attentions precede MLPs, so that the first of two equal bounds is the same as in the program.
        candidates = [at for at in make.in_authors_order(net) if unit == "sublayers" or at % 2 == 1]
        chosen = make.lowest(bounds[name], candidates, count)

        def replaced(sublayer, name=name):
            weight, bias = maps[name][sublayer]
            step = lambda x: x + (x if name == "stream" else sublayer_input(sublayer, x)) @ weight.T + bias
            step.size, step.cached = 0, False
            return step

        steps = net.steps((), {sublayer: replaced(sublayer) for sublayer in chosen})
        found = damage.of(steps)
        variants[f"{unit}:{name}:{count}"] = {
            "replaced": sorted(chosen), "ppl": found["ppl"], "kl_dense_variant": found["kl_dense_variant"],
        }
    return {
        "bounds": bounds,
        "maps": {name: [{"W": make.norms(weight), "b": make.norms(bias)} for weight, bias in found] for name, found in maps.items()},
        "variants": variants,
    }


def main():
    folder = Path(sys.argv[1]).absolute()
    torch.set_grad_enabled(False)
    make = load_reference(folder)
    worlds = {world["name"]: world for world in json.loads((folder / "settings.json").read_text())["worlds"]}
    for world in worlds.values():
        world["backbone"] = bundled(world["backbone"])
        for part in ("calibration", "evaluation"):
            world[part]["path"] = bundled(world[part]["path"])
    results = {name: reference_results(make, folder, worlds[name]) for name in BACKBONES}
    out = ROOT / "tests/fixtures/nbl_mlp.json"
    out.write_text(json.dumps(results, indent=1) + "\n")


if __name__ == "__main__":
    main()
