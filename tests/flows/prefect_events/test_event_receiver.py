"""What the receiver makes of the events of nodes that run at once: each task gets its own, in order, and ends as its node did."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from flows import task
from flows.prefect_events.event_receiver import _ShownNodes
from stages.record.contract.declaration import Artifact
from stages.record.run.runner import Report, Result
from stages.record.store import manifest


@pytest.fixture
def shown(monkeypatch: pytest.MonkeyPatch) -> dict[str, list[Any]]:
    """Node -> what its task got, and how it ended."""
    found: dict[str, list[Any]] = {}

    def step(node: str, work: Callable[[Report], Result]) -> Result:
        found[node] = []
        try:
            result = work(lambda event: found[event.node].append((node, event.kind, event.values.get("line"))))
        except BaseException as error:
            found[node].append(repr(error))
            raise
        found[node].append(str(result.state))
        return result

    monkeypatch.setattr(task, "step", step)
    monkeypatch.setattr(manifest, "read_artifact", lambda folder: Artifact(folder, {}))
    return found


def test_the_events_of_two_nodes_at_once_reach_each_its_task(shown: dict[str, list[Any]], tmp_path: Path) -> None:
    nodes = _ShownNodes(tmp_path)
    for node in "ab":
        nodes.take("node", node)
    for number in range(3):
        for node in "ba":
            nodes.take("log", node, {"line": f"{node}{number}"})
    nodes.take("failed", "b", "b is broken")
    nodes.take("result", "a", "built", "a/0123", 1.5)
    nodes.end()
    assert shown["a"] == [*(("a", "log", f"a{number}") for number in range(3)), "built"]
    assert shown["b"] == [*(("b", "log", f"b{number}") for number in range(3)), "StageError('b is broken')"]


def test_nodes_of_a_run_that_was_stopped_are_interrupted(shown: dict[str, list[Any]], tmp_path: Path) -> None:
    nodes = _ShownNodes(tmp_path)
    for node in "ab":
        nodes.take("node", node)
    nodes.take("failed", "a", "")
    nodes.end()
    assert shown == {"a": ["KeyboardInterrupt()"], "b": ["KeyboardInterrupt()"]}


def test_an_error_of_prefect_in_a_task_ends_the_receiver(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def step(node: str, work: Callable[[Report], Result]) -> Result:
        raise ConnectionError(f"no server for {node}")

    monkeypatch.setattr(task, "step", step)
    nodes = _ShownNodes(tmp_path)
    nodes.take("node", "a")
    nodes.take("log", "a", {"line": "nobody reads it"})
    with pytest.raises(ConnectionError, match="no server for a"):
        nodes.end()
