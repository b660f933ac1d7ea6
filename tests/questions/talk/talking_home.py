"""A home with exported models that can be talked to: base, sft and dpo of run tiny-1, and base of the newer run tiny-2."""

from __future__ import annotations

import json
import shutil
from collections.abc import Mapping
from pathlib import Path

from stages.record.index import database
from tests.questions.two_runs import make_artifact, make_run
from tests.stages import tiny_model

CONTEXT = 256
TRAINERS = {"base": "pretrain", "sft": "sft", "dpo": "dpo"}


def make_talking_home(home: Path) -> Path:
    """Writes the home and its index. All models have the weights of tests/stages/tiny_model.py, and a context of CONTEXT tokens."""
    model = tiny_model.write(home.parent / f"model of {home.name}", max_position_embeddings=CONTEXT)
    tokenizer = make_artifact(home, "train_tokenizer", 1, {}, {})
    made = [tokenizer]
    for name, trainer in TRAINERS.items():
        made += [checkpoint := make_artifact(home, trainer, 1, {}, {}), _export(home, name, 1, checkpoint, tokenizer, model)]
    make_run(home, 1, made)
    checkpoint = make_artifact(home, "pretrain", 2, {}, {})
    make_run(home, 2, [tokenizer, checkpoint, _export(home, "base", 2, checkpoint, tokenizer, model)])
    database.update(home)
    return home


def change_manifest(home: Path, artifact: str, changes: Mapping[str, object]) -> None:
    """Changes fields of a made artifact's manifest."""
    path = home / "artifacts" / artifact / "manifest.json"
    path.write_text(json.dumps(json.loads(path.read_text()) | changes))


def _export(home: Path, name: str, number: int, checkpoint: str, tokenizer: str, model: Path) -> str:
    made = make_artifact(home, f"export@{name}", number, {"checkpoint": checkpoint, "tokenizer": tokenizer}, {})
    change_manifest(home, made, {"kind": "model"})
    shutil.copytree(model, home / "artifacts" / made, dirs_exist_ok=True)
    return made
