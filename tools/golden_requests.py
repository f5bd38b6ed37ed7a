"""Records the requests that lm-evaluation-harness builds from its definitions on synthetic rows: `golden_requests.py OUT`.

Writes OUT/tasks (the path of the folder with the definitions), OUT/golden.json (the requests of each task and setting),
OUT/translated.json (texts with their sacrebleu scores) and OUT/rows/DATASET/SPLIT.json. The rows are generated in the schema of
each dataset. Nothing is downloaded.
"""

import json
import pathlib
import random
import sys

import datasets
import sacrebleu
import lm_eval.tasks
from lm_eval.tasks import TaskManager
from transformers.utils.chat_template_utils import _compile_jinja_template

WORDS = "the river bends north of an old mill, where Ana's boat waits; nobody sees (yet) how 3.5 % of \"it\" sinks é ß 東 — ok".split(" ")
CHAT = (
    "{%- for message in messages %}{% if loop.first and message['role'] != 'system' %}<<none>>{% endif %}"
    "<|{{ message['role'] }}|>{{ message['content'] | trim }}<|end|>\n{% endfor %}"
    "{% if add_generation_prompt %}<|assistant|>{% endif %}"
)


def text(draw, least=2, most=9):
    return " ".join(draw.choice(WORDS) for _ in range(draw.randint(least, most)))


def four_choices(draw, labels="ABCD"):
    return {"text": [text(draw, 1, 4) for _ in labels], "label": list(labels)}


# Row generators by dataset. Their arguments are a random number generator and the index of the row.
ROWS = {
    "allenai/ai2_arc": lambda d, i: {"id": f"q{i}", "question": text(d), "choices": four_choices(d), "answerKey": d.choice("ABCD")},
    "allenai/openbookqa": lambda d, i: {"question_stem": text(d), "choices": four_choices(d), "answerKey": d.choice("ABCD")},
    "allenai/sciq": lambda d, i: {
        "support": " " + text(d), "question": text(d), "correct_answer": text(d, 1, 3),
        **{f"distractor{k}": text(d, 1, 3) for k in (1, 2, 3)},
    },
    "cais/mmlu": lambda d, i: {"question": f" {text(d)} ", "choices": four_choices(d)["text"], "answer": d.randrange(4), "subject": "made up"},
    "tau/commonsense_qa": lambda d, i: {"question": text(d), "choices": four_choices(d, "ABCDE"), "answerKey": d.choice("ABCDE")},
    "openai/gsm8k": lambda d, i: {"question": text(d), "answer": f"{text(d)}\n#### {d.randrange(900)}"},
    "mandarjoshi/trivia_qa": lambda d, i: {"question": text(d), "answer": {"aliases": [text(d, 1, 2) for _ in range(3)], "value": text(d, 1, 2)}},
    "google-research-datasets/nq_open": lambda d, i: {"question": text(d), "answer": [text(d, 1, 2) for _ in range(d.randint(1, 3))]},
    "nyu-mll/blimp": lambda d, i: {"sentence_good": text(d), "sentence_bad": text(d)},
    "EleutherAI/lambada_openai": lambda d, i: {"text": text(d, 5, 12)},
    "facebook/belebele": lambda d, i: {
        "flores_passage": text(d, 9, 20), "question": text(d), "correct_answer_num": d.choice("1234"),
        **{f"mc_answer{k}": text(d, 1, 4) for k in (1, 2, 3, 4)},
    },
    "facebook/xnli": lambda d, i: {"premise": text(d), "hypothesis": text(d), "label": d.randrange(3)},
    "SaylorTwift/bbh": lambda d, i: {"input": text(d), "target": d.choice(["True", "False", "(A)", "7"])},
    "EleutherAI/pile": lambda d, i: {"text": text(d, 12, 40)},
    "EleutherAI/asdiv": lambda d, i: {"body": text(d), "question": text(d), "answer": f"{d.randrange(90)} (boats)"},
    "nyu-mll/glue": lambda d, i: {
        "sentence": text(d), "sentence1": text(d), "sentence2": text(d), "question1": text(d), "question2": text(d),
        "question": text(d), "premise": text(d), "hypothesis": text(d), "label": d.randrange(2), "idx": i,
    },
    "aps/super_glue": lambda d, i: {
        "premise": text(d), "hypothesis": text(d), "sentence1": "a " + text(d), "sentence2": text(d), "start1": 0, "end1": 1,
        "passage": text(d, 9, 20), "question": text(d), "label": d.randrange(2), "idx": i,
    },
    "EleutherAI/unscramble": lambda d, i: {"context": text(d), "completion": text(d, 1, 1)},
    "Rowan/hellaswag": lambda d, i: {"ctx": text(d), "endings": four_choices(d)["text"], "label": "1"},
    "allenai/swag": lambda d, i: {"startphrase": text(d), **{f"ending{k}": text(d, 1, 5) for k in range(4)}, "label": d.randrange(4)},
    "EleutherAI/headqa": lambda d, i: {"qtext": text(d), "answers": [{"aid": k + 1, "atext": text(d, 1, 4)} for k in range(4)], "ra": d.randint(1, 4)},
    "skt/kobest_v1": lambda d, i: {"paragraph": text(d, 9, 14), "question": text(d), "label": d.randrange(2)},
}
# These tasks cover all output types, and few-shot examples from another split, from the definition and from the first rows. They
# also cover several targets and contexts, answers as numbers, letters and texts, descriptions, delimiters, and included files.
NAMES = """arc_easy arc_challenge openbookqa sciq commonsense_qa headqa_en headqa_es swag
mmlu_abstract_algebra mmlu_anatomy mmlu_virology mmlu_abstract_algebra_continuation mmlu_anatomy_generative
gsm8k gsm8k_cot gsm8k_cot_zeroshot gsm8k_cot_llama triviaqa nq_open
blimp_adjunct_island blimp_wh_island blimp_passive_1 lambada_openai asdiv
belebele_ces_Latn belebele_deu_Latn belebele_eng_Latn xnli_en xnli_de xnli_zh
bbh_cot_fewshot_boolean_expressions bbh_cot_fewshot_navigate bbh_fewshot_boolean_expressions bbh_fewshot_snarks
bbh_zeroshot_boolean_expressions bbh_cot_fewshot_snarks
pile_arxiv pile_enron pile_github cola mrpc qqp rte sst2 wnli boolq wic
anagrams1 anagrams2 cycle_letters random_insertion reversed_words""".split()
SPLITS = {"train": 11, "validation": 6, "test": 7, "dev": 8}
SYSTEM = "You answer in few words."


def rows(path, split):
    draw = random.Random(f"{path} {split}")
    return [ROWS[path](draw, place) for place in range(SPLITS[split])]


def to_json(value):
    """Converts an argument to a JSON value."""
    return value if isinstance(value, (str, dict)) else str(value)


def build_requests(task, shots, chat, render):
    task.set_config(key="num_fewshot", value=0 if task.config.num_fewshot == 0 else shots)
    task.set_fewshot_seed(seed=1234)
    task.build_all_requests(
        limit=5,
        rank=0,
        world_size=1,
        system_instruction=SYSTEM if chat else None,
        apply_chat_template=chat,
        fewshot_as_multiturn=chat,
        chat_template=render if chat else None,
    )
    return [
        {"document": of.doc_id, "index": of.idx, "kind": of.request_type, "arguments": [to_json(part) for part in of.args]}
        for of in task.instances
    ]


def generate_corpora():
    """Generates corpora of references and perturbed copies, with their sacrebleu scores."""
    draw, corpora = random.Random(7), []
    for place in range(60):
        pairs = []
        for _ in range(draw.randint(1, 6)):
            reference = text(draw, 1, 30).split(" ")
            other = [word for word in reference if draw.random() > 0.15]
            for _ in range(draw.randint(0, 4)):
                other.insert(draw.randint(0, len(other)), draw.choice(WORDS))
            cut = draw.randint(0, len(other))
            other = other[cut:] + other[:cut] if draw.random() < 0.5 else other
            pairs.append((" ".join(reference), " ".join(other)))
        references, texts = [[reference for reference, _ in pairs]], [other for _, other in pairs]
        scores = [of(texts, references).score for of in (sacrebleu.corpus_bleu, sacrebleu.corpus_chrf, sacrebleu.corpus_ter)]
        corpora.append({"pairs": pairs, "scores": scores})
    return corpora


def main(out):
    out = pathlib.Path(out)
    (out / "tasks").write_text(str(pathlib.Path(lm_eval.tasks.__file__).parent))

    def load_synthetic(path, name=None, *_, **__):
        return datasets.DatasetDict({split: datasets.Dataset.from_list(rows(path, split)) for split in SPLITS})

    datasets.load_dataset = load_synthetic
    template = _compile_jinja_template(CHAT)

    def render(messages, add_generation_prompt=True):
        if add_generation_prompt:
            return template.render(messages=messages, add_generation_prompt=True)
        # If the last message is a partial answer, the model continues it, so cut off what the template appends.
        whole = template.render(messages=messages, add_generation_prompt=False)
        begun = messages[-1]["content"].strip()
        return whole[: whole.rindex(begun) + len(begun)]

    manager, golden = TaskManager(), []
    for name in NAMES:
        for shots in (0, 5):
            for chat in (False, True):
                # Load the task again, because it remembers its draws.
                (task,) = manager.load([name])["tasks"].values()
                samples = (task.config.fewshot_config.samples if task.config.fewshot_config else None) or ()
                shots = min(shots, len(samples) or shots)
                golden.append({"task": name, "shots": shots, "chat": chat, "requests": build_requests(task, shots, chat, render)})
    (out / "golden.json").write_text(
        json.dumps({"chat": CHAT, "system": SYSTEM, "asked": golden}, ensure_ascii=False)
    )
    (out / "translated.json").write_text(json.dumps(generate_corpora(), ensure_ascii=False))
    for path in ROWS:
        folder = out / "rows" / path
        folder.mkdir(parents=True, exist_ok=True)
        for split in SPLITS:
            (folder / f"{split}.json").write_text(json.dumps(rows(path, split), ensure_ascii=False))
    print(len(golden), "lists of requests,", sum(len(of["requests"]) for of in golden), "requests of", len(NAMES), "definitions")


if __name__ == "__main__":
    main(sys.argv[1])
