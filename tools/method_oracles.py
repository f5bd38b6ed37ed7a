"""Computes reference results of every criterion, recovery and option on small random backbones in float64, from the formulas of
the methods. crates/core/tests/golden.rs compares every engine and float type with them.

    pip install numpy torch transformers
    python tools/method_oracles.py

Each method is implemented from its paper or reference code, named next to it, with numpy's solvers, and shares no code with the
program. The forward pass is first checked against transformers' logits (tests/fixtures/arch/*/forward.safetensors). Training
uses torch's gradients through transformers' layers in float64, and torch's AdamW. Writes tests/fixtures/methods.json.
"""

import csv
import json
import math
import random
import struct
from pathlib import Path

import numpy as np
import torch
from transformers import AutoModelForCausalLM

ROOT = Path(__file__).resolve().parent.parent
ARCH = ROOT / "tests/fixtures/arch"
# Six calibration sequences of 48 tokens, the first four for operators, and two scored windows of 64 tokens.
SEQUENCES, LENGTH, OPERATOR, WINDOW = 6, 48, 4, 64


def ids(count, seed):
    drawn = random.Random(seed)
    return [drawn.randint(3, 319) for _ in range(count)]


def tensors(file):
    """Reads the arrays of a safetensors file, which consists of the length of the JSON header, the header, and the data."""
    raw = file.read_bytes()
    size = struct.unpack("<Q", raw[:8])[0]
    types = {"F32": np.float32, "I64": np.int64, "F64": np.float64}
    found = {}
    for name, of in json.loads(raw[8 : 8 + size]).items():
        if name != "__metadata__":
            start, end = (8 + size + at for at in of["data_offsets"])
            found[name] = np.frombuffer(raw[start:end], types[of["dtype"]]).reshape(of["shape"])
    return found


class Backbone:
    """Decoder like those of transformers (models/llama, qwen3, olmo2), for one sequence at a time."""

    def __init__(self, name):
        self.config = json.loads((ARCH / name / "config.json").read_text())
        self.weights = {key: value.astype(np.float64) for key, value in tensors(ARCH / name / "model.safetensors").items()}
        self.layers = self.config["num_hidden_layers"]
        self.heads = self.config["num_attention_heads"]
        self.groups = self.config["num_key_value_heads"]
        self.width = self.config.get("head_dim") or self.config["hidden_size"] // self.heads
        self.after = self.config["model_type"] == "olmo2"
        self.eps = self.config["rms_norm_eps"]

    def norm(self, x, weight):
        return x / np.sqrt((x * x).mean(-1, keepdims=True) + self.eps) * weight

    def rotate(self, x):
        half = self.width // 2
        base = self.config["rope_parameters"]["rope_theta"]
        # Compute frequencies and angles in float32, like transformers.
        frequency = (1.0 / base ** (np.arange(0, self.width, 2, dtype=np.float32) / np.float32(self.width))).astype(np.float32)
        angle = np.outer(np.arange(len(x), dtype=np.float32), frequency).astype(np.float32).astype(np.float64)
        cos, sin = np.cos(angle)[:, None, :], np.sin(angle)[:, None, :]
        a, b = x[..., :half], x[..., half:]
        return np.concatenate([a * cos - b * sin, b * cos + a * sin], -1)

    def attention(self, layer, x):
        of = lambda part: self.weights[f"model.layers.{layer}.self_attn.{part}.weight"]
        project = lambda part: x @ of(part).T
        query, key, value = map(project, ("q_proj", "k_proj", "v_proj"))
        shape = lambda x: x.reshape(len(x), -1, self.width)
        if self.after:  # OLMo-2 normalizes the whole projection
            query, key = self.norm(query, of("q_norm")), self.norm(key, of("k_norm"))
        query, key, value = map(shape, (query, key, value))
        if self.config["model_type"] == "qwen3":  # Qwen3 normalizes each head
            query, key = self.norm(query, of("q_norm")), self.norm(key, of("k_norm"))
        query, key = self.rotate(query), self.rotate(key)
        hidden = np.triu(np.ones((len(x), len(x)), bool), 1)
        out = []
        for head in range(self.heads):
            group = head * self.groups // self.heads
            scores = query[:, head] @ key[:, group].T / math.sqrt(self.width)
            scores[hidden] = -np.inf
            scores = np.exp(scores - scores.max(-1, keepdims=True))
            out.append(scores / scores.sum(-1, keepdims=True) @ value[:, group])
        return np.concatenate(out, -1) @ of("o_proj").T

    def mlp(self, layer, x):
        of = lambda part: self.weights[f"model.layers.{layer}.mlp.{part}.weight"]
        gate, up = x @ of("gate_proj").T, x @ of("up_proj").T
        return (gate / (1 + np.exp(-gate)) * up) @ of("down_proj").T

    def half(self, which, layer, x, edit=None):
        """Runs a sublayer, where 0 is attention and 1 is the MLP. `edit` multiplies the output of its branch."""
        branch = (self.attention, self.mlp)[which]
        names = ("post_attention_layernorm", "post_feedforward_layernorm")
        if self.after:
            weight = self.weights[f"model.layers.{layer}.{names[which]}.weight"]
            out = branch(layer, x)
            # A diagonal edit is folded into the last projection, and so comes before the norm. A full matrix comes after it.
            if edit is not None and edit.ndim == 1:
                out = out * edit
            out = self.norm(out, weight)
            return x + (out @ edit if edit is not None and edit.ndim == 2 else out)
        names = ("input_layernorm", "post_attention_layernorm")
        out = branch(layer, self.norm(x, self.weights[f"model.layers.{layer}.{names[which]}.weight"]))
        if edit is not None:
            out = out * edit if edit.ndim == 1 else out @ edit
        return x + out

    def embed(self, tokens):
        return self.weights["model.embed_tokens.weight"][tokens]

    def logits(self, x):
        return self.norm(x, self.weights["model.norm.weight"]) @ self.weights["lm_head.weight"].T

    def streams(self, tokens):
        """Returns the residual streams before each layer and after the last one, and those between attention and MLP of each layer."""
        at, middle = [self.embed(tokens)], []
        for layer in range(self.layers):
            middle.append(self.half(0, layer, at[-1]))
            at.append(self.half(1, layer, middle[-1]))
        return at, middle

    def repaired(self, tokens, removed, stream, edits):
        """Returns the logits without the removed layers. `stream[l]` replaces layer `l`, and `edits[l, half]` multiplies a branch."""
        x = self.embed(tokens)
        for layer in range(self.layers):
            if layer in removed:
                x = stream[layer](x) if layer in stream else x
                continue
            for which in (0, 1):
                x = self.half(which, layer, x, edits.get((layer, which)))
        return self.logits(x)


def losses(logits, tokens):
    """Returns the negative log-likelihood of each next token."""
    top = logits.max(-1, keepdims=True)
    total = top[:, 0] + np.log(np.exp(logits - top).sum(-1))
    return (total - logits[np.arange(len(tokens)), np.r_[tokens[1:], 0]])[:-1]


class Case:
    """Backbone with its calibration data and the resulting streams."""

    def __init__(self, name):
        self.backbone = Backbone(name)
        self.tokens = np.array(ids(SEQUENCES * LENGTH, 11)).reshape(SEQUENCES, LENGTH)
        self.windows = np.array(ids(2 * WINDOW, 12)).reshape(2, WINDOW)
        runs = [self.backbone.streams(tokens) for tokens in self.tokens]
        # [sequence][position, C] for each layer
        self.at = [[run[0][layer] for run in runs] for layer in range(self.backbone.layers + 1)]
        self.middle = [[run[1][layer] for run in runs] for layer in range(self.backbone.layers)]

    def disturbed(self, of_each):
        """Returns a copy whose streams have a relative error of about `of_each`, like after rounding."""
        other, noise = object.__new__(Case), np.random.default_rng(13)
        other.backbone, other.tokens, other.windows = self.backbone, self.tokens, self.windows
        off = lambda rows: [x * (1 + of_each * noise.standard_normal(x.shape)) for x in rows]
        other.at, other.middle = [off(of) for of in self.at], [off(of) for of in self.middle]
        return other

    def perplexity(self, removed, stream, edits):
        means = [losses(self.backbone.repaired(w, removed, stream, edits), w).mean() for w in self.windows]
        return math.exp(np.mean(means))

    def trial(self, removed):
        total = [losses(self.backbone.repaired(tokens, removed, {}, {}), tokens) for tokens in self.tokens]
        return math.exp(np.concatenate(total).mean())


# Criteria


def cosine(x, y, axis):
    norms = np.maximum(np.linalg.norm(x, axis=axis), 1e-8) * np.maximum(np.linalg.norm(y, axis=axis), 1e-8)
    return (x * y).sum(axis) / norms


def similarity(case, kind, i, j):
    """Returns the similarity of two layer inputs. `channel-series` is torch.cosine_similarity(act_i [1, T, C], act_j).mean(), whose
    default dimension is the positions, as in the reference code of LLM-Streamline and ShortGPT. `token` is over channels. `angle`
    is equation 4 of Gromov et al."""
    pairs = list(zip(case.at[i], case.at[j]))
    if kind == "angle":
        return np.mean([math.acos(np.clip(cosine(x[-1], y[-1], 0), -1, 1)) / math.pi for x, y in pairs])
    return np.mean([cosine(x, y, 0 if kind == "channel-series" else 1).mean() for x, y in pairs])


def block(scores, depth, best):
    start = best(scores, key=lambda of: of[1])[0]
    return list(range(start, start + depth))


def lowest(scores, depth):
    return sorted(layer for layer, _ in sorted(scores, key=lambda of: of[1])[:depth])


def correlations(case, i, j):
    """Returns `C − Σ ρ²` (Neural Block Linearization, arXiv 2505.21077, theorem 3.2). The canonical correlations ρ are the singular
    values of QₓᵀQᵧ, where Q are orthonormal bases of the centered streams."""
    bases = []
    for layer in (i, j):
        rows = np.concatenate(case.at[layer])
        bases.append(np.linalg.qr(rows - rows.mean(0))[0])
    found = np.linalg.svd(bases[0].T @ bases[1], compute_uv=False)
    return rows.shape[1] - (found**2).sum()


def partitions(count, groups):
    """Returns all partitions of `count` items into `groups` non-empty groups, as labels in order of first appearance."""
    found = [[0]]
    for _ in range(count - 1):
        found = [[*labels, label] for labels in found for label in range(max(labels) + 2) if label < groups]
    return [labels for labels in found if max(labels) + 1 == groups]


def lorp(case, depth, groups):
    """LoRP (arXiv 2605.27786; lib/layer_select.py of its repository). It forms spectral clusters of (S + 1)/2. Each cluster first
    loses its most redundant layer. Further layers come from the cluster whose remaining layers are most similar. The clusters are
    the optimal partition, found by exhaustive search."""
    layers = case.backbone.layers
    S = np.array([[1.0 if i == j else similarity(case, "token", i, j) for j in range(layers)] for i in range(layers)])
    if groups is None:
        score = -math.log2(S[np.triu_indices(layers, 1)].mean())
        groups = 2 if score >= 1 else 3 if score >= 0.7 else 4
    A = (S + 1) / 2 - np.eye(layers)
    root = np.sqrt(A.sum(0))
    points = np.linalg.eigh(np.eye(layers) - A / np.outer(root, root))[1][:, :groups] / root[:, None]
    spread = lambda of: sum(((of - of.mean(0)) ** 2).ravel())
    cost = lambda labels: sum(spread(points[np.array(labels) == label]) for label in range(groups))
    labels = min(partitions(layers, groups), key=cost)
    mean = lambda values: float(np.mean(values)) if values else -math.inf
    members = [[layer for layer in range(layers) if labels[layer] == label] for label in range(groups)]
    redundancy = {layer: mean([S[layer, other] for other in of if other != layer]) for of in members for layer in of}
    queues = [sorted(set(of) - {0, layers - 1}, key=lambda layer: (-redundancy[layer], layer)) for of in members]
    gone = []
    for queue in queues:
        if queue and len(gone) < depth:
            gone.append(queue.pop(0))
    while len(gone) < depth:
        left = [[layer for layer in of if layer not in gone] for of in members]
        rest = lambda label: mean([S[i, j] for i in left[label] for j in left[label] if i < j])
        gone.append(queues[max((label for label in range(groups) if queues[label]), key=rest)].pop(0))
    return [(layer, redundancy[layer]) for layer in gone if redundancy[layer] > -math.inf], sorted(gone)


def criteria(case):
    layers = case.backbone.layers
    found = []

    def add(name, options, depth, scores, removed):
        scores = [[layer, float(score)] for layer, score in scores]
        found.append({"name": name, "options": options, "depth": depth, "scores": scores, "removed": removed})

    for depth in (1, 2):
        for kind in ("channel-series", "token"):
            scores = [(s, similarity(case, kind, s, s + depth)) for s in range(1, layers - depth)]
            add("llm-streamline", {"cosine": kind}, depth, scores, block(scores, depth, max))
            for last, count in (("keep", layers - 1), ("allow", layers)):
                scores = [(s, 1 - similarity(case, kind, s, s + 1)) for s in range(count)]
                add("shortgpt", {"cosine": kind, "last_layer": last}, depth, scores, lowest(scores, depth))
        scores = [(s, similarity(case, "angle", s, s + depth)) for s in range(layers - depth + 1)]
        add("angular", {}, depth, scores, block(scores, depth, min))
        scores = [(s, correlations(case, s, s + 1)) for s in range(layers)]
        add("cca", {}, depth, scores, lowest(scores, depth))
        scores = [(s, correlations(case, s, s + depth)) for s in range(layers - depth + 1)]
        add("cca", {"cut": "block"}, depth, scores, block(scores, depth, min))
        for options in ({}, {"clusters": 2}):
            add("lorp", options, depth, *lorp(case, depth, options.get("clusters")))
        # Shortened LLaMA scores each layer by the perplexity without it.
        scores = [(layer, case.trial({layer})) for layer in range(layers)]
        add("shortened-llama", {}, depth, scores, lowest(scores, depth))
        # SLEB (Song et al. 2024, algorithm 1) greedily removes the layer with the least damage, and repeats this on the pruned
        # model.
        gone, scores = [], []
        for _ in range(depth):
            left = [(layer, case.trial({*gone, layer})) for layer in range(layers) if layer not in gone]
            scores.append(min(left, key=lambda of: of[1]))
            gone.append(scores[-1][0])
        add("sleb", {}, depth, scores, sorted(gone))
    add("explicit", {"layers": [3, 1]}, 2, [], [1, 3])
    add("explicit", {"order": [2, 0, 3]}, 2, [], [0, 2])
    return found


# Recoveries


def regions(removed):
    runs = []
    for layer in removed:
        if runs and runs[-1][1] == layer:
            runs[-1][1] = layer + 1
        else:
            runs.append([layer, layer + 1])
    return [tuple(run) for run in runs]


def hadamard(size):
    """Returns the orthonormal Sylvester matrix."""
    matrix = np.ones((1, 1))
    while len(matrix) < size:
        matrix = np.block([[matrix, matrix], [matrix, -matrix]])
    return matrix / math.sqrt(size)


def least_squares(x, y, ridge):
    """Solves `(XᵀX + ridge·I) M = XᵀY` (main.py of the paper's repository)."""
    return np.linalg.solve(x.T @ x + ridge * np.eye(x.shape[1]), x.T @ y)


def chosen_ridge(x, delta):
    """Solves with the ridge that is best on the last of four sequences. Candidates are 1e-6 and fractions of the mean eigenvalue
    of `XᵀX`. The final solution uses all sequences and the same fraction."""
    mean = lambda x: (x * x).sum() / x.shape[1]
    seen, held = slice(0, -LENGTH), slice(-LENGTH, None)
    errors = []
    for share in [None, *(10.0**power for power in range(-8, 1))]:
        ridge = 1e-6 if share is None else share * mean(x[seen])
        error = ((x[held] @ least_squares(x[seen], delta[seen], ridge) - delta[held]) ** 2).sum()
        errors.append((error, share))
    share = min(errors, key=lambda of: of[0])[1]
    return least_squares(x, delta, 1e-6 if share is None else share * mean(x))


def low_rank(x, delta, rank):
    """Returns the map of the given rank whose outputs are closest to those of the ridge solution M. It applies Eckart–Young to `LᵀM`,
    where `L·Lᵀ = XᵀX + λI`."""
    whole = least_squares(x, delta, 1e-6)
    factor = np.linalg.cholesky(x.T @ x + 1e-6 * np.eye(x.shape[1]))
    right = np.linalg.svd(factor.T @ whole)[2][:rank]
    return whole @ right.T @ right


def by_cosine(branch, target, options):
    """Minimizes `1 − mean cos(A·T, Y)` with Adam from the identity, like ReplaceMe (defaults of torch.optim.Adam)."""
    size = branch.shape[1]
    matrix, first, second, step = np.eye(size), 0.0, 0.0, 0
    drawn, order = random.Random(options.get("seed", 0)), list(range(len(branch)))
    rate, batch = options["learning_rate"], options["batch"]
    for _ in range(options["epochs"]):
        if options.get("order", "shuffled") == "shuffled":  # Fisher–Yates shuffle
            for last in range(len(order) - 1, 0, -1):
                other = drawn.randint(0, last)
                order[last], order[other] = order[other], order[last]
        for begin in range(0, len(order), batch):
            rows = order[begin : begin + batch]
            a, y = branch[rows], target[rows]
            p = a @ matrix
            p_norm, y_norm = (np.maximum(np.linalg.norm(of, axis=1, keepdims=True), 1e-8) for of in (p, y))
            cos = (p * y).sum(1, keepdims=True) / (p_norm * y_norm)
            slope = -(y / (p_norm * y_norm) - cos * p / p_norm**2) / len(rows)
            gradient = a.T @ slope
            step += 1
            first = 0.9 * first + 0.1 * gradient
            second = 0.999 * second + 0.001 * gradient**2
            matrix = matrix - rate * (first / (1 - 0.9**step)) / (np.sqrt(second / (1 - 0.999**step)) + 1e-8)
    return matrix


class Repair:
    """Operator: `x·W + b` on the stream, `x + norm(x)·M + b`, or `branch·W` in the layer before the cut."""

    def __init__(self, matrix, bias=None, branches=(), norm=None):
        self.matrix, self.bias, self.branches, self.norm = matrix, bias, branches, norm

    def __call__(self, x):
        out = x @ self.matrix if self.norm is None else x + self.norm(x) @ self.matrix
        return out + (0 if self.bias is None else self.bias)


def solve(case, name, options, span, fitted, earlier):
    start, end = span
    rows = lambda of, count: np.concatenate(of[:count])
    pre, post = rows(case.at[start], fitted), rows(case.at[end], fitted)
    delta, identity = post - pre, np.eye(pre.shape[1])
    if name == "none":
        return None
    if name == "prune-and-comp":
        # Chen et al. 2025 use ratios of mean magnitudes. Ratios per channel are folded into the layer before the cut, as in the
        # appendix of the paper.
        if options.get("granularity") == "scalar":
            return Repair(identity * (np.abs(post).sum() / np.abs(pre).sum()))
        ratio = np.abs(post).mean(0) / np.abs(pre).mean(0)
        return Repair(np.diag(ratio), branches=(0, 1)) if start else Repair(np.diag(ratio))
    if name.startswith("linearpatch"):
        # lib/pruning.py and lib/recovery.py of the paper's repository: get_scale_params, compute_linear_patch_multi.
        turn = hadamard(pre.shape[1]) if name.endswith("rotate") else identity
        if options.get("boundary") == "layer":
            scale = np.abs(post).mean(0) / (np.abs(pre).mean(0) + 1e-8)
        else:
            pairs = zip(case.at[start][:fitted], case.at[end][:fitted])
            scale = np.mean([np.abs(y @ turn).mean(0) / np.abs(x @ turn).mean(0) for x, y in pairs], axis=0)
        return Repair(turn @ np.diag(scale) @ turn.T)
    if name.startswith("replaceme"):
        middle = rows(case.middle[start - 1], fitted)
        branch, target = pre - middle, post - middle
        matrix = least_squares(branch, target, options.get("alpha", 0)) if name.endswith("ls") else None
        return Repair(by_cosine(branch, target, options) if matrix is None else matrix, branches=(1,))
    if name == "affine":
        mean, shift = pre.mean(0), delta.mean(0)
        matrix = least_squares(pre - mean, delta - shift, 1e-6)
        return Repair(identity + matrix, shift - mean @ matrix)
    if name == "mean":
        return Repair(identity, delta.mean(0))
    if options.get("input") == "normed":
        # Use the input norm of the first removed layer. OLMo-2 has no input norm, so the norm has no weight there.
        weight = case.backbone.weights.get(f"model.layers.{start}.input_layernorm.weight", 1.0)
        norm = lambda x: case.backbone.norm(x, weight)
        normed = norm(pre)
        if not options.get("bias"):
            return Repair(least_squares(normed, delta, 1e-6), norm=norm)
        matrix = least_squares(normed - normed.mean(0), delta - delta.mean(0), 1e-6)
        return Repair(matrix, delta.mean(0) - normed.mean(0) @ matrix, norm=norm)
    if name == "rank":
        return Repair(identity + low_rank(pre, delta, options.get("rank", 32)))
    if name == "sequential" and earlier:
        # The input comes from the model as repaired so far. The target is that of the dense model.
        repaired = []
        for x in case.at[earlier[0][0][0]][:fitted]:
            for ((_, stop), repair), upto in zip(earlier, [*(of[0][0] for of in earlier[1:]), start]):
                x = repair(x)
                for layer in range(stop, upto):
                    x = case.backbone.half(1, layer, case.backbone.half(0, layer, x))
            repaired.append(x)
        pre = np.concatenate(repaired)
        return Repair(identity + least_squares(pre, post - pre, 1e-6))
    if options.get("solver") == "svd":
        # Pseudoinverse without singular values below 1e-6 of the largest, like torch.linalg.svd in the appendix of the paper.
        return Repair(identity + np.linalg.pinv(pre, rcond=1e-6) @ delta)
    if options.get("ridge") == "auto":
        return Repair(identity + chosen_ridge(pre, delta))
    return Repair(identity + least_squares(pre, delta, options.get("ridge", 1e-6)))


ALL = ("none", "prune-and-comp", "replaceme-ls", "replaceme-cos")


def sequences(name, options, one_block):
    """Returns the number of sequences used (main.py of the paper's repository). LinearPatch uses all sequences if the criterion
    removes one block, and otherwise only those for operators."""
    if name.startswith("linearpatch"):
        return SEQUENCES if one_block and options.get("boundary") != "layer" else OPERATOR
    return SEQUENCES if name in ALL else OPERATOR


def error(case, repair, span):
    """Returns the mean of |X̂ − X_post| over all sequences, where X̂ is the repair applied to the dense stream."""
    start, end = span
    off = []
    for index in range(SEQUENCES):
        pre, post = case.at[start][index], case.at[end][index]
        if repair is None:
            ours = pre
        elif not repair.branches:
            ours = repair(pre)
        elif repair.branches == (1,):
            middle = case.middle[start - 1][index]
            ours = middle + (pre - middle) @ repair.matrix
        else:
            edit = np.diag(repair.matrix)
            ours = case.backbone.half(1, start - 1, case.backbone.half(0, start - 1, case.at[start - 1][index], edit), edit)
        off.append(np.abs(ours - post))
    return float(np.mean(off))


def probe(size):
    return np.cos(np.arange(size) * 0.7)


def recovery(case, name, options, removed):
    spans = regions(removed)
    one_block = len(spans) == 1
    if options.get("boundary") == "layer":
        spans = [(layer, layer + 1) for layer in removed]
    fitted = sequences(name, options, one_block)
    found, earlier, stream, edits = [], [], {}, {}
    for span in spans:
        repair = solve(case, name, options, span, fitted, earlier)
        of = {"span": span, "mae": error(case, repair, span)}
        earlier.append((span, repair))
        found.append(of)
        if repair is None:
            continue
        size = len(repair.matrix)
        # The image of one vector and the norm suffice to distinguish matrices.
        of["probe"] = (probe(size) @ repair.matrix).tolist()
        of["norm"] = float(np.linalg.norm(repair.matrix))
        if repair.bias is not None:
            of["bias"] = repair.bias.tolist()
        before = max((layer for layer in range(span[0]) if layer not in removed), default=None)
        if not repair.branches or before is None:
            stream[span[0]] = repair
            continue
        for which in repair.branches:
            diagonal = name == "prune-and-comp"
            own = np.diag(repair.matrix) if diagonal else repair.matrix
            known = edits.get((before, which))
            edits[before, which] = own if known is None else known * own if diagonal else known @ own
    return {
        "name": name, "options": options, "removed": removed, "fitted": fitted, "boundaries": found,
        "perplexity": case.perplexity(set(removed), stream, edits),
    }


LAYER = {"boundary": "layer"}
COSINE = {"learning_rate": 0.001, "epochs": 2, "batch": 64}
METHODS = [
    ("none", {}),
    ("prune-and-comp", {}), ("prune-and-comp", {"granularity": "scalar"}), ("prune-and-comp", LAYER),
    ("replaceme-ls", {}), ("replaceme-ls", {"alpha": 10.0}), ("replaceme-ls", {"alpha": 10.0, **LAYER}),
    ("replaceme-cos", COSINE), ("replaceme-cos", {**COSINE, "seed": 5}),
    ("replaceme-cos", {**COSINE, "order": "sequential"}), ("replaceme-cos", {**COSINE, **LAYER}),
    ("linearpatch-diag", {}), ("linearpatch-diag", LAYER), ("linearpatch-rotate", {}), ("linearpatch-rotate", LAYER),
    ("ghosted", {}), ("ghosted", LAYER), ("ghosted", {"solver": "svd"}), ("ghosted", {"ridge": 10.0}), ("ghosted", {"ridge": "auto"}),
    ("ghosted", {"input": "normed"}), ("ghosted", {"input": "normed", "bias": True}), ("ghosted", {"input": "normed", **LAYER}),
    ("affine", {}), ("affine", LAYER), ("mean", {}), ("mean", LAYER),
    ("rank", {}), ("rank", {"rank": 8}), ("rank", {"rank": 8, **LAYER}),
    ("sequential", {}), ("sequential", LAYER),
]  # fmt: skip
# The cuts are one block, two separate layers, and a cut at layer 0, which has no earlier layer to fold a map into.
CUTS = [[1, 2], [1, 3], [0, 2]]


# Settings of the paper's appendix D, as in LinearPatch: AdamW, one sequence per step, the teacher's most likely tokens.
RATE, DECAY, LIKELIEST = 1e-4, 1e-4, 100


def training(case, name, removed):
    """Trains `x·W` at a cut of one block by distillation, from `W = I`, with one step per calibration sequence. The loss is the
    Kullback-Leibler divergence from the teacher over its most likely tokens, renormalized over them, averaged over positions. The
    stream before the cut comes from `case`. transformers computes the layers after it."""
    start, end = removed[0], removed[-1] + 1
    model = AutoModelForCausalLM.from_pretrained(ARCH / name, dtype=torch.float64, attn_implementation="eager")
    model.eval().requires_grad_(False)
    size = model.config.hidden_size
    matrix = torch.eye(size, dtype=torch.float64, requires_grad=True)
    adam = torch.optim.AdamW([matrix], lr=RATE, weight_decay=DECAY)
    entering = {}
    hooks = [
        model.model.layers[end].register_forward_pre_hook(lambda _, given: (entering["x"] @ matrix, *given[1:])),
    ]
    found = []
    for tokens, pre, last in zip(case.tokens, case.at[start], case.at[-1]):
        teacher = torch.tensor(case.backbone.logits(last))
        kept = teacher.topk(LIKELIEST, dim=-1).indices
        entering["x"] = torch.tensor(pre)[None]
        student = model(torch.tensor(tokens)[None], use_cache=False).logits[0]
        student, teacher = (torch.log_softmax(of.gather(1, kept), -1) for of in (student, teacher))
        loss = (teacher.exp() * (teacher - student)).sum() / len(tokens)
        adam.zero_grad()
        loss.backward()
        adam.step()
        found.append(loss.item())
    for hook in hooks:
        hook.remove()
    trained = matrix.detach().numpy()
    # Record the change of the matrix, which is small compared with the identity.
    change = trained - np.eye(size)
    return {
        "removed": removed, "losses": found, "probe": (probe(size) @ change).tolist(), "norm": float(np.linalg.norm(change)),
        "perplexity": case.perplexity(set(removed), {start: Repair(trained)}, {}),
    }


# Adam's first steps depend on the signs of gradients, which small errors can flip if a gradient is nearly zero. The effect is not
# proportional to the error, so it is measured for errors of the size of each float type.
SIZES = (1e-7, 5e-3, 4e-2)


def trainings(case, name):
    found = []
    for removed in ([1], [1, 2]):
        exact = training(case, name, removed)
        others = [(off, training(case.disturbed(off), name, removed)) for off in SIZES]
        apart = lambda key, other: float(np.linalg.norm(np.subtract(exact[key], other[key])) / np.linalg.norm(exact[key]))
        largest = lambda key: max(1.0, *(apart(key, other) / off for off, other in others))
        exact["moves"] = {key: largest(key) for key in ("losses", "probe", "norm", "perplexity")}
        found.append(exact)
    return found


def released():
    """Returns prefixes of Shortened LLaMA's published orders (data/released_orders.csv, from their repository)."""
    found = []
    with open(ROOT / "data/released_orders.csv", newline="") as file:
        for row in csv.DictReader(file):
            order = [int(layer) for layer in row["order"].split()]
            assert sorted(order) == list(range(32)), row
            for depth in (1, 7, 10, len(order)):
                options = {"order": "released", "backbone": row["backbone"], "score": row["score"]}
                removed = [layer for layer in range(32) if order.index(layer) < depth]
                found.append({"options": options, "layers": 32, "depth": depth, "removed": removed})
    return found


# Relative error of the streams for `moves`. It is small compared with differences between methods, and large compared with f64
# rounding.
OFF = 1e-7


def moves(exact, other):
    """Adds the amplification of errors in the activations to a result, at least 1. It measures the conditioning of the problem,
    which limits the accuracy of any solver."""
    apart = lambda a, b: float(np.linalg.norm(np.subtract(a, b)) / np.linalg.norm(a)) / OFF
    for of, disturbed in zip(exact.get("boundaries", []), other.get("boundaries", [])):
        of["moves"] = max([1.0, *(apart(of[key], disturbed[key]) for key in ("probe", "norm", "mae", "bias") if key in of)])
    if "perplexity" in exact:
        exact["moves"] = max(1.0, apart(exact["perplexity"], other["perplexity"]))
    elif exact["scores"]:
        values = lambda of: [score for _, score in of["scores"]]
        exact["moves"] = max(1.0, apart(values(exact), values(other)))
    return exact


def check(backbone, name):
    """Checks the forward pass against transformers."""
    of = tensors(ARCH / name / "forward.safetensors")
    for tokens, logits in zip(of["input_ids"], of["logits"]):
        ours = backbone.logits(backbone.streams(tokens)[0][-1])
        off = np.linalg.norm(ours - logits) / np.linalg.norm(logits)
        assert off < 1e-5, f"{name}: logits differ by {off:e}"


def rounded(value):
    """Rounds to nine significant digits, which exceeds the precision of f32."""
    if isinstance(value, float):
        return float(f"{value:.9g}")
    if isinstance(value, dict):
        return {key: rounded(of) for key, of in value.items()}
    return [rounded(of) for of in value] if isinstance(value, (list, tuple)) else value


def main():
    backbones = {}
    for name in ("llama-gqa", "olmo2"):
        case = Case(name)
        check(case.backbone, name)
        disturbed, repairs = case.disturbed(OFF), []
        for removed in CUTS:
            for method, options in METHODS:
                if method.startswith("replaceme") and removed[0] == 0:
                    continue
                repairs.append(moves(*(recovery(of, method, options, removed) for of in (case, disturbed))))
        picked = [moves(*pair) for pair in zip(criteria(case), criteria(disturbed))]
        trained = trainings(case, name)
        backbones[name] = {"criteria": picked, "recoveries": repairs, "trainings": trained}
    case = {
        "calibration": case.tokens.tolist(), "operator_sequences": OPERATOR, "windows": case.windows.tolist(),
        "released": released(), "backbones": backbones,
    }
    text = json.dumps(rounded(case))
    # Write one method per line.
    text = text.replace('{"name": ', '\n{"name": ').replace('{"options": ', '\n{"options": ').replace('{"removed": ', '\n{"removed": ')
    (ROOT / "tests/fixtures/methods.json").write_text(text + "\n")


main()
