"""Multiple choice by evaluate's LM against lm-eval's HF wrapper: the same model, the same official YAML files, alternating in one process.

`python -m tests.bench.bench_evaluate` takes some minutes. Processor seconds are those of `loglikelihood`, from the texts of the requests to their
log-probabilities, and of the whole evaluation, of which lm-eval's building of prompts is a part that both sides share. ± is one standard error over
the paired ratios. The weights are random: times do not depend on them. The items are the first ones of the real files where this machine has
them, otherwise made ones, which are shorter.
"""

from __future__ import annotations

import argparse
import csv
import gzip
import io
import json
import random
import statistics
import tarfile
import tempfile
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from flows.cli.printing import print_table
from tests.bench.probe import probe
from tests.made import official_data
from tests.made.official_data import Record
from tests.made.real import real_folder

SUBJECT, SHOTS, CONTEXT = "astronomy", 5, 2048
YAML = {"hellaswag": "hellaswag/hellaswag.yaml", "arc_easy": "arc/arc_easy.yaml", "mmlu_astronomy": "mmlu/default/mmlu_astronomy.yaml"}
SPLIT = {"hellaswag": "validation", "arc_easy": "test", "mmlu_astronomy": "test"}
Documents = dict[str, dict[str, list[Record]]]


@dataclass
class Sides:
    """What the two sides measured of a task, round by round: CPU seconds of `loglikelihood` and of the whole evaluation."""

    ours: list[tuple[float, float]]
    theirs: list[tuple[float, float]]


def real_documents(bench: Path) -> Documents:
    """Returns the real items in the official fields."""

    def lines(path: Path) -> list[Record]:
        raw = path.read_bytes()
        return [json.loads(line) for line in (gzip.decompress(raw) if path.suffix == ".gz" else raw).splitlines()]

    hellaswag = [
        {**one, "ctx_a": one["ctx"], "ctx_b": "", "label": str(one["label"]), "split_type": "indomain", "source_id": ""}
        for one in lines(bench / "hellaswag_val.jsonl.gz")
    ]
    arc = [
        {"id": str(number), "question": one["query"].removeprefix("Question: ").removesuffix("\nAnswer:"),
         "choices": {"text": one["choices"], "label": list("ABCDEFGH"[: len(one["choices"])])}, "answerKey": "ABCDEFGH"[one["gold"]]}
        for number, one in enumerate(lines(bench / "arc_easy.jsonl"))
    ]  # fmt: skip
    mmlu: dict[str, list[Record]] = {}
    with tarfile.open(bench / "mmlu_csv.tar.gz") as packed:
        for member in packed:
            split = Path(member.name).parent.name
            if f"{SUBJECT}_" in Path(member.name).name and split in ("dev", "test"):
                table = csv.reader(io.TextIOWrapper(packed.extractfile(member) or io.BytesIO(), "utf-8"))
                mmlu[split] = [
                    {"question": q, "subject": SUBJECT, "choices": own, "answer": int(a)} for q, *own, a in table if a.isdecimal()
                ]
    return {"hellaswag": {"validation": hellaswag}, "arc_easy": {"test": arc}, f"mmlu_{SUBJECT}": mmlu}


def made_documents(items: int) -> Documents:
    rng = random.Random(0)
    subject = official_data.mmlu(SUBJECT)
    found = {
        task: {SPLIT[task]: [official_data.MADE[task][0](rng, number) for number in range(items)]} for task in ("hellaswag", "arc_easy")
    }
    parts = {"test": items, "dev": SHOTS}
    return {**found, f"mmlu_{SUBJECT}": {split: [subject(rng, number) for number in range(count)] for split, count in parts.items()}}


def model_and_tokenizer(folder: Path, texts: Sequence[str], hidden: int, layers: int) -> tuple[Any, Any]:
    """Returns a random model of this shape, and a tokenizer of the texts."""
    import torch
    from transformers import AutoTokenizer, LlamaConfig, LlamaForCausalLM

    from stages.examples.items.chat import BOS, EOS, PAD
    from stages.tokens.tokenizer.bpe import load_chat, save
    from stages.tokens.train_tokenizer.bpe_training import CorpusTooSmallError
    from tests.made.trained_bpe import train_bpe

    for size in (8192, 390, 310):
        try:
            trained = train_bpe(texts, size)
            break
        except CorpusTooSmallError:
            continue
    save(trained, folder)
    ids = {token: load_chat(folder / "tokenizer.json").token_to_id(token) for token in (BOS, EOS, PAD)}
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=8192, hidden_size=hidden, intermediate_size=hidden * 8 // 3, num_hidden_layers=layers, num_attention_heads=hidden // 32,
        num_key_value_heads=hidden // 64, max_position_embeddings=CONTEXT, bos_token_id=ids[BOS], eos_token_id=ids[EOS], pad_token_id=ids[PAD],
    )  # fmt: skip
    return LlamaForCausalLM(config).eval(), AutoTokenizer.from_pretrained(folder)


def timed(lm: Any, task: Any, name: str, items: int) -> tuple[tuple[float, float], list[tuple[float, ...]]]:
    """Returns ((CPU seconds of loglikelihood, of the evaluation), the log-likelihoods of the choices of every item)."""
    from stages.evaluation.evaluate.harness import run_made

    spent, asked = [], lm.loglikelihood

    def measured(*args: Any, **kwargs: Any) -> Any:
        start = time.process_time()
        answers = asked(*args, **kwargs)
        spent.append(time.process_time() - start)
        return answers

    lm.loglikelihood = measured
    start = time.process_time()
    found = run_made(lm, {name: task}, {}, {name: [str(number) for number in range(items)]}, chat=False)
    whole = time.process_time() - start
    return (sum(spent), whole), [sample.loglikelihoods for sample in found.samples[name]]


def compared(name: str, documents: Mapping[str, Sequence[Record]], model: Any, tokenizer: Any, repeats: int, batch: int) -> dict[str, Any]:
    """Returns the line of a task."""
    from lm_eval.models.huggingface import HFLM

    from stages.evaluation.evaluate.lm_eval_model import make_lm
    from stages.examples.items.lm_eval_tasks import TaskSpec, load_tasks

    shots = SHOTS if name.startswith("mmlu") else 0
    spec = TaskSpec((name,), {name: YAML[name]}, num_fewshot={name: shots})
    items = len(documents[SPLIT[name]])
    sides, largest = Sides([], []), 0.0
    for number in range(repeats):
        found = {}
        for side in ("ours", "theirs") if number % 2 else ("theirs", "ours"):
            task = load_tasks(spec, {name: documents})["tasks"][name]
            hf = {"pretrained": model, "tokenizer": tokenizer, "add_bos_token": True, "batch_size": batch, "device": "cpu"}
            lm = make_lm(model, tokenizer, CONTEXT, batch) if side == "ours" else HFLM(**hf)
            seconds, found[side] = timed(lm, task, name, items)
            getattr(sides, side).append(seconds)
        pairs = zip(found["ours"], found["theirs"], strict=True)
        largest = max(largest, *(abs(a - b) for one, other in pairs for a, b in zip(one, other, strict=True)))

    def ratio(which: int) -> str:
        of = [theirs[which] / ours[which] for ours, theirs in zip(sides.ours, sides.theirs, strict=True)]
        error = f" ± {statistics.stdev(of) / len(of) ** 0.5:.2f}" if len(of) > 1 else ""
        return f"{statistics.mean(of):.2f}{error}"

    return {
        "task": f"{name}, {shots}-shot", "items": items, "ours, CPU s": f"{statistics.median(one[0] for one in sides.ours):.2f}",
        "HF wrapper, CPU s": f"{statistics.median(one[0] for one in sides.theirs):.2f}", "ratio": ratio(0), "ratio of the whole": ratio(1),
        "largest difference of a log-likelihood": f"{largest:.1e}",
    }  # fmt: skip


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("--items", type=int, default=100)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--hidden", type=int, default=256)
    parser.add_argument("--layers", type=int, default=4)
    parser.add_argument("--batch", type=int, default=16)
    args = parser.parse_args()
    bench = real_folder() / "bench"
    documents = real_documents(bench) if bench.is_dir() else made_documents(args.items)
    texts = [json.dumps(one, ensure_ascii=False) for splits in documents.values() for own in splits.values() for one in own[:2000]]
    print(f"{probe()}\n{'real' if bench.is_dir() else 'made'} items, {args.layers} layers of width {args.hidden}, batches of {args.batch}")
    rows = []
    with tempfile.TemporaryDirectory(prefix="loam-bench-") as folder:
        model, tokenizer = model_and_tokenizer(Path(folder), texts, args.hidden, args.layers)
        for name, splits in documents.items():
            own = {split: found[: args.items if split == SPLIT[name] else SHOTS] for split, found in splits.items()}
            rows.append(compared(name, own, model, tokenizer, args.repeats, args.batch))
    print_table(rows)


if __name__ == "__main__":
    main()
