"""SIGTERM to `loam run`, as a batch system sends it: exit code 75, a snapshot, and the same command goes on to the same bytes."""

from __future__ import annotations

import json
import signal
import time
from pathlib import Path

import pytest

from stages.record.store import names, runs
from tests.chaos.pipeline import SETTINGS, held, remains, shared_environment, start, wait_until_gone, words
from tests.conftest import until

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1200)]

LONGER = SETTINGS | {"pretrain.budget.steps": "150", "pretrain.checkpoint_every_steps": "0", "pretrain.eval_every_steps": "40"}
GONE_WITHIN_S = 10


def last_run(home: Path) -> runs.RunRecord:
    return max((runs.read_run(home, run_id) for run_id in runs.run_ids(home)), key=lambda record: record["seq"])


def test_a_preempted_run_goes_on_from_the_step_at_which_it_was_stopped(tmp_path: Path, mark: str) -> None:
    home, said = tmp_path / "home", tmp_path / "said.txt"
    command = ["-m", "flows.cli", *words(home, "--until", "pretrain", "--as", "w6", settings=LONGER)]
    run = start(command, mark, said, shared_environment())
    until(lambda: list(home.glob("scratch/pretrain-*/work/metrics.jsonl")) or run.poll() is not None, 600)
    (metrics,) = home.glob("scratch/pretrain-*/work/metrics.jsonl")
    until(lambda: metrics.read_text().count('"loss"') > 10, 120)
    run.send_signal(signal.SIGTERM)
    began = time.monotonic()
    assert run.wait(timeout=120) == 75, said.read_text()[-3000:]
    print(f"\nSIGTERM: ended after {time.monotonic() - began:.1f} s")
    assert not wait_until_gone(mark, GONE_WITHIN_S) and not held(home)
    assert "stopped by SIGTERM; run the same command again to go on" in said.read_text()
    record = last_run(home)
    assert (record["state"], record["nodes"][-1]["node"], record["nodes"][-1]["state"]) == ("interrupted", "pretrain", "interrupted")
    (snapshot,) = home.glob("scratch/pretrain-*/work/resume/step-*")
    step = json.loads((snapshot / "trainer.json").read_text())["step"]
    assert 10 < step < 150 and snapshot.name == f"step-{step:010d}"
    cleaned = start(["-m", "flows.cli", "lineage", "gc", "--yes", "--home", str(home)], mark, said, shared_environment())
    assert cleaned.wait(timeout=60) == 0 and f"snapshot of interrupted {record['alias']}, step {step}" in said.read_text()
    again = start(command, mark, said, shared_environment())
    assert again.wait(timeout=600) == 0, said.read_text()[-3000:]
    assert names.all_names(home) == {"w6": last_run(home)["run_id"]}
    assert f"continues from step {step} (written by 2 ranks)" in said.read_text() and last_run(home)["state"] == "done"
    whole = words(home, settings=LONGER)[2:]
    forced = start(["-m", "flows.cli", "stage", "pretrain", "tiny", "--force", *whole], mark, said, shared_environment())
    assert forced.wait(timeout=600) == 0, said.read_text()[-3000:]
    assert last_run(home)["nodes"][-1]["state"] == "identical", "a run that was never stopped has the same bytes"
    assert not wait_until_gone(mark, GONE_WITHIN_S) and not remains(home)


def test_a_data_stage_ends_at_once_and_its_shards_are_kept(tmp_path: Path, mark: str) -> None:
    home, said = tmp_path / "home", tmp_path / "said.txt"
    command = ["-m", "flows.cli", *words(home, "--until", "filter")]
    run = start(command, mark, said, shared_environment())
    until(lambda: "extract" in held(home) or run.poll() is not None, 300)
    run.send_signal(signal.SIGTERM)
    assert run.wait(timeout=60) == 75, said.read_text()[-3000:]
    assert not wait_until_gone(mark, GONE_WITHIN_S) and not held(home) and last_run(home)["state"] == "interrupted"
    again = start(command, mark, said, shared_environment())
    assert again.wait(timeout=600) == 0 and last_run(home)["state"] == "done"
