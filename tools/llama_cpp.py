"""Calls llama.cpp as a library, for tests/llama_cpp.rs: logits, tokens, generated text.

    python tools/llama_cpp.py logits FILE IDS.json OUT.f32   rows of ids -> all logits, row by row
    python tools/llama_cpp.py tokens FILE LINES.json OUT.json
    python tools/llama_cpp.py generate FILE IDS.json COUNT OUT.json   greedy decoding with the KV cache

The wheel xllamacpp contains the library and exports llama.cpp's C functions, so no compiler is needed. Struct fields are set by
their offsets in xllamacpp 2026.10.11549, after checking their default values.
"""

import ctypes
import json
import struct
import sys
from ctypes import POINTER, Structure, c_bool, c_char_p, c_float, c_int8, c_int32, c_void_p
from pathlib import Path

import xllamacpp


class Params(Structure):
    """Struct passed by value, at least as large as the real one. The calling conventions of x86-64 and aarch64 allow a larger size,
    because they pass it by address or as the last argument on the stack."""

    _fields_ = [("bytes", ctypes.c_uint8 * 512)]

    def set(self, offset, form, value, default=None):
        found = struct.unpack_from(form, self.bytes, offset)[0]
        if default is not None and found != default:
            raise SystemExit(f"unsupported version of llama.cpp: byte {offset} of a struct is {found}, expected {default}")
        struct.pack_into(form, self.bytes, offset, value)


class Batch(Structure):
    _fields_ = [
        ("n_tokens", c_int32),
        ("token", POINTER(c_int32)),
        ("embd", POINTER(c_float)),
        ("pos", POINTER(c_int32)),
        ("n_seq_id", POINTER(c_int32)),
        ("seq_id", POINTER(POINTER(c_int32))),
        ("logits", POINTER(c_int8)),
    ]


def library():
    folder = Path(xllamacpp.__file__).parent
    lib = ctypes.CDLL(str(next(folder.glob("xllamacpp*.so"))))
    for name, result, arguments in [
        ("llama_backend_init", None, []),
        ("llama_log_set", None, [c_void_p, c_void_p]),
        ("llama_model_default_params", Params, []),
        ("llama_context_default_params", Params, []),
        ("llama_model_load_from_file", c_void_p, [c_char_p, Params]),
        ("llama_init_from_model", c_void_p, [c_void_p, Params]),
        ("llama_free", None, [c_void_p]),
        ("llama_model_get_vocab", c_void_p, [c_void_p]),
        ("llama_vocab_n_tokens", c_int32, [c_void_p]),
        ("llama_tokenize", c_int32, [c_void_p, c_char_p, c_int32, POINTER(c_int32), c_int32, c_bool, c_bool]),
        ("llama_batch_init", Batch, [c_int32, c_int32, c_int32]),
        ("llama_batch_free", None, [Batch]),
        ("llama_decode", c_int32, [c_void_p, Batch]),
        ("llama_get_logits_ith", POINTER(c_float), [c_void_p, c_int32]),
    ]:
        function = getattr(lib, name)
        function.restype, function.argtypes = result, arguments
    lib.llama_backend_init()
    return lib


LIB = library()
# Messages of the loader, shown if a file is rejected.
SAID = []
LOG = ctypes.CFUNCTYPE(None, ctypes.c_int, c_char_p, c_void_p)(lambda _, text, __: SAID.append(text.decode(errors="replace")))
LIB.llama_log_set(ctypes.cast(LOG, c_void_p), None)


class Model:
    def __init__(self, path, vocab_only=False):
        params = LIB.llama_model_default_params()
        params.set(16, "<i", 0, default=-1)  # n_gpu_layers
        params.set(72, "<?", vocab_only, default=False)
        params.set(74, "<?", False, default=True)  # use_extra_bufts: disable repacked weights, which round activations
        self.model = LIB.llama_model_load_from_file(path.encode(), params)
        if not self.model:
            raise SystemExit(f"llama.cpp cannot load {path}:\n{''.join(SAID[-20:])}")
        self.vocab = LIB.llama_model_get_vocab(self.model)
        self.size = LIB.llama_vocab_n_tokens(self.vocab)

    def tokens(self, text):
        text = text.encode()
        room = (c_int32 * (len(text) + 8))()
        count = LIB.llama_tokenize(self.vocab, text, len(text), room, len(room), True, False)
        if count < 0:
            raise SystemExit(f"llama.cpp returns {-count} tokens for {len(text)} bytes, more than the buffer holds")
        return list(room[:count])

    def context(self, tokens):
        """Creates a context for `tokens` tokens, with a KV cache in f32."""
        params = LIB.llama_context_default_params()
        params.set(0, "<I", max(32, tokens), default=512)  # n_ctx
        params.set(4, "<I", max(32, tokens))  # n_batch
        params.set(8, "<I", max(32, tokens), default=512)  # n_ubatch
        params.set(28, "<i", 2, default=4)  # n_threads
        params.set(32, "<i", 2, default=4)
        params.set(52, "<i", 0, default=-1)  # flash_attn_type: off
        for offset in (104, 108):  # type_k, type_v: f32 instead of f16
            params.set(offset, "<i", 0, default=1)
        context = LIB.llama_init_from_model(self.model, params)
        if not context:
            raise SystemExit(f"llama.cpp cannot create a context for {tokens} tokens:\n{''.join(SAID[-20:])}")
        return context

    def decode(self, context, ids, first=0):
        """Returns the logits at each token as bytes of f32. `first` is the position of the first token."""
        batch = LIB.llama_batch_init(len(ids), 0, 1)
        batch.n_tokens = len(ids)
        for place, token in enumerate(ids):
            batch.token[place], batch.pos[place], batch.n_seq_id[place] = token, first + place, 1
            batch.seq_id[place][0] = 0
            batch.logits[place] = True
        if LIB.llama_decode(context, batch) != 0:
            raise SystemExit("llama.cpp cannot decode")
        found = [ctypes.string_at(LIB.llama_get_logits_ith(context, row), 4 * self.size) for row in range(len(ids))]
        LIB.llama_batch_free(batch)
        return found

    def logits(self, ids):
        """Returns all logits of one sequence as bytes of f32."""
        context = self.context(len(ids))
        found = b"".join(self.decode(context, ids))
        LIB.llama_free(context)
        return found

    def generate(self, ids, count):
        """Returns the ids, continued greedily by `count` tokens."""
        context, new = self.context(len(ids) + count), ids
        for _ in range(count):
            last = self.decode(context, new, first=len(ids) - len(new))[-1]
            row = struct.unpack(f"<{self.size}f", last)
            new = [max(range(len(row)), key=row.__getitem__)]
            ids = ids + new
        LIB.llama_free(context)
        return ids


def main(command, path, *rest):
    if command == "logits":
        model = Model(path)
        Path(rest[1]).write_bytes(b"".join(model.logits(ids) for ids in json.loads(Path(rest[0]).read_text())))
    elif command == "tokens":
        model = Model(path, vocab_only=True)
        lines = json.loads(Path(rest[0]).read_text())
        Path(rest[1]).write_text(json.dumps([model.tokens(line) for line in lines]))
    elif command == "generate":
        ids = Model(path).generate(json.loads(Path(rest[0]).read_text()), int(rest[1]))
        Path(rest[2]).write_text(json.dumps(ids))
    else:
        raise SystemExit(__doc__)


if __name__ == "__main__":
    main(*sys.argv[1:])
