"""How far each rank is: one small file per rank, heartbeat-<rank>, which the rank overwrites whenever it goes on.

A beat has a counter, which rises whenever the rank does something, and a place. All ranks pass the same places in the same order (a
micro-batch, a batch of an evaluation, a snapshot). Between two places they may count differently: one rank has more to hash than another.
Guarantee: a beat has no time. The launcher alone looks at a clock.
Cost: one write of 128 bytes per beat, into a file that stays open.
The module does not import torch.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path

BEAT_BYTES = 128


class Activity(StrEnum):
    """What a rank is doing, in the words of an error message."""

    STARTING = "start of the process"
    LOADING = "loading of the weights"
    READING = "reading of sequences"
    TRAINING = "forward and backward pass"
    EVALUATING = "evaluation"
    SAMPLING = "writing of text samples"
    SAVING = "saving of a snapshot"
    HANDING_OVER = "handing over of the checkpoint"
    SCORING = "scoring"
    STAGE = "work of a stage"


@dataclass(frozen=True)
class Beat:
    """The newest beat of a rank.

    Attributes:
        count: Number of beats. It rises whenever the rank goes on.
        place: Number of places that the rank reached; comparable between ranks.
        step: The training step, counted from 1; 0 before the first.
        activity: What the rank is doing.
    """

    count: int
    place: int
    step: int
    activity: Activity


@dataclass
class Heartbeat:
    """Writes the beats of one rank. Open it with `open_heartbeat`."""

    handle: int
    count: int = 0
    place: int = 0
    step: int = 0
    activity: Activity = Activity.STARTING

    def reach(self, activity: Activity, step: int | None = None) -> None:
        """Says that the rank reached the next place.

        Args:
            activity: What it does there.
            step: The training step, counted from 1; None leaves it as it is.
        """
        self.place += 1
        self.activity = activity
        self.step = self.step if step is None else step
        self.tick()

    def tick(self) -> None:
        """Says that the rank goes on at its place."""
        self.count += 1
        os.pwrite(self.handle, f"{self.count} {self.place} {self.step} {self.activity}".ljust(BEAT_BYTES).encode(), 0)


def heartbeat_path(scratch: Path, rank: int) -> Path:
    """Returns the path of the heartbeat file of a rank."""
    return scratch / f"heartbeat-{rank}"


def open_heartbeat(scratch: Path, rank: int) -> Heartbeat:
    """Returns the heartbeat of a rank at its first place."""
    heartbeat = Heartbeat(os.open(heartbeat_path(scratch, rank), os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o666))
    heartbeat.reach(Activity.STARTING)
    return heartbeat


def read_beat(path: Path) -> Beat:
    """Returns the newest beat in a heartbeat file. A rank without a complete beat is at place 0."""
    try:
        count, place, step, activity = path.read_text(encoding="utf-8").split(" ", 3)
        return Beat(int(count), int(place), int(step), Activity(activity.strip()))
    except (FileNotFoundError, ValueError):
        return Beat(0, 0, 0, Activity.STARTING)
