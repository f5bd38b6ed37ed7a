"""Computes scalar Prune&Comp layer by layer, with the factor on the stream at the cut, in float64: `scalar_compensation.py BEYOND > OUT.json`.

    python tools/scalar_compensation.py ../shared/oracles/beyond > tests/fixtures/scalar_compensation.json

BEYOND contains `make.py`, whose model, cosines, perplexities and damage are used here, and its recorded numbers. `make.py` scales the
embedding and all projections before the cut, while ghostlab scales the stream at the cut. Both are equal except for the ε of the
norms. The script prints the difference between both forms to stderr, and checks that the first form gives the recorded numbers.
"""

import json
import sys
from pathlib import Path

import torch
from tokenizers import Tokenizer

ROOT = Path(__file__).resolve().parent.parent
VARIANT = "iterative-pc:{depth}:scalar:{axis}"


def shrink(make, net, ids, depth, axis, on_stream):
    """Returns the removed layers with scores and factors, the steps that are left, and the start of the stream."""
    layers, embed, left, trail = [dict(layer) for layer in net.layers], net.embed, list(range(net.L)), []
    factors = {}  # factor of each layer's input stream
    for _ in range(depth):
        inputs, outputs, x = [], [], embed[ids]
        for number, layer in zip(left, layers):
            inputs.append(x * factors.get(number, 1.0))
            x = make.along(inputs[-1], net.of([layer]))
            outputs.append(x)
        dimension = -1 if axis == "token" else 1
        scores = [make.cosine(one, other, dimension) for one, other in zip(inputs[:-1], outputs)]
        at = max(range(len(scores)), key=lambda i: scores[i])
        factor = (outputs[at].abs().mean() / inputs[at].abs().mean()).item()
        trail.append({"removed": left[at], "score": scores[at], "factor_mean": factor})
        if on_stream:
            factors[left[at + 1]] = factors.pop(left[at], 1.0) * factors.get(left[at + 1], 1.0) * factor
        else:
            embed = embed * factor
            for layer in layers[:at]:
                layer["o_proj"], layer["down_proj"] = layer["o_proj"] * factor, layer["down_proj"] * factor
        del layers[at], left[at]
    steps = []
    for number, layer in zip(left, layers):
        if number in factors:
            steps.append(make.placed(lambda x, factor=factors[number]: x * factor))
        steps += net.of([layer])
    return trail, steps, embed


def measure(make, net, ids, against, depth, axis, on_stream):
    trail, steps, embed = shrink(make, net, ids, depth, axis, on_stream)
    return {"trail": trail, **against.of(steps, lambda part: embed[part])}


def format_difference(one, other):
    scores = [abs(a["score"] / b["score"] - 1) for a, b in zip(one["trail"], other["trail"])]
    return f"scores {max(scores):.1e}, perplexity {abs(one['ppl'] / other['ppl'] - 1):.1e}"


def main(folder):
    folder = Path(folder).resolve()
    sys.path.insert(0, str(folder))
    import make

    torch.set_grad_enabled(False)
    published = json.loads((folder / "numbers.json").read_text())
    found = {}
    # The settings name the bundled backbones relative to their own folder.
    settings = (folder / "settings.json").read_text().replace("../../../../main/data", str(ROOT / "data"))
    for world in json.loads(settings)["worlds"]:
        backbone = (folder / world["backbone"]).resolve()
        net, tokenizer = make.Net(backbone, torch.float64), Tokenizer.from_file(str(backbone / "tokenizer.json"))
        calibration, evaluation = world["calibration"], world["evaluation"]
        _, ids = make.Text(folder, tokenizer, calibration).calibration(*(calibration[key] for key in ("sequences", "length", "seed")))
        against = make.Against(net, make.Text(folder, tokenizer, evaluation).evaluation(evaluation["length"], evaluation["limit"]))
        for depth, granularity, axis in world["run"].get("iterative", []):
            if granularity == "scalar":
                name = VARIANT.format(depth=depth, axis=axis)
                on_weights, on_stream = (measure(make, net, ids, against, depth, axis, form) for form in (False, True))
                theirs = published[world["name"]]["variants"][name]
                print(f"{world['name']} {name}: on weights against the published numbers: {format_difference(on_weights, theirs)}", file=sys.stderr)
                print(f"{world['name']} {name}: on the stream against on weights: {format_difference(on_stream, on_weights)}", file=sys.stderr)
                found.setdefault(world["name"], {})[name] = on_stream
    print(json.dumps(found, indent=1))


if __name__ == "__main__":
    main(*sys.argv[1:])
