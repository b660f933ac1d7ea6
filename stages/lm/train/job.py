"""The one JSON file that a rank reads: everything a training (or scoring) run is, as plain values.

Guarantee: `read_job(write_job(job))` is the same job; `fingerprint` names what decides the trained weights, so a resume
point of another job is never taken up. No torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Any, ClassVar

from pydantic import ConfigDict, TypeAdapter

from stages.lm.data.order import Phase
from stages.lm.data.reader import RowFiles
from stages.lm.model.config import ModelConfig
from stages.lm.train.training_settings import ScoringSettings, TrainingSettings
from stages.settings import DECIDES, deciding

DECIDING: Mapping[str, bool] = {DECIDES: True}
OBSERVING: Mapping[str, bool] = {DECIDES: False}


class JobError(ValueError):
    """A job that cannot run as it was asked for."""


@dataclass(frozen=True)
class Machine:
    """How the job runs here; changes no result beyond floating point. device: "cpu" or "cuda"."""

    ranks: int
    device: str = "cpu"
    micro_batch_size: int = 8
    eval_batch_size: int = 32
    offload_optimizer: bool = False
    activation_checkpointing: bool = False


@dataclass(frozen=True, kw_only=True)
class RankJob:
    """What the ranks are to do: train by TrainingSettings; by ScoringSettings score every row of `train` into log_probs-<rank>.npy.

    settings: the section of the recipe itself; a subclass's own fields stay in the stage's process. init_from: folder of a checkpoint
    whose weights to start from; empty starts from the seed. data_identity: digests of what the rows are made of, for the fingerprint.
    scratch: snapshots, events and metrics live here. out: the final checkpoint is put here.
    """

    __pydantic_config__: ClassVar[ConfigDict] = ConfigDict(extra="forbid")

    model: ModelConfig = field(metadata=DECIDING)
    settings: TrainingSettings | ScoringSettings = field(metadata=DECIDING)
    train: RowFiles = field(metadata=OBSERVING)
    machine: Machine = field(metadata=OBSERVING)
    seed: int = field(metadata=DECIDING)
    scratch: str = field(metadata=OBSERVING)
    out: str = field(metadata=OBSERVING)
    phases: tuple[Phase, ...] = field(default=(), metadata=DECIDING)
    validation: RowFiles | None = field(default=None, metadata=OBSERVING)
    init_from: str = field(default="", metadata=OBSERVING)
    data_identity: str = field(default="", metadata=DECIDING)
    steps: int = field(default=0, metadata=DECIDING)

    @property
    def training(self) -> TrainingSettings:
        """The settings of a job that trains."""
        assert isinstance(self.settings, TrainingSettings), "this job only scores"
        return self.settings

    def accumulation(self) -> int:
        """Micro-batches per step and rank; raises JobError when the global batch does not divide."""
        rows, per_pass = self.training.global_batch_size, self.machine.ranks * self.machine.micro_batch_size
        if rows % per_pass:
            raise JobError(
                f"global_batch_size {rows} is not divisible by {self.machine.ranks} ranks × "
                f"runtime.micro_batch_size {self.machine.micro_batch_size} = {per_pass}; change one of them."
            )
        return rows // per_pass

    def fingerprint(self) -> str:
        """sha256 over the fields that are marked as deciding, of the settings those that a rank knows."""
        plain = _adapter().dump_python(self, mode="json")
        values: dict[str, Any] = {f.name: plain[f.name] for f in dataclasses.fields(self) if f.metadata[DECIDES]}
        values["settings"] = deciding(self.settings, TrainingSettings if isinstance(self.settings, TrainingSettings) else ScoringSettings)
        return hashlib.sha256(json.dumps(values, sort_keys=True).encode()).hexdigest()


def write_job(job: RankJob, path: Path) -> Path:
    """Writes the job as JSON; of the settings the fields that a rank knows."""
    path.write_bytes(_adapter().dump_json(job, indent=1))
    return path


def read_job(path: Path) -> RankJob:
    """Reads a job; raises pydantic's ValidationError on unknown fields."""
    return _adapter().validate_json(path.read_bytes())


@cache
def _adapter() -> TypeAdapter[RankJob]:
    return TypeAdapter(RankJob)
