"""Does the better body pay? Models trained on bodies by extract and boilerplate, and on the text of resiliparse's main content rule.

`python -m tests.bench.bench_body_training`: about 30 minutes on two cores. The same recipe runs on the shared crawls (English pages, filtered,
without duplicates) with `extract.engine: visible` and with `resiliparse`. Both sides use one tokenizer, trained on the text by resiliparse, and
train a model of a million parameters on equally many tokens, with three seeds. Measured are bits per byte of the bodies that readers marked on
English pages (bench_engines.py); neither side sees these pages. Each side's text is what it is: one that keeps menus trains on menus.
"""

from __future__ import annotations

import argparse
import math
import statistics
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import yaml

from tests.bench.bench_boilerplate import files
from tests.bench.bench_engines import JudgedPage, judged_pages, judgements, marked_lines
from tests.conftest import loam

SIDES = {"boilerplate": "visible", "resiliparse": "resiliparse"}
SEEDS, STEPS, CONTEXT = (1, 2, 3), 600, 256


def recipe(engine: str, seed: int, steps: int) -> dict[str, Any]:
    """The recipe of one run."""
    urls = sorted(row["url"] for row in judgements())
    model = {"num_hidden_layers": 4, "hidden_size": 128, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 384,
             "tie_word_embeddings": True}  # fmt: skip
    return {
        "name": f"pays-{engine}", "seed": seed, "runtime": {"workers": 2, "cpu_ranks": 2, "micro_batch_size": 4, "eval_batch_size": 16},
        "crawl": {"warcs": [str(file) for file in files()]}, "extract": {"engine": engine, "max_bad_records": 1000},
        "filter": {"languages": ["en"], "min_lang_score": 0.3, "url": {"remove": urls}}, "dedup": {}, "train_tokenizer": {"vocab_size": 4096},
        "encode": {}, "mix": {"seq_len": CONTEXT, "max_validation_documents": 60},
        "pretrain": {"model": model, "budget": {"steps": steps}, "global_batch_size": 8, "learning_rate": 0.006, "warmup_steps": 30,
                     "eval_every_steps": steps, "checkpoint_every_steps": steps, "max_validation_sequences": 128},
        "export@base": {},
    }  # fmt: skip


def run(home: Path, side: str, seed: int, steps: int, until: str, *words: str) -> None:
    """Runs the recipe of a side up to a node."""
    path = home.parent / f"{side}-{seed}.yaml"
    path.write_text(yaml.safe_dump(recipe(SIDES[side], seed, steps)))
    loam("run", str(path), "--until", until, *words, home=home)


def exported(home: Path) -> Path:
    """The folder of the newest exported model."""
    return max(home.glob("artifacts/export@base/*/model.safetensors"), key=lambda path: path.stat().st_mtime).parent


def bits_per_byte(folder: Path, bodies: Sequence[str]) -> list[float]:
    """Bits per byte of each text, in windows of CONTEXT tokens that share none."""
    import torch
    from transformers import AutoModelForCausalLM, AutoTokenizer

    tokenizer, model = AutoTokenizer.from_pretrained(folder), AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32).eval()
    found = []
    for body in bodies:
        ids, nats = tokenizer(body, add_special_tokens=False)["input_ids"], 0.0
        for start in range(0, len(ids), CONTEXT - 1):
            window = torch.tensor([[tokenizer.bos_token_id, *ids[start : start + CONTEXT - 1]]])
            with torch.no_grad():
                logits = model(window).logits[0, :-1]
            nats += float(torch.nn.functional.cross_entropy(logits, window[0, 1:], reduction="sum"))
        found.append(nats / math.log(2) / len(body.encode()))
    return found


def held_out() -> list[str]:
    """The judged bodies of English pages with 100 words and more."""
    rows = {row["url"]: row for row in judgements()}

    def text(page: JudgedPage) -> str:
        return "\n".join(marked_lines(page.html, rows[page.url]))

    return [text(page) for page in judged_pages() if page.lang == "en" and page.body.total() >= 100]


def main() -> None:
    """Prints bits per byte per side and seed, and the difference with its standard error over seeds."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_body_training")
    parser.add_argument("--steps", type=int, default=STEPS, help=f"of {8 * CONTEXT:,} tokens each (default {STEPS})")
    parser.add_argument("--seeds", type=int, nargs="+", default=SEEDS)
    options = parser.parse_args()
    steps = options.steps
    bodies = held_out()
    print(
        f"{len(bodies)} judged bodies, {sum(len(body.encode()) for body in bodies):,} bytes; {steps * 8 * CONTEXT:,} tokens a model",
        flush=True,
    )
    means: dict[str, list[float]] = {side: [] for side in SIDES}
    with tempfile.TemporaryDirectory() as folder:
        first, home = Path(folder) / "tokenizer", Path(folder) / "home"
        run(first, "resiliparse", 1, steps, "train_tokenizer")
        (tokenizer,) = first.glob("artifacts/train_tokenizer/*/tokenizer.json")
        loam("lineage", "import", "train_tokenizer", str(tokenizer), "--as", "shared", "--provenance", "text by resiliparse", home=home)
        for seed in options.seeds:
            for side in SIDES:
                run(home, side, seed, steps, "export@base", "--set", "import.train_tokenizer=shared")
                by_page = bits_per_byte(exported(home), bodies)
                means[side].append(statistics.mean(by_page))
                print(f"{side}, seed {seed}: {means[side][-1]:.4f} bits per byte", flush=True)
    if len(options.seeds) < 2:
        return
    gains = [old - new for new, old in zip(means["boilerplate"], means["resiliparse"], strict=True)]
    error = statistics.stdev(gains) / math.sqrt(len(gains))
    print(
        f"boilerplate is {statistics.mean(gains):+.4f} bits per byte better (standard error over seeds {error:.4f}; {', '.join(f'{g:+.4f}' for g in gains)})"
    )


if __name__ == "__main__":
    main()
