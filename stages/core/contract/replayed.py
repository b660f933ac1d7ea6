"""What a training stage answers when it trained a window of a receipt again."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal


@dataclass(frozen=True)
class ReplayedWindow:
    """A window that was trained again.

    Attributes:
        number: Its number, from 1.
        first_step: Its first step.
        last_step: Its last step.
        state: "equal": losses, weights and optimizer state are equal bit by bit. "close": they may differ by rounding here, and the losses are
            equal within the tolerance. "differs": the receipt is not that of a training with the manifest's settings and inputs.
        what: What differs, or why equal bits are not expected; "" for "equal".
    """

    number: int
    first_step: int
    last_step: int
    state: Literal["equal", "close", "differs"]
    what: str = ""
