"""A stage that writes what it was told, or fails in the way that its setting names."""

from __future__ import annotations

import errno
import json
import os
import signal
from collections.abc import Mapping
from pathlib import Path

from stages.evaluation.elsewhere.run_elsewhere import run_elsewhere
from stages.record.contract.declaration import Artifact, Context, ExternalFiles, Outcome, RecordCounts, Stage
from stages.record.contract.errors import StageError, VerificationError
from stages.record.settings import StageConfig

TRIES = 5


class Toy(StageConfig):
    """What the stage does."""

    does: str = "works"
    """The way in which it ends."""
    ratio: float = 0.1
    """A number that JSON could spoil."""
    max_bad_records: int = 0
    """Records that may be dropped."""
    texts: ExternalFiles = ()
    """Files that it reads."""


def run(config: Toy, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    with (ctx.scratch / "kept").open("a") as file:
        file.write("tried\n")
    tries = len((ctx.scratch / "kept").read_text().splitlines())
    if config.does == "refuses":
        raise StageError("Nothing fits.", where="a/b", do="Change it.")
    if config.does == "verifies":
        raise VerificationError("Bytes differ.", where="c", do="Look.")
    if config.does == "breaks":
        raise ValueError("an odd value")
    if config.does == "fills":
        raise OSError(errno.ENOSPC, "No space left on device", "/full/disk")
    if config.does == "dies" and tries < TRIES:
        os.kill(os.getpid(), signal.SIGKILL)
    if config.does == "dies idle":
        (ctx.scratch / "kept").unlink()
        os.kill(os.getpid(), signal.SIGKILL)
    for number in range(2 if config.does == "drops" else 0):
        ctx.drop("no text", f"record {number}", "{}")
    ctx.log("hello")
    ctx.progress(2, 2, "things", "all")
    read = {
        role: "".join(path.read_text(encoding="utf-8") for path in sorted(artifact.path.rglob("*.txt")))
        for role, artifact in inputs.items()
    }
    texts = [Path(file.uri).read_text(encoding="utf-8") for file in ctx.files("texts")]
    (out / "told.json").write_text(json.dumps([ctx.node, ctx.seed, config.ratio, read, texts]))
    (out / "below").mkdir()
    (out / "below" / "empty").touch()
    counts = RecordCounts(unit="lines", rows_in=3, kept=2, dropped={"odd": 1})
    return Outcome(rows=2, tokens=5, record_counts=counts, summary={"third": 1 / 3, "one": 1, "whole": 2.0, "word": "é", "none": None})


STAGE = Stage(
    name="toy", config=Toy, run=run, inputs={"words": "words"}, optional=("words",), output="toys", versions=("first",), unit="lines",
    summary={name: name for name in ("third", "one", "whole", "word", "none")}, whole_model=True, elsewhere=run_elsewhere,
)  # fmt: skip
