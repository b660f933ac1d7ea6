"""The settings of training, from the recipe to the ranks: what a stage declares, a job carries and a rank reads is one object.

Guarantee: a budget has exactly one unit. Defaults stand here and in the parts (training_parts.py) once; what differs per stage has none
here and is asked for. Every field is marked as deciding the weights or not; a job's fingerprint is made of the marked ones. No torch.
"""

from __future__ import annotations

import math
from typing import Annotated, Literal

from pydantic import model_validator

from stages.lm.model.loss import Loss
from stages.lm.model.loss_next_token import NextTokenLoss
from stages.lm.train.optimizer import Optimizer
from stages.lm.train.optimizer_adamw import AdamW
from stages.lm.train.schedule import Schedule
from stages.lm.train.schedule_cosine import Cosine
from stages.lm.train.training_parts import OPTIMIZERS, PAIR_LOSSES, SCHEDULES, SEQUENCE_LOSSES
from stages.settings import Field, OneOf, StageConfig


class Budget(StageConfig):
    """How long to train: exactly one of the three (OLMo-core's Duration)."""

    steps: int | None = Field(None, ge=1, le=10**9, decides=False)
    """Optimizer steps."""
    tokens: int | None = Field(None, ge=1, le=10**16, decides=False)
    """Tokens of full rows; rounded up to whole steps."""
    epochs: float | None = Field(None, gt=0, le=1_000_000, decides=False)
    """Passes over the rows; rounded down to whole steps, at least one."""

    @model_validator(mode="after")
    def _one_unit(self) -> Budget:
        given = [name for name in ("steps", "tokens", "epochs") if getattr(self, name) is not None]
        if len(given) != 1:
            raise ValueError(f"budget needs exactly one of steps, tokens and epochs; {' and '.join(given) or 'none'} is set")
        return self

    def in_steps(self, global_batch_size: int, seq_len: int, steps_per_epoch: int) -> int:
        """The budget in optimizer steps."""
        if self.steps is not None:
            return self.steps
        if self.tokens is not None:
            return math.ceil(self.tokens / (global_batch_size * seq_len))
        assert self.epochs is not None
        return max(1, int(self.epochs * steps_per_epoch))


class ScoringSettings(StageConfig):
    """What a rank knows of the settings when it computes log-probabilities only."""

    precision: Literal["fp32", "bf16"] = Field("fp32", decides=True)
    """Of the forward pass; the same as dpo's, or its first step starts away from zero margin."""


class TrainingSettings(StageConfig):
    """What a rank knows of the settings when it trains; base of the pretrain, sft and dpo sections."""

    budget: Budget = Field(decides=False)
    """How long to train. The job holds it in steps."""
    global_batch_size: int = Field(ge=1, le=10**8, decides=True)
    """Rows per optimizer step over all ranks; must be a multiple of ranks × runtime.micro_batch_size."""
    learning_rate: float = Field(gt=0, decides=True)
    """Peak learning rate."""
    min_lr_frac: float = Field(0.1, ge=0, le=1, decides=True)
    """Final learning rate as a fraction of the peak. 0.1: Chinchilla (arXiv 2203.15556) and Llama 2."""
    warmup_steps: int = Field(ge=0, decides=True)
    """Steps of linear warm-up."""
    schedule: Annotated[Schedule, OneOf(SCHEDULES)] = Field(Cosine(), decides=True)
    """The learning rate after warm-up, from its peak to its final value."""
    optimizer: Annotated[Optimizer, OneOf(OPTIMIZERS)] = Field(AdamW(), decides=True)
    """What turns gradients into updates."""
    loss: Annotated[Loss, OneOf({**SEQUENCE_LOSSES, **PAIR_LOSSES})] = Field(decides=True)
    """What is minimised."""
    weight_decay: float = Field(0.1, ge=0, le=100, decides=True)
    """Decoupled weight decay of matrices. 0.1: GPT-3 (arXiv 2005.14165) and Llama."""
    decay_embeddings: bool = Field(False, decides=True)
    """Whether weight decay touches the token embedding too."""
    max_grad_norm: float = Field(1.0, ge=0, le=1e9, decides=True)
    """Largest global gradient norm; 0 for no clipping. 1.0: GPT-3 and Llama."""
    eval_every_steps: int = Field(ge=0, decides=False)
    """Steps between evaluations on the validation rows; 0 for the first and the last only."""
    max_validation_sequences: int = Field(512, ge=1, decides=False)
    """Validation rows that an evaluation reads, evenly spaced over all of them. 512: a guess, for a standard error of about a percent."""
    checkpoint_every_steps: int = Field(ge=0, decides=False)
    """Steps between snapshots; 0 for the last only."""
    precision: Literal["fp32", "bf16"] = Field("fp32", decides=True)
    """Of forward and backward pass; master weights and optimizer state are fp32 in either case."""

    @model_validator(mode="after")
    def _warmup_fits(self) -> TrainingSettings:
        if self.budget.steps is not None and self.warmup_steps >= self.budget.steps:
            raise ValueError(f"warmup_steps {self.warmup_steps} must be below budget.steps {self.budget.steps}")
        return self


class SequenceTraining(TrainingSettings):
    """Base of the sections that train on rows of text."""

    loss: Annotated[Loss, OneOf(SEQUENCE_LOSSES)] = Field(NextTokenLoss(), decides=True)
    """What is minimised."""
