"""Asks a training stage which documents cause what a step showed. The stage replays its training in a scratch folder of its own.

Guarantee: nothing is published. What earlier runs left, and the artifact, are only read. While it works, nobody builds the same key, and gc
does not run.
Cost: what the stage's replay costs (stages/lm/train/blame.py).
"""

from __future__ import annotations

import shutil
from pathlib import Path

from stages.core.contract.errors import LoamError, StageError, of_the_disk
from stages.core.run import runner, scratch
from stages.core.run.node_job import NodeJob
from stages.core.store import runs
from stages.core.tables.training_tables import Blame, BlameRequest

OWNER = "loam stage --blame"


def blame_node(home: Path, job: NodeJob, step: int, report: runner.Report) -> Blame:
    """Returns the documents of a step, worst first.

    Args:
        home: The home folder.
        job: The node. Its stage trains (`Stage.blame`).
        step: The training step, from 1.
        report: Receives events.

    A replay that cannot be made is a StageError, a step that the training does not have a RecipeError.

    Raises:
        OSError: A file cannot be read or written, and the disk is not the reason.
    """
    assert job.stage.blame is not None, "the caller refuses other stages"
    try:
        with runs.hold_home(home), runner.held(home, job, OWNER, report):
            runner.refuse_damaged_inputs(home, job, OWNER, report)
            folder = scratch.blame_path(home, job)
            shutil.rmtree(folder, ignore_errors=True)
            (folder / "work").mkdir(parents=True)
            context = runner.make_context(home, job, folder / "work", report, _refuse_record)
            found = job.stage.blame(job.config, job.inputs, BlameRequest(step, _left(home, job)), context)
            shutil.rmtree(folder)  # after an error it stays: the output of the ranks is in it
            return found
    except OSError as error:
        clear: LoamError | None = of_the_disk(error, f"while {job.node} was replayed", home)
        if clear:
            raise clear from error
        raise


def _left(home: Path, job: NodeJob) -> tuple[Path, ...]:
    """Returns the folders with snapshots of the job: those in which it was built by this code, and its artifact."""
    folders = [scratch.scratch_path(home, job, force) for force in (False, True)]
    cached = runner.find_cached(home, job)
    return (*(folder / "work" for folder in folders if scratch.is_of_this_code(job, folder)), *((cached.path,) if cached else ()))


def _refuse_record(reason: str, where: str, record: str) -> None:
    raise StageError(reason, where=where, do="Correct the record.")
