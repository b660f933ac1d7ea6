"""The one JSON file that a rank reads: everything a training (or scoring) run is, as plain values.

Guarantee: `read_job(write_job(job))` is the same job; `fingerprint` names what decides the trained weights, so a resume
point of another job is never taken up. No torch.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass, field
from pathlib import Path

from stages.lm.data.order import Phase
from stages.lm.data.reader import RowFiles
from stages.lm.model.config import ModelConfig


class JobError(ValueError):
    """A job that cannot run as it was asked for."""


@dataclass(frozen=True)
class OptimConfig:
    """AdamW. clip: largest global gradient norm, 0 for none. decay_embeddings: whether weight decay touches the token embedding."""

    weight_decay: float = 0.1
    beta1: float = 0.9
    beta2: float = 0.95
    eps: float = 1e-8
    clip: float = 1.0
    decay_embeddings: bool = False


@dataclass(frozen=True)
class Machine:
    """How the job runs here; changes no result beyond floating point. device: "cpu" or "cuda"."""

    ranks: int
    device: str = "cpu"
    micro_batch_rows: int = 8
    eval_batch_rows: int = 32
    offload_optimizer: bool = False
    activation_checkpointing: bool = False


@dataclass(frozen=True)
class Job:
    """kind: "train" or "log_probs" (score every row of `train` with the weights of init_from, write log_probs-<rank>.npy).

    objective: "language_modelling" or "preference" (with beta). init_from: folder of a checkpoint whose weights to start
    from; empty starts from the seed. data_identity: digests of what the rows are made of, for the fingerprint.
    scratch: resume points, events and metrics live here. out: the final checkpoint is put here.
    """

    kind: str
    model: ModelConfig
    objective: str
    train: RowFiles
    machine: Machine
    seed: int
    scratch: str
    out: str
    phases: tuple[Phase, ...] = ()
    validation: RowFiles | None = None
    beta: float = 0.0
    init_from: str = ""
    data_identity: str = ""
    precision: str = "fp32"
    steps: int = 0
    global_batch_rows: int = 0
    learning_rate: float = 0.0
    min_lr_frac: float = 0.0
    warmup_steps: int = 0
    optim: OptimConfig = field(default_factory=OptimConfig)
    eval_every_steps: int = 0
    max_validation_rows: int = 1 << 62
    checkpoint_every_steps: int = 0

    def accumulation(self) -> int:
        """Micro-batches per step and rank; raises JobError when the global batch does not divide."""
        per_pass = self.machine.ranks * self.machine.micro_batch_rows
        if self.global_batch_rows % per_pass:
            raise JobError(
                f"global_batch_rows {self.global_batch_rows} is not divisible by {self.machine.ranks} ranks × "
                f"runtime.micro_batch_rows {self.machine.micro_batch_rows} = {per_pass}; change one of them."
            )
        return self.global_batch_rows // per_pass

    def fingerprint(self) -> str:
        """sha256 over what decides the weights: not paths, machine or how often is saved and evaluated."""
        names = ("kind", "model", "objective", "seed", "phases", "beta", "data_identity", "precision", "steps", "global_batch_rows",
                 "learning_rate", "min_lr_frac", "warmup_steps", "optim")  # fmt: skip
        values = dataclasses.asdict(self)
        return hashlib.sha256(json.dumps({n: values[n] for n in names}, sort_keys=True).encode()).hexdigest()


def write_job(job: Job, path: Path) -> Path:
    """Writes the job as JSON."""
    path.write_text(json.dumps(dataclasses.asdict(job), indent=1))
    return path


def read_job(path: Path) -> Job:
    """Reads a job; raises on unknown fields."""
    raw = json.loads(path.read_text())
    raw["model"] = ModelConfig(**raw["model"])
    raw["train"] = _row_files(raw["train"])
    raw["validation"] = _row_files(raw["validation"]) if raw["validation"] else None
    raw["machine"] = Machine(**raw["machine"])
    raw["optim"] = OptimConfig(**raw["optim"])
    raw["phases"] = tuple(Phase(**phase) for phase in raw["phases"])
    return Job(**raw)


def _row_files(raw: dict) -> RowFiles:
    return RowFiles(**{**raw, "tokens": tuple(raw["tokens"]), "masks": tuple(raw["masks"])})
