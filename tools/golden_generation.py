"""Generates greedily with transformers, in f32, one prompt at a time: `golden_generation.py OUT FOLDER...`.

Writes OUT/INDEX.json for each backbone's folder: a list of prompts, each with its token ids, the generated ids, and the
difference between the two largest logits at each generated token.
"""

import json
import pathlib
import random
import sys

import torch
from transformers import AutoModelForCausalLM

PROMPTS = 16
NEW = 24


def main(out, *folders):
    torch.set_num_threads(2)
    for index, folder in enumerate(folders):
        model = AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
        # Ignore the folder's generation config, so that there are no early stops or penalties.
        model.generation_config = type(model.generation_config)(pad_token_id=0)
        draw, made = random.Random(3), []
        vocabulary = min(model.config.vocab_size, 4000)
        for place in range(PROMPTS):
            ids = [draw.randrange(vocabulary) for _ in range(3 + 5 * place)]
            with torch.no_grad():
                given = torch.tensor([ids])
                of = model.generate(
                    given,
                    attention_mask=torch.ones_like(given),
                    do_sample=False,
                    max_new_tokens=NEW,
                    output_logits=True,
                    return_dict_in_generate=True,
                )
            margins = [float(one.sub(two)) for one, two in (logits[0].topk(2).values for logits in of.logits)]
            made.append({"prompt": ids, "new": of.sequences[0, len(ids) :].tolist(), "margins": margins})
        pathlib.Path(out, f"{index}.json").write_text(json.dumps(made))


if __name__ == "__main__":
    main(*sys.argv[1:])
