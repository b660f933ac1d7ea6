"""Shards on Slurm, whose commands are played by tests/record/engines/fake_slurm.py. `make test-cluster` runs a real one."""

from __future__ import annotations

import hashlib
import json
import os
import pickle
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from flows.cli import main as loam
from stages.record.contract.errors import RecipeError, StageError
from stages.record.contract.runtime import Runtime, SlurmRequest
from stages.record.engines import slurm
from stages.record.engines.worker import REFUSED, Bundle, main
from stages.record.tables.shards import Meter, ShardJob, run_shards
from tests.conftest import PROJECT, run_stage
from tests.record.engines import fake_slurm
from tests.record.toys import WORDS


@pytest.fixture
def arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder with what the fake Slurm knows. Its elements are ended at the end."""
    state = fake_slurm.install(tmp_path / "slurm")
    monkeypatch.setenv("PATH", f"{tmp_path / 'slurm'}:{os.environ['PATH']}")
    monkeypatch.setenv("PYTHONPATH", str(PROJECT))
    monkeypatch.setattr(slurm, "POLL_S", 0.05)
    yield state
    for path in state.glob("*/pids/*"):
        with suppress(ProcessLookupError):
            os.killpg(int(path.name), signal.SIGKILL)


class Stage:
    """What run_shards uses of a stage's context."""

    def __init__(self, scratch: Path, **asked: Any) -> None:
        self.node, self.scratch, self.said = "toy", scratch, list[str]()
        self.runtime = Runtime(engine="slurm", slurm=SlurmRequest(**asked))
        self.log = self.said.append

    def progress(self, *values: Any) -> None: ...


def shard(folder: Path, task: dict[str, str], meter: Meter) -> dict[str, str]:
    """A toy: what it does besides its file is in the task."""
    meter.at(f"record of {task['word']}")
    if "once" in task and not Path(task["once"]).exists():
        Path(task["once"]).touch()
        os.kill(os.getpid(), signal.SIGKILL)
    if task.get("fails") == "designed":
        raise StageError("The page cannot be read.", where=task["word"], do="Leave it out.")
    if task.get("fails") == "crash":
        raise ValueError(f"no way with {task['word']}")
    if "sleep" in task:
        time.sleep(float(task["sleep"]))
    (folder / "word.txt").write_text(task["word"])
    meter.add(1, len(task["word"]))
    return {"word": task["word"]}


def words(count: int, **more: dict[str, str]) -> list[dict[str, str]]:
    return [{"word": f"w{number}"} | more.get(f"w{number}", {}) for number in range(count)]


def test_shards_are_made_by_an_array_and_nothing_is_left(arrays: Path, tmp_path: Path) -> None:
    stage: Any = Stage(tmp_path / "scratch", elements=3, partition="long", account="me", memory_mb=700, time_min=5, at_once=2, cores=4)
    shards = run_shards(shard, words(7), stage, "toys")
    assert [one.result["word"] for one in shards] == [f"w{number}" for number in range(7)]
    assert [(one.path / "word.txt").read_text() for one in shards] == [f"w{number}" for number in range(7)]
    asked = set((arrays / "1" / "words").read_text().split("\n"))
    assert {
        "--array=0-2%2",
        "--partition=long",
        "--account=me",
        "--mem=700M",
        "--time=5",
        "--cpus-per-task=4",
        "--job-name=loam:toy:toys",
    } <= asked
    left = {path.name for path in (tmp_path / "scratch" / "toys").iterdir()}
    assert left == {*(f"{number:05d}" for number in range(7)), "jobs-0.pickle", "slurm-logs"}
    assert stage.said == [f"array 1 of Slurm: 7 shards of toys in 3 elements; their output is in {tmp_path / 'scratch/toys/slurm-logs'}"]
    assert not list(arrays.glob("1/cancelled"))
    run_shards(shard, words(7), stage, "toys")
    assert len(stage.said) == 1, "what is there is not made again"


def test_a_killed_element_is_submitted_again_for_what_it_left(arrays: Path, tmp_path: Path) -> None:
    stage: Any = Stage(tmp_path / "scratch", elements=2)
    run_shards(shard, words(5, w2={"once": str(tmp_path / "killed")}), stage, "toys")
    assert [line.split("; ")[0] for line in stage.said] == [
        "array 1 of Slurm: 5 shards of toys in 2 elements", "array 2 of Slurm: 2 shards of toys in 2 elements",
    ]  # fmt: skip
    assert not list((tmp_path / "scratch" / "toys").glob("*.partial")), "that of the killed attempt is gone too"


def test_a_designed_error_is_that_of_the_shard_and_the_others_are_made(arrays: Path, tmp_path: Path) -> None:
    stage: Any = Stage(tmp_path / "scratch", elements=1)
    with pytest.raises(StageError, match=r"The page cannot be read\.") as caught:
        run_shards(shard, words(4, w1={"fails": "designed"}), stage, "toys")
    assert (caught.value.where, caught.value.do) == ("w1", "Leave it out.") and len(stage.said) == 1, "another attempt would end in it too"
    assert sorted(path.name for path in (tmp_path / "scratch" / "toys").glob("0000?")) == ["00000", "00002", "00003"]


def test_a_shard_that_fails_each_time_is_named_with_its_record_and_the_log(arrays: Path, tmp_path: Path) -> None:
    stage: Any = Stage(tmp_path / "scratch", elements=1)
    with pytest.raises(
        StageError, match="1 shards of toys are missing after 3 submissions. Shard 00001 failed at record of w1: ValueError: no way with w1"
    ):
        run_shards(shard, words(3, w1={"fails": "crash"}), stage, "toys")
    assert len(stage.said) == 3
    log = next((tmp_path / "scratch" / "toys" / "slurm-logs").glob("3-0.log")).read_text()
    assert "Traceback" in log and "no way with w1" in log
    run_shards(shard, words(3), stage, "toys")
    assert not list((tmp_path / "scratch" / "toys").glob("*.error.json"))


def test_a_driver_that_died_is_followed_by_one_that_waits_for_its_array(arrays: Path, tmp_path: Path) -> None:
    root = tmp_path / "scratch" / "toys"
    root.mkdir(parents=True)
    jobs = {number: ShardJob(shard, root / f"{number:05d}", task) for number, task in enumerate(words(3, w0={"sleep": "1"}))}
    first: Any = Stage(tmp_path / "scratch")
    job_id, elements = slurm._submit(jobs, root, first, "toys", 0)
    assert (job_id, elements) == ("1", 3) and json.loads((root / slurm.STATE).read_text()) == {"array": "1"}
    second: Any = Stage(tmp_path / "scratch")
    run_shards(shard, words(3), second, "toys")
    assert second.said == ["waits for array 1 of Slurm, which an earlier run submitted"] and not (root / slurm.STATE).exists()
    third: Any = Stage(tmp_path / "other")
    (tmp_path / "other" / "toys").mkdir(parents=True)
    (tmp_path / "other" / "toys" / slurm.STATE).write_text('{"array": "77"}')
    run_shards(shard, words(1), third, "toys")
    assert third.said[0].startswith("array 2 of Slurm"), "Slurm does not know array 77 any more"


def test_a_stopped_driver_cancels_its_array(arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def stopped(job_id: str, missing: Any) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(slurm, "_await", stopped)
    with pytest.raises(KeyboardInterrupt):
        run_shards(shard, words(2, w0={"sleep": "60"}), Stage(tmp_path / "scratch"), "toys")  # type: ignore[arg-type]
    assert (arrays / "1" / "cancelled").exists()


def test_a_controller_that_restarts_is_waited_for_and_one_that_is_gone_ends_the_stage(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "a").mkdir()
    missing: Any = {0: ShardJob(shard, tmp_path / "a" / "00000", {"word": "w"})}
    (arrays / "down").touch()
    monkeypatch.setattr(slurm.time, "sleep", lambda seconds: (arrays / "down").unlink(missing_ok=True))
    slurm._await("5", missing)  # it comes back, and does not know array 5
    (arrays / "down").touch()
    monkeypatch.setattr(slurm, "UNKNOWN_S", -1.0)
    with pytest.raises(StageError, match="Slurm has not said anything about array 5"):
        slurm._await("5", missing)


def test_an_array_that_slurm_refuses_is_one_message(arrays: Path, tmp_path: Path) -> None:
    with pytest.raises(StageError, match="Slurm refuses the array of toys: sbatch: error: Batch job submission failed: Invalid account"):
        run_shards(shard, words(1), Stage(tmp_path / "scratch", account="nobody"), "toys")  # type: ignore[arg-type]


def test_a_worker_of_other_code_other_versions_or_other_jobs_does_nothing(
    arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    bundle = Bundle({0: ShardJob(shard, tmp_path / "00000", {"word": "w"})}, __name__, slurm.code_digest(__name__), slurm.all_packages())
    file = tmp_path / "jobs.pickle"

    def code(given: Bundle, digest: str = "") -> int:
        file.write_bytes(pickle.dumps(given))
        digest = digest or hashlib.sha256(file.read_bytes()).hexdigest()
        return main([str(file), "--element", "0", "--of", "1", "--digest", digest, "--attempt", "a"])

    assert code(bundle, "0" * 64) == REFUSED and "is not the one that the driver wrote" in capsys.readouterr().err
    assert code(replace(bundle, code="other")) == REFUSED and f"the code of {__name__} is another one here" in capsys.readouterr().err
    assert (
        code(replace(bundle, packages=bundle.packages | {"numpy": "0"})) == REFUSED and "versions differ: numpy" in capsys.readouterr().err
    )
    assert not (tmp_path / "00000").exists()
    assert code(bundle) == 0 and (tmp_path / "00000" / "word.txt").read_text() == "w"


def test_a_refusal_of_a_node_is_one_message(arrays: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(slurm, "all_packages", lambda: {"numpy": "0"})
    with pytest.raises(StageError, match="A node of the cluster refused the shards: versions differ: ") as caught:
        run_shards(shard, words(1), Stage(tmp_path / "scratch"), "toys")  # type: ignore[arg-type]
    assert "Install the same release" in caught.value.do


def test_what_cannot_be_submitted_is_refused_before_any_work(arrays: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    slurm.refuse_unfit_slurm(Runtime(engine="slurm", slurm=SlurmRequest(partition="all,long")))
    with pytest.raises(RecipeError, match="Slurm has no partition 'gpu'") as caught:
        slurm.refuse_unfit_slurm(Runtime(engine="slurm", slurm=SlurmRequest(partition="gpu")))
    assert caught.value.do == "The partitions are: all, long."
    (arrays / "down").touch()
    with pytest.raises(RecipeError, match="Slurm does not answer: error: Unable to contact slurm controller"):
        slurm.refuse_unfit_slurm(Runtime(engine="slurm"))
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(RecipeError, match="runtime.engine is slurm, but this machine has no sbatch"):
        slurm.refuse_unfit_slurm(Runtime(engine="slurm"))
    slurm.refuse_unfit_slurm(Runtime())
    with pytest.raises(ValueError, match="partition"):
        SlurmRequest(partition="a b")


def test_a_command_that_hangs_is_no_answer(monkeypatch: pytest.MonkeyPatch) -> None:
    def hangs(words: list[str], **given: Any) -> None:
        raise subprocess.TimeoutExpired(words, 60)

    monkeypatch.setattr(slurm.subprocess, "run", hangs)
    assert slurm._is_active("1") is None


def test_a_stage_has_one_key_and_one_digest_on_both_engines(arrays: Path, tmp_path: Path) -> None:
    config = {"words": ["alpha", "beta", "gamma", "delta"]}
    local = run_stage(WORDS, config, {}, tmp_path / "local", runtime={"workers": 2})
    there = run_stage(WORDS, config, {}, tmp_path / "there", runtime={"engine": "slurm", "slurm": {"elements": 2}})
    assert (local.manifest["key"], local.manifest["digest"]) == (there.manifest["key"], there.manifest["digest"])
    assert list(arrays.iterdir()), "an array made them"


def test_the_plan_says_what_is_asked_of_slurm(arrays: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "a.warc.gz").write_bytes(b"x")
    words = ["plan", "corpus", "--until", "filter", "--home", str(tmp_path / "home"), "--set", f"crawl.warcs=[{tmp_path}/a.warc.gz]"]
    asked = "runtime.slurm={partition: long, account: me, memory_mb: 4000, at_once: 7}"
    assert loam([*words, "--set", "runtime.engine=slurm", "--set", asked]) == 0
    assert (
        "arrays of at most 1,000 elements, 7 at once; each: partition long, account me, 1 cores, 4,000 MB, default time"
        in capsys.readouterr().out
    )
    assert loam([*words, "--set", "runtime.engine=slurm", "--set", "runtime.slurm.partition=gpu"]) == 2
    assert "Slurm has no partition 'gpu'." in capsys.readouterr().err
