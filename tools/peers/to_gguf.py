"""Runs llama.cpp's converter, and identifies the pre-tokenizer of a folder if the converter does not know it.

    python to_gguf.py LLAMA.CPP FOLDER OUT.gguf f32|bf16|q8_0

The converter recognizes pre-tokenizers by a hash over the token ids of a text, which also depends on the vocabulary. It therefore
rejects tokenizers with other vocabularies. This script reads the pre-tokenizer from tokenizer.json, and supports byte-level BPE
with the split of GPT-2. The converter does everything else.
"""

import json
import runpy
import sys
from pathlib import Path


def split_as_gpt2(folder):
    """Returns whether a tokenizer is byte-level BPE with the split of GPT-2 and without a normalizer."""
    whole = json.loads((Path(folder) / "tokenizer.json").read_text())
    splits = whole["pre_tokenizer"] or {}
    plain = splits.get("type") == "ByteLevel" and splits.get("use_regex", True) and not splits.get("add_prefix_space")
    return bool(plain and whole["model"]["type"] == "BPE" and not whole["normalizer"])


def main(sources, folder, out, kind):
    sys.path.insert(0, sources)
    sys.path.insert(1, f"{sources}/gguf-py")
    from conversion.base import TextModel

    known = TextModel.get_vocab_base_pre

    def told(self, tokenizer):
        try:
            return known(self, tokenizer)
        except NotImplementedError:
            if not split_as_gpt2(folder):
                raise
            return "gpt-2"

    TextModel.get_vocab_base_pre = told
    sys.argv = ["convert_hf_to_gguf.py", "--outtype", kind, "--outfile", out, folder]
    runpy.run_path(f"{sources}/convert_hf_to_gguf.py", run_name="__main__")


if __name__ == "__main__":
    main(*sys.argv[1:])
