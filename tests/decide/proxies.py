"""What the calibration of `loam decide` trains: a small model on essays, some of which are replaced by noise, scored on fixed essays.

The sides import their documents. The nll of the ends of 100 essays that no
side has is the metric, because sides with other documents hold out other documents.
Documents, tokenizer and mixture are made once per side; a run with another seed is training, export and scores.
Cost: a run takes 10 to 20 s on an idle core, most of it the start of DeepSpeed and of the evaluation.
"""

from __future__ import annotations

import json
import random
import string
import uuid
from pathlib import Path

import yaml

from flows.opened_recipe import Session, open_session
from flows.trials.decide.matched_sides import metric_of, value_of
from flows.trials.seeded_runs import build_missing, finished_run, training_seed, with_training_seed
from tests.conftest import loam
from tests.made.prose import essay

ESSAYS, ITEMS, STEPS = 3000, 100, 60
METRIC = metric_of("evaluate@base/ends/nll")
MODEL = {"num_hidden_layers": 2, "hidden_size": 64, "num_attention_heads": 2, "num_key_value_heads": 2, "intermediate_size": 176,
         "tie_word_embeddings": True}  # fmt: skip


def noise(number: int, length: int) -> str:
    """Words of random letters, of about the length of the text that they replace."""
    draw, words = random.Random(f"noise/{number}"), list[str]()
    while sum(map(len, words)) + len(words) < length:
        words.append("".join(draw.choices(string.ascii_lowercase, k=draw.randint(2, 9))))
    return " ".join(words)


def write_corpus(path: Path, share: float) -> Path:
    """Writes ESSAYS documents, of which a share is noise. Documents keep their ids, and a larger share contains the smaller one."""
    with path.open("w", encoding="utf-8") as file:
        for number in range(ESSAYS):
            text = essay(number)
            if random.Random(f"planted/{number}").random() < share:
                text = noise(number, len(text))
            file.write(json.dumps({"id": str(uuid.uuid5(uuid.NAMESPACE_OID, f"essay/{number}")), "text": text}) + "\n")
    return path


def write_items(path: Path) -> Path:
    """Writes the last sentences of other essays with what comes before them."""
    items = []
    for number in range(ESSAYS, ESSAYS + ITEMS):
        *before, last = essay(number).split(". ")
        items.append({"context": ". ".join(before) + ".", "continuation": last})
    path.write_text("".join(json.dumps(item) + "\n" for item in items), encoding="utf-8")
    return path


def prepare(folder: Path, shares: tuple[float, ...]) -> Path:
    """Imports the corpora into the home `folder`/home and writes the recipe. What is there from an earlier call stays. Returns the recipe."""
    folder.mkdir(parents=True, exist_ok=True)
    home, recipe = folder / "home", folder / "proxy.yaml"
    for share in shares:
        name = corpus(share)
        if not (folder / f"{name}.jsonl").exists():
            unfinished = write_corpus(folder / f"{name}.unfinished.jsonl", share)
            loam("lineage", "import", "decontaminate", str(unfinished), "--provenance", "made for tests", "--as", name, home=home)
            unfinished.rename(folder / f"{name}.jsonl")
    sections = {
        "name": "proxy", "seed": 1, "runtime": {"workers": 2, "cpu_ranks": 1, "micro_batch_size": 8, "eval_batch_size": 32},
        "import": {"decontaminate": corpus(0)}, "benchmarks": {"files": [str(write_items(folder / "ends.jsonl"))], "min_words": 3},
        "train_tokenizer": {"vocab_size": 1024}, "mix": {"seq_len": 128, "max_validation_documents": 20},
        "pretrain": {"model": MODEL, "budget": {"steps": STEPS}, "global_batch_size": 8, "learning_rate": 0.01, "warmup_steps": 6,
                     "eval_every_steps": 0, "checkpoint_every_steps": 0, "max_validation_sequences": 8},
        "evaluate@base": {"generated_tokens": 0},
    }  # fmt: skip
    recipe.write_text(yaml.safe_dump(sections))
    return recipe


def corpus(share: float) -> str:
    """The name of the corpus with a share of noise."""
    return f"noise{100 * share:.0f}percent"


def session(folder: Path, share: float = 0) -> Session:
    """The recipe on one corpus."""
    return open_session(str(folder / "proxy.yaml"), [f"import.decontaminate={corpus(share)}"], str(folder / "home"))


def measured(side: Session, seed: int) -> float:
    """What a training with this seed measures, on the data of the recipe's seed; cached if it was run before."""
    run = with_training_seed(side, seed - training_seed(side))
    made = finished_run(run, METRIC.node, lambda: build_missing(run, run.steps(METRIC.node), "calibration"))
    return value_of(METRIC, made.artifacts)
