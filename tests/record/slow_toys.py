"""A toy stage that takes time and ends as a test says, for tests of nodes that run at once."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path

from stages.record.contract.declaration import Artifact, Context, Outcome, Stage
from stages.record.contract.errors import StageError
from stages.record.settings import StageConfig


class SlowConfig(StageConfig):
    """How to end, and what to wait for."""

    ends: str = ""
    """How it ends: "" well, "error" with an error, "killed" by SIGKILL, "network" with an error of the network, "fault" with one of its code."""
    waits_for: str = ""
    """A file that another node makes; it must be there within ten seconds, so both run at once."""
    makes: str = ""
    """A file that it makes at its start."""


def run_slow(config: SlowConfig, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes what it reads after the seconds that LOAM_TOY_SECONDS has for its node, and changes what a process has only once."""
    if config.makes:
        Path(config.makes).write_text(str(os.getpid()), encoding="utf-8")
    end = time.monotonic() + 10
    while config.waits_for and not Path(config.waits_for).exists():
        if time.monotonic() > end:
            raise StageError(f"{ctx.node} waited for {config.waits_for} in vain.")
        time.sleep(0.01)
    random.seed(ctx.seed)
    os.environ["LOAM_TOY_NODE"] = ctx.node
    drawn, seconds = [], json.loads(os.environ.get("LOAM_TOY_SECONDS", "{}")).get(ctx.node, 0.0)
    for part in range(10):
        ctx.progress(part + 1, 10, "parts")
        drawn.append(random.random())
        time.sleep(seconds / 10)
    if config.ends == "error":
        raise StageError(f"{ctx.node} was told to fail.", where="here", do="nothing")
    if config.ends == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if config.ends == "network":
        raise ConnectionResetError(f"{ctx.node} lost its server")
    if config.ends == "fault":
        raise ZeroDivisionError(f"{ctx.node} has a fault")
    read = sorted((one.path / "numbers.txt").read_text() for one in inputs.values())
    (out / "numbers.txt").write_text(f"{os.environ['LOAM_TOY_NODE']} {drawn} {read}")
    ctx.log(f"{ctx.node} wrote")
    return Outcome(rows=1 + len(read))


SLOW = Stage("slow", SlowConfig, run_slow, {}, "toys", ("first version",))
"""Nodes of it do not depend on each other unless a test gives them inputs."""
