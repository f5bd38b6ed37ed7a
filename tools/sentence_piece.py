"""Trains a SentencePiece model like those of Llama 2 and Gemma, for tests: python tools/sentence_piece.py LINES.json OUT.json [no-prefix]

The model is trained on every third line. OUT.json contains the model's pieces with scores and kinds (numbered as in GGUF), and the
token ids of every line."""

import io
import json
import sys

import sentencepiece


def kind(model, piece):
    for number, is_it in ((2, model.IsUnknown), (3, model.IsControl), (5, model.IsUnused), (6, model.IsByte)):
        if is_it(piece):
            return number
    return 1


def main(lines, out, *options):
    lines = json.load(open(lines, encoding="utf-8"))
    made = io.BytesIO()
    sentencepiece.SentencePieceTrainer.train(
        sentence_iterator=iter([line for line in lines[::3] if line.strip()]),
        model_writer=made,
        model_type="bpe",
        vocab_size=2000,
        byte_fallback=True,
        character_coverage=0.9995,
        normalization_rule_name="identity",
        remove_extra_whitespaces=False,
        add_dummy_prefix="no-prefix" not in options,
        split_digits=True,
        allow_whitespace_only_pieces=True,
        num_threads=1,
        minloglevel=2,
    )
    model = sentencepiece.SentencePieceProcessor(model_proto=made.getvalue())
    pieces = range(model.GetPieceSize())
    json.dump(
        {
            "tokens": [model.IdToPiece(piece) for piece in pieces],
            "scores": [model.GetScore(piece) for piece in pieces],
            "kinds": [kind(model, piece) for piece in pieces],
            "ids": model.Encode(lines),
        },
        open(out, "w", encoding="utf-8"),
    )


if __name__ == "__main__":
    main(*sys.argv[1:])
