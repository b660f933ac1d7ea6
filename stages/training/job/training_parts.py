"""The registry of the parts of training that a recipe can choose by name: schedules, optimizers and losses.

A part is one file with one class. To add a part, import it here and add one entry. The entries are explicit and not discovered, because
the digest of a stage's code follows imports: a discovered file would be missing from the digest.
The first entry of each registry is the default.
"""

from __future__ import annotations

from collections.abc import Mapping

from stages.training.losses.loss import Loss
from stages.training.losses.loss_dpo import DpoLoss
from stages.training.losses.loss_next_token import NextTokenLoss
from stages.training.optimizers.optimizer import Optimizer
from stages.training.optimizers.optimizer_adamw import AdamW
from stages.training.optimizers.optimizer_muon import Muon
from stages.training.schedules.schedule import Schedule
from stages.training.schedules.schedule_cosine import Cosine
from stages.training.schedules.schedule_linear import LinearDecay
from stages.training.schedules.schedule_wsd import WarmupStableDecay

SCHEDULES: Mapping[str, type[Schedule]] = {"cosine": Cosine, "linear": LinearDecay, "wsd": WarmupStableDecay}
OPTIMIZERS: Mapping[str, type[Optimizer]] = {"adamw": AdamW, "muon": Muon}
SEQUENCE_LOSSES: Mapping[str, type[Loss]] = {"next_token": NextTokenLoss}
"""Losses over sequences of text, for pretrain and sft."""
PAIR_LOSSES: Mapping[str, type[Loss]] = {"dpo": DpoLoss}
"""Losses over preference pairs, for dpo."""
