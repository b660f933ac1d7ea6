"""Trains windows of a checkpoint's receipt again, for `loam lineage verify --replay`.

Guarantee: nothing is published, and the home keeps its artifacts as they are.
Cost: that of the windows' steps, and one start of the ranks per window.
"""

from __future__ import annotations

from pathlib import Path

from flows.cli.printing import say
from flows.pipeline import stage_of, upstream
from stages.core.contract.errors import RecipeError
from stages.core.index import lookup
from stages.core.replays.replay_run import Replay, replay_windows
from stages.core.store import manifest
from stages.queries.receipts import windows_of


def replayed_windows(home: Path, name: str, count: int, seed: int | None) -> Replay:
    """Returns the windows that were trained again.

    Args:
        home: The home folder.
        name: The checkpoint, by any name.
        count: How many windows to train again; all if there are fewer.
        seed: Draws the windows; None takes one that nobody can know before.

    Raises:
        RecipeError: The name is empty or that of a run.
    """
    if not name or lookup.find_run(home, name):
        raise RecipeError("--replay trains one checkpoint again, and none is named.", where="--replay", do="Name a checkpoint: pretrain-1.")
    artifact = manifest.read_artifact(home / "artifacts" / str(lookup.latest_artifact(home, name)["artifact_id"]))
    stage = stage_of(upstream([artifact.manifest["node"]])[-1])
    return replay_windows(home, artifact, stage, windows_of(artifact), count, seed, lambda line: say(line, error=True))
