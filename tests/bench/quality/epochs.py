"""Few data, more compute: `python -m tests.bench.quality.epochs`, about four hours of one core; it goes on after a stop.

The text of the benchmark has 3.06 M tokens. Every arm but the first spends four times the FLOPs of the contestant "loam, Muon" over 3.0 M of
them: one model that reads the text 3.9 times, the same with a lower rate or more weight decay, or several models with other seeds whose probabilities are
averaged.
Bits per byte are those of `python -m tests.bench.quality`. The probabilities of an ensemble come from the exported models, in fp32.

Measured on 2026-11-25, 2 cores of an AMD EPYC, 54 minutes of one core for the first of these (one seed, so differences below .001 say nothing):
four epochs 1.3540, with a rate of 0.016 in place of 0.04 1.3656, with weight decay 0.3 in place of 0.1 1.3947; two models of two epochs 1.3847
and 1.3845, their average 1.3565. One epoch, by `python -m tests.bench.quality`, 1.4402. Four models of one epoch were not trained.

What one arm shows beside another holds for one seed, or one set of seeds. Finished trainings are kept below --folder, as those of
`python -m tests.bench.quality`, which has the members of the ensembles in common with this. Dropout, and a student of an ensemble, are not here:
the trainer has neither.
"""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from flows.cli.printing import print_table
from tests.bench.probe import probe
from tests.bench.quality.__main__ import Wanted, parsed_changes, require_precision, train
from tests.bench.quality.contestants import CONTESTANTS, Trial, job_of, nats_of
from tests.bench.quality.wikitext import Corpus, prepare

if TYPE_CHECKING:
    from torch import Tensor, nn

NAME = "loam, Muon"
TOKENS, TIMES = 3_000_000, 4
SPECIAL = {"bos": 0, "eos": 0, "pad": 0}  # which no logit depends on


@dataclass(frozen=True)
class Arm:
    """Models that are trained alike, with the seeds 1 to `models`: tokens of each, and settings that differ from the contestant's."""

    models: int
    tokens: int
    changes: dict[str, Any] = field(default_factory=dict)

    @property
    def members(self) -> list[Wanted]:
        """The trainings."""
        return [Wanted(NAME, self.tokens, seed, json.dumps(self.changes)) for seed in range(1, self.models + 1)]


def arms(tokens: int, changes: Mapping[str, Any]) -> dict[str, Arm]:
    """The arms by name. tokens: of one epoch. changes: other settings of all arms."""
    given = dict(changes)
    return {
        "one epoch, a quarter of the FLOPs": Arm(1, tokens, given),
        "four epochs": Arm(1, TIMES * tokens, given),
        "four epochs, rate 0.016": Arm(1, TIMES * tokens, given | {"learning_rate": 0.016}),
        "four epochs, weight decay 0.3": Arm(1, TIMES * tokens, given | {"weight_decay": 0.3}),
        "two models of two epochs": Arm(2, 2 * tokens, given),
        "four models of one epoch": Arm(4, tokens, given),
    }


def main() -> int:
    """Trains what is missing and prints the table."""
    parser = argparse.ArgumentParser(prog="python -m tests.bench.quality.epochs")
    parser.add_argument("--folder", type=Path, default=Path("data/bench-quality"), help="where finished trainings are kept")
    parser.add_argument("--arms", nargs="+", default=list(arms(TOKENS, {})))
    parser.add_argument("--tokens", type=int, default=TOKENS, help="tokens of one epoch")
    parser.add_argument("--change", action="append", default=[], metavar="NAME=VALUE", help="another setting of all arms")
    parser.add_argument("--together", type=int, default=2, help="trainings at once")
    options = parser.parse_args()
    changes = parsed_changes(options.change)
    require_precision(changes)
    known = arms(options.tokens, changes)
    if unknown := [name for name in options.arms if name not in known]:
        parser.error(f"--arms: {', '.join(unknown)}: the arms are {', '.join(known)}")
    print(probe(), flush=True)
    folder = options.folder.resolve()
    corpus = prepare(folder / "corpus")
    chosen = {name: known[name] for name in options.arms}
    failed = train(list(dict.fromkeys(one for arm in chosen.values() for one in arm.members)), corpus, folder, options.together)
    print(f"{corpus.described['name']}: {len(corpus.train):,} training tokens")
    print_table([row for name, arm in chosen.items() if (row := measured(name, arm, corpus, folder))])
    print(probe())
    return int(failed)


def measured(name: str, arm: Arm, corpus: Corpus, root: Path) -> dict[str, Any]:
    """The row of an arm; empty if a member is missing."""
    results = [one.folder(root, corpus) / "result.json" for one in arm.members]
    if not all(result.exists() for result in results):
        return {}
    found = [json.loads(result.read_text()) for result in results]
    bits = [one["bits_per_byte"] for one in found]
    return {
        "arm": name, "models": arm.models, "epochs of each": f"{arm.tokens / len(corpus.train):.2f}",
        "FLOPs, with the optimizer's": f"{sum(one['model_flops'] + one['optimizer_flops'] for one in found):.2e}",
        "bits per byte": f"{bits[0] if arm.models == 1 else together(arm.members, corpus, root):.4f}",
        "of the members": ", ".join(f"{one:.4f}" for one in bits) if arm.models > 1 else "",
    }  # fmt: skip


def together(members: Sequence[Wanted], corpus: Corpus, root: Path) -> float:
    """Bits per byte of the average of the members' probabilities. They are kept beside the members, by their folders."""
    folders = [one.folder(root, corpus) for one in members]
    kept = root / f"ensemble-{'-'.join(sorted(folder.name.rpartition('-')[2] for folder in folders))}.json"
    if not kept.exists():
        trials = [
            Trial(corpus, one.tokens, one.seed, folder, json.loads(one.changes)) for one, folder in zip(members, folders, strict=True)
        ]
        partial = kept.with_suffix(".partial")
        partial.write_text(
            json.dumps({"bits_per_byte": corpus.bits_per_byte(ensemble_nats([exported(trial) for trial in trials], trials[0]))})
        )
        os.replace(partial, kept)
    return float(json.loads(kept.read_text())["bits_per_byte"])


def exported(trial: Trial, weights: dict[str, Tensor] | None = None) -> nn.Module:
    """The model of a finished trial as a model of transformers, with other weights if they are given."""
    from stages.training.checkpoints.checkpoint import consolidate
    from stages.training.checkpoints.convert import hugging_face_model

    model: nn.Module = hugging_face_model(
        job_of(trial, dict(CONTESTANTS[NAME].settings)).model,
        weights or consolidate(trial.folder / "out" / "checkpoint"),
        SPECIAL,
        "float32",
    )
    return model


def ensemble_nats(models: Sequence[nn.Module], trial: Trial) -> float:
    """The nats of the validation text under the average of the models' probabilities."""
    import torch

    def average(tokens: Tensor) -> Tensor:
        each = torch.stack([model(input_ids=tokens, use_cache=False).logits.float().log_softmax(-1) for model in models])
        return each.logsumexp(0)  # a constant is left out, which the cross-entropy does not see

    return nats_of(trial, torch.nn.ModuleList(models), average)


if __name__ == "__main__":
    sys.exit(main())
