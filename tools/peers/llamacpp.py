"""Benchmarks against llama.cpp, with `llama-perplexity` on the same text and with `llama-batched-bench`.

llama-perplexity scores consecutive windows, and predicts only the second half of each. If the tokenizer adds a first token, this
token replaces the first one of each window. ghostlab does the same here.
"""

import json
import math
import os
import shutil
import struct
import subprocess
import sys
import time
from dataclasses import dataclass
from importlib.util import find_spec
from itertools import accumulate
from pathlib import Path

from bench import LOSS, LOSS_BF16, TINY, Differs, Row, difference, fastest_batch, request_round
from text import join_rows, random_wide, text_file, tokenize_windows

HOW = "set LLAMA_CPP to the source folder of llama.cpp, and build llama-perplexity in its build/bin or put it on PATH"
# llama.cpp's contexts are multiples of this number of tokens.
LEAST = 256
# Batch size, micro-batch size, and whether to use flash attention.
OPTIONS = [(512, 512, "off"), (512, 512, "on"), (2048, 512, "on"), (2048, 2048, "on")]


@dataclass
class Peer:
    """llama.cpp or a fork of it. `sources` is the source folder of llama.cpp, whose converter creates the models for both."""

    name: str
    sources: str
    perplexity: Path
    # Type of the KV cache, which is f32 like everything else if the peer supports it.
    kept_in: str = "f32"

    @property
    def batched(self):
        return self.perplexity.with_name("llama-batched-bench")


def find_llama_cpp():
    """Returns llama.cpp and None, or None and the reason why it is missing."""
    sources = os.environ.get("LLAMA_CPP")
    if not sources:
        return None, "LLAMA_CPP is not set"
    if not Path(sources, "convert_hf_to_gguf.py").is_file():
        return None, f"{sources} has no convert_hf_to_gguf.py"
    built = Path(sources, "build/bin/llama-perplexity")
    program = built if built.is_file() else shutil.which("llama-perplexity")
    if not program:
        return None, f"llama-perplexity is neither {built} nor on PATH"
    if not find_spec("sentencepiece"):
        return None, "its converter needs the Python package sentencepiece"
    return Peer("llama.cpp", sources, Path(program)), None


def convert(sources, folder, out, kind="f32"):
    """Converts a folder to a GGUF file with llama.cpp's converter."""
    script = Path(__file__).with_name("to_gguf.py")
    done = subprocess.run([sys.executable, script, sources, folder, out, kind], capture_output=True, text=True)
    if done.returncode:
        raise RuntimeError(f"llama.cpp's converter rejects {folder}: {done.stdout}{done.stderr}")
    return out


class Perplexity:
    """Call of `llama-perplexity` on a model and a text."""

    def __init__(self, peer, model, file, count, length, threads):
        self.count, self.length = count, length
        self.command = [peer.perplexity, "-m", model, "-f", file, "--no-escape", "-c", length, "--chunks", count]
        self.command += ["-t", threads, "-tb", threads, "-ctk", peer.kept_in, "-ctv", peer.kept_in]

    def run(self, *more):
        """Returns the seconds from the tokenized text to the result, and the perplexity up to each window."""
        command = [str(word) for word in [*self.command, *more]]
        for _ in range(8):
            began = ended = None
            said, found = [], []
            with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True) as process:
                for line in process.stdout:
                    said.append(line)
                    if "calculating perplexity over" in line:
                        began = time.perf_counter()
                    if line.startswith("[1]"):
                        found = [float(word.split("]")[1]) for word in line.strip().strip(",").split(",")]
                    if "Final estimate" in line:
                        ended = time.perf_counter()
            if process.returncode == 0 and began and ended and len(found) == self.count:
                return ended - began, found
            # The program logs in a thread, and may exit before it has written the last lines. Try again in that case.
            if process.returncode:
                break
        raise RuntimeError(f"{' '.join(command)}\nexit code {process.returncode}\n{''.join(said)}")

    def with_options(self, options):
        batch, together, fused = options
        return self.run("-b", max(batch, self.length), "-ub", max(together, self.length), "-fa", fused)

    def tokens(self, file):
        """Returns llama.cpp's tokens of the text. They precede the logits in its output file."""
        self.run("--kl-divergence-base", file)
        with open(file, "rb") as logits:
            magic, length, _, count = struct.unpack("<8siii", logits.read(20))
            if (magic, length, count) != (b"_logits_", self.length, self.count):
                raise RuntimeError(f"{file}: unexpected header {magic} {length} {count}; llama.cpp may have changed the format")
            ids = struct.unpack(f"<{count * length}i", logits.read(4 * count * length))
        Path(file).unlink()
        return [list(ids[start : start + length]) for start in range(0, count * length, length)]


class Side:
    """Folder and text on both sides, with the same tokens and predictions. `kind` is the weight type of llama.cpp. If it is not f32,
    ghostlab multiplies in bf16."""

    def __init__(self, bench, peer, backbone, file, count, length, kind="f32"):
        from transformers import AutoTokenizer

        self.bench = bench
        folder = bench.create_folder("llamacpp/side")
        (folder / "text.txt").write_text(join_rows(file))
        model = convert(peer.sources, backbone, folder / "model.gguf", kind)
        self.peer = Perplexity(peer, model, folder / "text.txt", count, length, bench.threads)
        ids = tokenize_windows(file, backbone, count, length)
        if self.peer.tokens(folder / "logits") != ids:
            raise Differs(f"{backbone}: llama.cpp tokenizes the text differently")
        # llama.cpp begins every window with the tokens that the tokenizer puts before a text.
        first = AutoTokenizer.from_pretrained(backbone)("")["input_ids"]
        (folder / "windows.json").write_text(json.dumps([first + window[len(first) :] for window in ids]))
        self.driver = bench.start_driver("halves", backbone, folder / "windows.json", "f32" if kind == "f32" else "bf16")

    def ours(self):
        said = request_round(self.driver)
        # llama.cpp reports the running mean after each window.
        return said["seconds"], [sum / (place + 1) for place, sum in enumerate(accumulate(said["losses"]))]

    def theirs(self, options):
        seconds, perplexities = self.peer.with_options(options)
        return seconds, [math.log(of) for of in perplexities]


def llamacpp(bench):
    peer, why = find_llama_cpp()
    if why:
        print(f"llamacpp: skipped: {why} ({HOW})", flush=True)
        return
    yield from rows(bench, "llamacpp", peer)
    yield from exports(bench, peer)


def ik(bench):
    """Benchmarks against ik_llama.cpp, a fork with different kernels, on models from llama.cpp's converter."""
    folder = os.environ.get("IK_LLAMA_CPP", "")
    program = Path(folder, "build/bin/llama-perplexity")
    peer, why = find_llama_cpp()
    if not folder or not program.is_file():
        why = f"{program} does not exist" if folder else "IK_LLAMA_CPP is not set"
    if why:
        print(f"ik: skipped: {why} (set IK_LLAMA_CPP to the folder where it is built; its models need llama.cpp: {HOW})", flush=True)
        return
    yield from rows(bench, "ik", Peer("ik_llama.cpp", peer.sources, program, "f16"))


def rows(bench, part, peer):
    for kind in bench.select_types(bench.size(("f32", "bf16", "q8_0"), ("f32", "q8_0"))):
        yield halves(bench, part, peer, kind)
    yield from decoded(bench, part, peer)


def halves(bench, part, peer, kind):
    """Benchmarks the dense forward pass with the same predictions on both sides."""
    count, length = bench.size((64, 512), (4, LEAST))
    side = Side(bench, peer, bench.backbone, text_file(bench.real, "test"), count, length, kind)
    options = fastest_batch(OPTIONS[: bench.size(len(OPTIONS), 1)], side.theirs)
    side.ours()
    seconds, (mine, other) = bench.run_rounds(side.ours, lambda: side.theirs(options))
    side.driver.communicate()
    tolerance = LOSS if kind == "f32" else LOSS_BF16
    apart = difference("the mean loss up to each window", mine, other, tolerance)
    batch, together, fused = options
    notes = [
        f"perplexity {math.exp(mine[-1]):.4f} and {math.exp(other[-1]):.4f}",
        f"{peer.name} {version(peer.perplexity)} with -b {batch} -ub {together} -fa {fused}, keys and values in {peer.kept_in}",
    ]
    ours = "f32" if kind == "f32" else "bf16"
    what, said = f"{ours}, second halves of {count} windows of {length}", f"losses {apart:.0e} ({tolerance:.0e})"
    return Row(part, what, f"{peer.name}'s llama-perplexity in {kind}", *seconds, said, "", notes, count * length)


def decoded(bench, part, peer):
    """Benchmarks generation against `llama-batched-bench`, which uses its own tokens, so results are not compared."""
    if not peer.batched.is_file():
        print(f"{part}: generation skipped: {peer.batched} is not built", flush=True)
        return
    length, new = bench.size((64, 64), (8, 4))
    kinds = bench.select_types(bench.size(("f32", "bf16", "q8_0"), ("f32",)))
    prompts = tokenize_windows(text_file(bench.real, "test"), bench.backbone, bench.size(16, 2), length)
    for kind in kinds:
        for batch in bench.size((1, 16), (2,)):
            yield decoded_in(bench, part, peer, bench.backbone, (prompts[:batch], new), kind)
    if bench.quick:
        return
    folder = random_wide(bench)
    for file in ("tokenizer.json", "tokenizer_config.json"):
        # The converter requires a tokenizer, and pads it to the vocabulary size of the model.
        shutil.copy(TINY / "llama" / file, folder)
    for kind in kinds:
        yield decoded_in(bench, part, peer, folder, ([[(at * 31) % 4096 for at in range(16)]], 16), kind)


def decoded_in(bench, part, peer, backbone, given, kind):
    """Benchmarks generation for all prompts together."""
    prompts, new = given
    folder, batch, length = bench.create_folder("llamacpp-decoded"), len(prompts), len(prompts[0])
    model = convert(peer.sources, backbone, folder / "model.gguf", kind)
    (folder / "prompts.json").write_text(json.dumps(prompts))
    ours_in = "f32" if kind == "f32" else "bf16"
    driver = bench.start_driver("generate", backbone, folder / "prompts.json", ours_in, new, "")
    command = [peer.batched, "-m", model, "-npp", length, "-ntg", new, "-npl", batch, "-c", 2 * batch * (length + new)]
    command += ["-b", 2048, "-ub", 2048, "-t", bench.threads, "-tb", bench.threads]
    command += ["-ctk", peer.kept_in, "-ctv", peer.kept_in, "-fa", "on"]

    def ours():
        return request_round(driver, str(batch))["seconds"], None

    def theirs():
        # The program logs in a thread, and may exit before it has written the last lines. Try again in that case.
        for _ in range(8):
            done = subprocess.run([str(word) for word in command], capture_output=True, text=True)
            said = (done.stdout + done.stderr).splitlines()
            # `| PP | TG | B | N_KV | T_PP s | S_PP t/s | T_TG s | …`
            cells = [line[line.index("|") :].split("|")[1:-1] for line in said if line.count("|") == 11]
            rows = [row for row in cells if row[0].strip().isdigit()]
            if done.returncode or len(rows) == 1:
                break
        if done.returncode or len(rows) != 1:
            raise RuntimeError(f"{' '.join(map(str, command))}\n{done.stdout}{done.stderr}")
        return float(rows[0][4]) + float(rows[0][6]), None

    ours(), theirs()
    seconds, _ = bench.run_rounds(ours, theirs)
    driver.communicate()
    channels = json.loads((Path(backbone) / "config.json").read_text())["hidden_size"]
    what = f"{batch} prompts of {length} tokens, {new} new each, C = {channels}, {ours_in}"
    notes = ["llama-batched-bench takes tokens of its own"]
    if peer.kept_in != "f32":
        notes.append(f"keys and values in {peer.kept_in} there")
    return Row(part, what, f"{peer.name} in {kind}", *seconds, "", "", notes, batch * new)


# Recoveries that fold into the weights, and one that does not.
PLAIN, BESIDE = ["none", "prune-and-comp", {"name": "replaceme-ls", "alpha": 10}], "ghosted"


def exports(bench, peer):
    """Checks which of our exports the converter accepts, and whether the results agree."""
    names = ["llama", "qwen3", "olmo2"]
    folder, test = bench.create_folder("llamacpp-exports"), text_file(False, "test")
    whole = {
        "name": "exports",
        "backbones": {name: {"path": str(TINY / name)} for name in names},
        "corpora": {
            "train": {"path": str(text_file(False, "train")), "rule": "wikitext2"},
            "test": {"path": str(test), "rule": "wikitext2", "limit": 1},
        },
        "backbone": names[: bench.size(3, 1)],
        "criterion": "llm-streamline",
        "depth": 4,
        "recovery": [*PLAIN, BESIDE],
        "calibration": {"corpus": "train", "sequences": 16, "length": 128},
        "evaluate": {"perplexity": {"corpus": "test", "length": 64}},
    }
    (folder / "grid.yaml").write_text(json.dumps(whole))
    (folder / "store").mkdir()
    place = ["--to", folder / "out", "--store", folder / "store", "--dtype", "f32"]
    bench.run_program("export", folder / "grid.yaml", *place)
    apart, taken, refused = [], 0, 0
    for exported in sorted((folder / "out").iterdir()):
        if (exported / "modeling_ghostlab.py").exists():
            said = rejection_reason(peer.sources, exported, folder / "refused.gguf")
            if "is not supported" not in said:
                raise Differs(f"{exported.name}: llama.cpp's converter must reject the folder, but printed: {said}")
            refused += 1
            continue
        side = Side(bench, peer, exported, test, 4, LEAST)
        mine, other = side.ours()[1], side.theirs(OPTIONS[0])[1]
        side.driver.communicate()
        apart.append(difference(f"{exported.name}: the mean loss up to each window", mine, other, LOSS))
        taken += 1
    what = f"{taken} plain exports of {', '.join(whole['backbone'])} that its converter takes; {refused} with operators, refused by class"
    yield Row("llamacpp", what, "llama-perplexity", [], [], f"losses {max(apart):.0e} ({LOSS:.0e})")


def rejection_reason(sources, folder, out):
    """Returns the reason why the converter rejects a folder, or an empty string if it accepts it."""
    try:
        convert(sources, folder, out)
    except RuntimeError as error:
        return str(error)
    return ""


def version(program):
    """Returns the version, such as `0.5.0-dev`, without the commit, which depends on the build folder."""
    said = subprocess.run([program, "--version"], capture_output=True, text=True)
    line = next((line for line in (said.stdout + said.stderr).splitlines() if line.startswith("version: ")), "version: ?")
    return line.split()[1]
