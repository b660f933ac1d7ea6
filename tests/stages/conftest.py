"""Fixtures: one very small model per test session, with tokenizer, tokens, mixture, pretrain, sft, reference and dpo."""

from __future__ import annotations

import json
import random
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from uuid import UUID, uuid5

import pytest

from stages.record.contract.declaration import Artifact
from stages.record.run.runner import Event
from stages.record.tables.parquet import schema, write_rows
from stages.tokens.encode import stage as encode
from stages.tokens.mix import stage as mix
from stages.tokens.train_tokenizer import stage as train_tokenizer
from stages.training import dpo, pretrain, reference, sft
from tests.conftest import run_stage
from tests.stages.made import artifact, documents

RUNTIME = {"cpu_ranks": 1, "micro_batch_size": 4, "eval_batch_size": 8}
TRAINING = {"global_batch_size": 8, "learning_rate": 3e-3, "warmup_steps": 2, "eval_every_steps": 5, "checkpoint_every_steps": 5}
MODEL = {"num_hidden_layers": 2, "hidden_size": 32, "num_attention_heads": 4, "num_key_value_heads": 2, "intermediate_size": 64}
SAMPLES = {"sample_every_steps": 5, "sample_prompts": ["The red", "The fox is"], "sample_tokens": 8}
PRETRAIN = {**TRAINING, **SAMPLES, "model": MODEL, "budget": {"steps": 12}}
SFT = {**TRAINING, **SAMPLES, "budget": {"epochs": 2}}
DPO = {**TRAINING, "budget": {"steps": 6}, "learning_rate": 1e-3}
COLOURS, THINGS = ["red", "green", "blue", "white", "black"], ["fox", "dog", "cat", "bird", "fish", "horse"]


@dataclass
class Chain:
    """The artifacts of the chain, and the events of the pretraining run."""

    home: Path
    tokenizer: Artifact
    tokens: Artifact
    mixture: Artifact
    conversations: Artifact
    preferences: Artifact
    pretrained: Artifact
    tuned: Artifact
    logprobs: Artifact
    aligned: Artifact
    events: list[Event]

    def data(self) -> dict[str, Artifact]:
        """The inputs of pretrain."""
        return {"mixture": self.mixture, "tokens": self.tokens, "tokenizer": self.tokenizer}


def sentences(count: int, seed: int = 0) -> Iterator[str]:
    """Yields simple English texts from which a tiny model can learn."""
    draw = random.Random(seed)
    for _ in range(count):
        lines = [
            f"The {draw.choice(COLOURS)} {draw.choice(THINGS)} sees the {draw.choice(COLOURS)} {draw.choice(THINGS)}." for _ in range(4)
        ]
        yield " ".join(lines)


def conversations(path: Path, count: int = 60, long: bool = True) -> Artifact:
    """Returns a conversations artifact. With `long`, one conversation is longer than the context."""
    shape = schema(doc_id="uuid", source="string", messages="string", split="string")
    rows: list[dict[str, Any]] = []
    for number in range(count):
        colour, thing = COLOURS[number % 5], THINGS[number % 6]
        answer = f"The {thing} is {colour}." * (60 if long and number == 7 else 1)
        messages = [{"role": "user", "content": f"Which colour has the {thing}?"}, {"role": "assistant", "content": answer}]
        split = "validation" if number % 10 == 0 else "train"
        rows.append({"doc_id": uuid5(UUID(int=0), f"c{number}"), "source": "chat", "messages": json.dumps(messages), "split": split})
    write_rows(path / "conversations.parquet", shape, rows)
    return artifact(path, "conversations")


def preferences(path: Path, count: int = 60) -> Artifact:
    """Returns a preferences artifact: a short right answer against another answer."""
    shape = schema(doc_id="uuid", source="string", prompt="string", chosen="string", rejected="string", split="string")
    rows = []
    for number in range(count):
        prompt = json.dumps([{"role": "user", "content": f"The {THINGS[number % 6]}?"}])
        rows.append({
            "doc_id": uuid5(UUID(int=0), f"p{number}"), "source": "pairs", "prompt": prompt, "chosen": "It is red.",
            "rejected": "A dog." if number != 3 else "A dog. " * 60, "split": "validation" if number % 5 == 0 else "train",
        })  # fmt: skip
    write_rows(path / "preferences.parquet", shape, rows)
    return artifact(path, "preferences")


@pytest.fixture(scope="session")
def chain(tmp_path_factory: pytest.TempPathFactory) -> Chain:
    """Returns the artifacts of all stages, built by the real stages and the real runner."""
    home = tmp_path_factory.mktemp("chain")
    made = documents(home / "made" / "documents", [sentences(150, 1), sentences(150, 2)])
    tokenizer = run_stage(train_tokenizer.STAGE, {"vocab_size": 300}, {"documents": made}, home)
    tokens = run_stage(encode.STAGE, {}, {"documents": made, "tokenizer": tokenizer}, home)
    mixture = run_stage(mix.STAGE, {"seq_len": 96, "validation_frac": 0.1}, {"tokens": tokens}, home)
    events: list[Event] = []
    data = {"mixture": mixture, "tokens": tokens, "tokenizer": tokenizer}
    base = run_stage(pretrain.STAGE, PRETRAIN, data, home, runtime=RUNTIME, events=events)
    chat, pairs = conversations(home / "made" / "conversations"), preferences(home / "made" / "preferences")
    tuned = run_stage(sft.STAGE, SFT, {"checkpoint": base, "conversations": chat, "tokenizer": tokenizer}, home, runtime=RUNTIME)
    scored = {"checkpoint": tuned, "preferences": pairs, "tokenizer": tokenizer}
    logprobs = run_stage(reference.STAGE, {}, scored, home, runtime=RUNTIME)
    aligned = run_stage(dpo.STAGE, DPO, scored | {"logprobs": logprobs}, home, runtime=RUNTIME)
    return Chain(home, tokenizer, tokens, mixture, chat, pairs, base, tuned, logprobs, aligned, events)
