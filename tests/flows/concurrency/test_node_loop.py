"""The loop alone, with nodes that do nothing: which start when, whatever ends first, and what becomes of those that run when one fails."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from queue import SimpleQueue
from typing import Any

import pytest

from flows.concurrency.node_loop import NodeLoop
from flows.concurrency.room import NOTHING, Need, Room
from stages.record.contract.declaration import Artifact
from stages.record.contract.states import NodeState
from stages.record.run.runner import Result

WAITS = {"a": [], "b": [], "c": ["a"], "d": ["a", "b"], "e": [], "f": ["c", "d", "e"]}
ONE = Need(1, 1)


@dataclass
class Toys:
    """Nodes that end in the order of `ends`, as soon as they run; each notes what ran beside it when it started."""

    ends: Sequence[str]
    needs: Mapping[str, Need] = field(default_factory=dict)
    errors: Mapping[str, BaseException] = field(default_factory=dict)
    cached: Sequence[str] = ()
    running: list[str] = field(default_factory=list)
    beside: dict[str, set[str]] = field(default_factory=dict)
    here: list[str] = field(default_factory=list)
    order: list[str] = field(default_factory=list)
    failures: list[str] = field(default_factory=list)
    left: list[list[str]] = field(default_factory=list)
    stopped: list[signal.Signals] = field(default_factory=list)
    awaited: int = 0
    change: threading.Condition = field(default_factory=threading.Condition)

    def at_once(self, node: str) -> bool:
        return node in self.cached

    def need(self, node: str) -> Need:
        return self.needs.get(node, ONE)

    def starts(self, node: str) -> None:
        with self.change:
            self.beside[node] = {*self.running}
            self.running.append(node)

    def perform(self, node: str, apart: bool) -> Result:
        if not apart:
            self.here.append(node)
        with self.change:
            assert self.change.wait_for(lambda: not apart or (bool(self.stopped) or self.awaited > 0) and self._is_next(node), 10)
            self.awaited -= apart
            self.running.remove(node)
            self.change.notify_all()
        if node in self.errors:
            raise self.errors[node]
        return Result(NodeState.BUILT, Artifact(Path(node), {}))  # type: ignore[typeddict-item]

    def _is_next(self, node: str) -> bool:
        return bool(self.stopped) or min(self.running, key=self.ends.index) == node

    def ended(self, node: str, result: Result) -> None:
        assert result.artifact.path == Path(node)
        self.order.append(node)

    def failed(self, node: str, error: BaseException, beside: Sequence[str]) -> None:
        self.failures.append(node)
        self.left.append([*beside])

    def stop(self, number: signal.Signals) -> None:
        with self.change:
            self.stopped.append(number)
            self.change.notify_all()

    def works(self) -> bool:
        return bool(self.running)


class Ends(SimpleQueue[Any]):
    """Tells the nodes when the loop waits for them, so that all that it starts before run."""

    def __init__(self, toys: Toys) -> None:
        """Creates it for these nodes."""
        self.toys = toys

    def get(self, block: bool = True, timeout: float | None = None) -> Any:
        with self.toys.change:
            self.toys.awaited += 1
            self.toys.change.notify_all()
        return super().get(block, timeout)


def run(toys: Toys, room: Room, waits: Mapping[str, Sequence[str]] = WAITS) -> Toys:
    NodeLoop(waits, toys, room, ends=Ends(toys)).run()
    return toys


@pytest.mark.parametrize("seed", range(20))
def test_every_node_runs_once_after_its_inputs_whatever_ends_first(seed: int) -> None:
    ends = random.Random(seed).sample([*WAITS], len(WAITS))
    toys = run(Toys(ends), Room(3, 8, 100))
    assert sorted(toys.order) == sorted(WAITS) and not toys.failures
    for node, before in WAITS.items():
        assert {toys.order.index(one) < toys.order.index(node) for one in before} <= {True}
        assert not toys.beside[node] & {*before} and len(toys.beside[node]) < 3


def test_with_one_at_once_the_nodes_run_here_in_pipeline_order() -> None:
    toys = run(Toys([*WAITS]), Room(1, 8, 100))
    assert toys.order == toys.here == [*WAITS] and not any(toys.beside.values())


def test_a_node_that_nothing_can_run_beside_is_performed_here() -> None:
    toys = run(Toys([*WAITS]), Room(4, 8, 100))
    assert toys.here == ["f"], "the others have company when they start"
    toys = run(Toys([*WAITS], needs={"a": Need(8, 1)}), Room(4, 8, 100))
    assert toys.here == ["a", "f"] and toys.order[0] == "a"


def test_an_imported_node_is_no_company() -> None:
    toys = run(Toys(["a", "b"], needs={"b": NOTHING}, cached=["b"]), Room(4, 8, 100), {"a": [], "b": []})
    assert toys.here == ["a"]


def test_what_runs_at_once_never_needs_more_than_there_is() -> None:
    needs = {"a": Need(3, 10), "b": Need(2, 60), "c": Need(1, 50), "d": Need(4, 1), "e": Need(1, 1), "f": Need(9, 900)}
    room = Room(4, 4, 100)
    for seed in range(20):
        toys = run(Toys(random.Random(seed).sample([*WAITS], len(WAITS)), needs), room)
        for node, beside in toys.beside.items():
            together = [needs[one] for one in (node, *beside)]
            assert not beside or (sum(one.cores for one in together) <= 4 and sum(one.memory_bytes for one in together) <= 100)
        assert toys.beside["f"] == set(), "more than there is: alone"


def test_two_nodes_never_compute_on_the_gpus_at_once() -> None:
    needs = {"a": Need(1, 1, gpus=True), "b": Need(1, 1), "e": Need(1, 1, gpus=True)}
    toys = run(Toys(["b", "a", "e"], needs), Room(4, 8, 100), {"a": [], "b": [], "e": []})
    assert toys.beside == {"a": set(), "b": {"a"}, "e": set()}


def test_a_node_without_room_holds_back_those_after_it() -> None:
    """Else the large b would wait for a, c and e one after another."""
    needs = {"a": Need(2, 1), "b": Need(3, 1), "c": Need(1, 1)}
    toys = run(Toys(["a", "b", "c"], needs), Room(4, 4, 100), {"a": [], "b": [], "c": []})
    assert toys.order == ["a", "b", "c"] and toys.beside == {"a": set(), "b": set(), "c": {"b"}}


def test_what_is_cached_takes_no_room() -> None:
    toys = run(Toys([*WAITS], needs=dict.fromkeys(WAITS, Need(8, 1)), cached=["a", "c"]), Room(4, 8, 100))
    assert toys.order == toys.here == ["b", "d", "e", "f"]


def test_when_a_node_fails_no_other_starts_and_those_that_run_end() -> None:
    toys = Toys(["b", "a", "e", "c", "d", "f"], errors={"b": ValueError("b fails")})
    with pytest.raises(ValueError, match="b fails"):
        run(toys, Room(3, 8, 100))
    assert (toys.order, toys.failures, toys.left, toys.stopped) == (["a", "e"], ["b"], [["a", "e"]], []) and "c" not in toys.beside


def test_of_two_that_fail_the_first_is_raised_and_both_are_noted() -> None:
    toys = Toys(["e", "a", "b"], errors={"a": ValueError("a fails"), "e": ValueError("e fails")})
    with pytest.raises(ValueError, match="e fails"):
        run(toys, Room(3, 8, 100))
    assert (toys.order, toys.failures) == (["b"], ["e", "a"])


@pytest.mark.parametrize(("error", "told"), [(KeyboardInterrupt(), signal.SIGUSR2), (SystemExit(), signal.SIGUSR1)])
def test_an_interruption_is_told_to_those_that_run_and_all_are_waited_for(error: BaseException, told: signal.Signals) -> None:
    toys = Toys(["b", "a", "e"], errors={"b": error, "a": KeyboardInterrupt()})
    with pytest.raises(type(error)):
        run(toys, Room(3, 8, 100))
    assert (toys.stopped, toys.failures, toys.order) == ([told], ["b", "a"], ["e"]), "e was done before it was told"


def test_a_second_interruption_kills(monkeypatch: pytest.MonkeyPatch) -> None:
    toys = Toys(["b", "a"], errors={"b": KeyboardInterrupt()})

    def again() -> bool:
        raise KeyboardInterrupt

    monkeypatch.setattr(toys, "works", again)
    monkeypatch.setattr(toys, "_is_next", lambda node: node == "b")
    with pytest.raises(KeyboardInterrupt):
        run(toys, Room(2, 8, 100), {"a": [], "b": []})
    assert toys.stopped == [signal.SIGUSR2, signal.SIGKILL]
