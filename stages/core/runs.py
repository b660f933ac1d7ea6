"""The record of a run: what was asked, by which code on which machine, and what became of each node.

Durable and append-only: <home>/runs/<run id>/run.json is written at the start, one line per node goes to nodes.jsonl, and
end.json says how it ended. A run without end.json was killed. One run at a time works on a home (an fcntl lock).
"""

from __future__ import annotations

import datetime
import fcntl
import json
import os
import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from stages.core import code
from stages.core.environment import all_packages, environment, utc_now
from stages.core.errors import RecipeError, StageError
from stages.core.recipe import Recipe


def start_run(home: Path, recipe: Recipe, command: Mapping[str, Any]) -> str:
    """Records a new run and returns its id, "<date>-<time>-<recipe>-<4 hex digits>"."""
    now = datetime.datetime.now(datetime.UTC)
    run_id = f"{now:%Y%m%d-%H%M%S}-{recipe.name}-{secrets.token_hex(2)}"
    folder = home / "runs" / run_id
    folder.mkdir(parents=True)
    record = {
        "run_id": run_id,
        "recipe": recipe.name,
        "recipe_source": recipe.source,
        "resolved": recipe.resolved(),
        "command": dict(command),
        "code": code.git_state(),
        "environment": environment(),
        "packages": all_packages(),
        "started": now.isoformat(timespec="milliseconds"),
    }
    _write(folder / "run.json", json.dumps(record, ensure_ascii=False))
    return run_id


def record_node(home: Path, run_id: str, node: str, state: str, artifact: str = "", seconds: float = 0.0, message: str = "") -> None:
    """Appends what became of a node: state is cached | done | identical | differs | failed."""
    line = {"node": node, "state": state, "artifact": artifact, "seconds": round(seconds, 3), "message": message, "ended": utc_now()}
    with (home / "runs" / run_id / "nodes.jsonl").open("a", encoding="utf-8") as file:
        file.write(json.dumps(line, ensure_ascii=False) + "\n")
        file.flush()
        os.fsync(file.fileno())


def end_run(home: Path, run_id: str, state: str) -> None:
    """state: done | failed | interrupted."""
    _write(home / "runs" / run_id / "end.json", json.dumps({"state": state, "ended": utc_now()}))


def all_runs(home: Path) -> Iterator[dict[str, Any]]:
    """Every recorded run with its nodes, oldest first. state "running" means: no end was recorded and its lock is held."""
    for path in sorted((home / "runs").glob("*/run.json")):
        record = json.loads(path.read_text(encoding="utf-8"))
        end, nodes = path.parent / "end.json", path.parent / "nodes.jsonl"
        record |= (
            json.loads(end.read_text())
            if end.is_file()
            else {"state": "running" if _held_by(home) == record["run_id"] else "killed", "ended": None}
        )
        lines = nodes.read_text(encoding="utf-8").splitlines() if nodes.is_file() else []
        record["nodes"] = [json.loads(line) for line in lines if line.endswith("}")]
        yield record


@contextmanager
def home_lock(home: Path, run_id: str = "") -> Iterator[Any]:
    """Holds the home for one run; a second one is refused with the id and process of the first. Yields a function that names the run."""
    try:
        home.mkdir(parents=True, exist_ok=True)
        handle = (home / "run.lock").open("a+")
    except OSError as error:
        raise RecipeError(
            "The home folder cannot be written.", where=str(error.filename or home), do="Mend its permissions or set --home."
        ) from None
    try:
        try:
            fcntl.flock(handle, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            handle.seek(0)
            raise StageError(
                "Another run is working on this home.",
                where=f"{home} ({handle.read().strip() or 'just starting'})",
                do="Wait until it ends, stop it, or give this run its own home with --home.",
            ) from None

        def name(identity: str) -> None:
            handle.truncate(0)
            handle.write(f"run {identity}, process {os.getpid()}")
            handle.flush()

        name(run_id or "starting")
        yield name
    finally:
        handle.close()


def _held_by(home: Path) -> str:
    """The id of the run that holds the home's lock now; empty when none does."""
    lock = home / "run.lock"
    if not lock.is_file():
        return ""
    with lock.open("r") as handle:
        try:
            fcntl.flock(handle, fcntl.LOCK_SH | fcntl.LOCK_NB)
        except BlockingIOError:
            return handle.read().partition("run ")[2].partition(",")[0]
    return ""


def _write(path: Path, text: str) -> None:
    temporary = path.with_suffix(".tmp")
    with temporary.open("w", encoding="utf-8") as file:
        file.write(text)
        file.flush()
        os.fsync(file.fileno())
    os.replace(temporary, path)
