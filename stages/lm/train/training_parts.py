"""The registry of the parts of training that a recipe can choose: schedules, optimizers and losses, by name.

A part is one file with one class; it is added here by its import and one entry. The entries are written out, and not discovered, because
the code of a stage is found by its imports: a discovered file would be in no digest of the stage's code.
The first entry of each is the default.
"""

from __future__ import annotations

from collections.abc import Mapping

from stages.lm.model.loss import Loss
from stages.lm.model.loss_dpo import DpoLoss
from stages.lm.model.loss_next_token import NextTokenLoss
from stages.lm.train.optimizer import Optimizer
from stages.lm.train.optimizer_adamw import AdamW
from stages.lm.train.schedule import Schedule
from stages.lm.train.schedule_cosine import Cosine

SCHEDULES: Mapping[str, type[Schedule]] = {"cosine": Cosine}
OPTIMIZERS: Mapping[str, type[Optimizer]] = {"adamw": AdamW}
SEQUENCE_LOSSES: Mapping[str, type[Loss]] = {"next_token": NextTokenLoss}
"""Losses over rows of text: pretrain and sft."""
PAIR_LOSSES: Mapping[str, type[Loss]] = {"dpo": DpoLoss}
"""Losses over rows that are preference pairs: dpo."""
