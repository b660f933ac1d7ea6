"""How the losses of a window that was trained again are compared, and when equal bits are expected. The ranks: test_training_identity.py."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

import pytest

from stages.record.contract.declaration import Artifact
from stages.record.contract.environment import environment
from stages.training.job.job import Machine
from stages.training.run import training_replay
from tests.training import made_receipt
from tests.training.made import small_job

OLD: list[dict[str, Any]] = [{"step": 1, "loss": 2.0}, {"step": 2, "loss": None}, {"step": 3, "loss": -1.0}]


@pytest.mark.parametrize(
    ("new", "tolerance", "told"),
    [
        ([2.0, None, -1.0], 0.0, ""),
        ([2.0, None, -1.0 - 1e-15], 0.0, "the loss of step 3 is -1.000000000000001, but -1.0 in the metrics"),
        ([2.019, None, -0.991], 0.01, ""),
        ([2.021, None, -1.0], 0.01, "the loss of step 1 is 2.021, but 2.0 in the metrics"),
        ([2.0, 1.0, -1.0], 0.01, "the loss of step 2 is 1.0, but None in the metrics"),
        ([2.0, None], 0.01, "the loss of step 3 is None, but -1.0 in the metrics"),
        ([2.0, None, -1.0, 5.0], 0.01, "4 steps were made, but the metrics have 3"),
    ],
)
def test_losses_are_compared_step_by_step(new: list[float | None], tolerance: float, told: str) -> None:
    made = [{"step": number, "loss": loss} for number, loss in enumerate(new, 1)]
    assert training_replay._far_loss(OLD, made, tolerance) == told


def test_equal_bits_are_expected_on_the_same_cpu_only(tmp_path: Path) -> None:
    made_receipt.checkpoint(tmp_path / "checkpoint", 4, 1)
    job = small_job(tmp_path, Machine(2, "cpu", 2, 2), 4)
    folders = [tmp_path / "checkpoint"]
    now: Any = json.loads(json.dumps(environment(("torch",))))

    def doubt(record: Any, **machine: Any) -> str:
        artifact = Artifact(tmp_path, cast("Any", {"environment": record}))
        return training_replay._doubt(replace(job, machine=replace(job.machine, **machine)), artifact, folders)

    assert doubt(now) == ""
    assert doubt(now, device="cuda") == "a GPU computed them"
    assert doubt(now, ranks=1) == "the window was trained by 2 ranks, but the record names 1"
    assert doubt({**now, "packages": {"torch": "0"}}).startswith("this machine's software is {'torch': ")
    assert doubt({**now, "python": "2"}).endswith("but the record has 2")
    assert doubt({**now, "hardware": {**now["hardware"], "processor": "abacus"}}).endswith("but the record has abacus")
