"""Starts and ends the nodes of a run: in pipeline order, at once where room.py has room for them.

Guarantee: a node starts when its inputs are there. Of those nodes the first in pipeline order starts first, and holds back the others until it has room.
`NodeActions` is called in one thread only, the caller's. A node that nothing can run beside is performed there, too; others each on a thread.
When a node fails, no other starts, and those that run are brought to their end. An interruption of the caller, or an error of `ended` or `failed` (a record that
cannot be written), ends all of them: `stop` is told so, and a second interruption makes it tell SIGKILL.
"""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Mapping, Sequence
from contextvars import copy_context
from dataclasses import dataclass, field
from functools import partial
from queue import Empty, SimpleQueue
from typing import Protocol

from flows.concurrency.room import NOTHING, Need, Room
from stages.record.run.node_process import INTERRUPT, TERMINATE, StoppedError
from stages.record.run.runner import Result

LOOK_S = 0.2
"""Seconds between two looks at nodes that were told to end."""
IDLE_S = 5.0
"""Seconds after which a node that was told to end is left that does not work: it waits before it tries the network again."""


class NodeActions(Protocol):
    """What a run does with a node."""

    def at_once(self, node: str) -> bool:
        """Gets a node that is ready, and ends it if that needs no work: it is imported or cached. Returns whether it did."""

    def need(self, node: str) -> Need:
        """Returns what a node needs while it runs."""

    def starts(self, node: str) -> None:
        """Is told that a node starts."""

    def perform(self, node: str, apart: bool) -> Result:
        """Does the work of a node. apart: whether other nodes may run beside it; then the call is on a thread of its own."""

    def ended(self, node: str, result: Result) -> None:
        """Gets the result of a node."""

    def failed(self, node: str, error: BaseException, beside: Sequence[str]) -> None:
        """Gets the error of a node, and the nodes that still run."""

    def stop(self, number: signal.Signals) -> None:
        """Tells the nodes that run apart to end, by a signal."""

    def works(self) -> bool:
        """Returns whether some that run apart still work."""


@dataclass
class NodeLoop:
    """The nodes of a run and how far they are.

    Attributes:
        waits: Node -> nodes that must end before it starts, in pipeline order.
        actions: What the run does with a node.
        room: What the nodes may use together.
        done: Nodes that ended with a result.
        running: Node that runs -> what it needs.
        errors: Node that failed -> its error, the first one first.
        ends: Receives (node, its result or its error) from the threads.
    """

    waits: Mapping[str, Sequence[str]]
    actions: NodeActions
    room: Room
    done: set[str] = field(default_factory=set)
    running: dict[str, Need] = field(default_factory=dict)
    errors: dict[str, BaseException] = field(default_factory=dict)
    ends: SimpleQueue[tuple[str, Result | BaseException]] = field(default_factory=SimpleQueue)

    def run(self) -> None:
        """Runs all nodes. The error of the first node that failed is raised after those beside it have ended; an interruption of this call at once."""
        try:
            while len(self.done) < len(self.waits) and not self.errors:
                self._start()
                if self.running:
                    self._take(*self.ends.get())
            while self.running:
                self._take(*self.ends.get())
        except BaseException as error:
            self._end_all(TERMINATE if not isinstance(error, Exception | KeyboardInterrupt) else INTERRUPT)
            raise
        if self.errors:
            first, *_ = self.errors.values()
            raise first

    def _ready(self) -> list[str]:
        """Returns the nodes that could start, in pipeline order."""
        return [
            node
            for node, before in self.waits.items()
            if node not in self.done and node not in self.running and self.done.issuperset(before)
        ]

    def _start(self) -> None:
        """Starts what has room. Ends when a node has to wait, a node was performed here, or nothing is ready."""
        while ready := self._ready():
            node, *others = ready
            try:
                if self.actions.at_once(node):
                    self.done.add(node)
                    continue
            except Exception as error:  # noqa: BLE001 - it is raised when the others have ended
                self.errors[node] = error
                return
            need = self.actions.need(node)
            if not self.room.holds([*self.running.values(), need]):
                return
            self.actions.starts(node)
            if not self.running and not any(
                self.room.holds([need, beside]) for beside in map(self.actions.need, others) if beside != NOTHING
            ):
                self.running[node] = need
                self._take(node, _outcome(partial(self.actions.perform, node, apart=False)))
                return
            self.running[node] = need
            threading.Thread(target=copy_context().run, args=(self._perform, node), name=f"node {node}", daemon=True).start()

    def _perform(self, node: str) -> None:
        self.ends.put((node, _outcome(partial(self.actions.perform, node, apart=True))))

    def _take(self, node: str, end: Result | BaseException) -> None:
        """Notes how a node ended. If it was interrupted, so is the run."""
        del self.running[node]
        if isinstance(end, Result):
            self.actions.ended(node, end)
            self.done.add(node)
            return
        self.actions.failed(node, end, [*self.running])
        self.errors[node] = end
        if not isinstance(end, Exception):
            raise end

    def _end_all(self, number: signal.Signals) -> None:
        """Ends the nodes that run, and notes how they ended. What interrupts this call kills them."""
        idle_s = 0.0
        try:
            self.actions.stop(number)
            while self.running and idle_s < IDLE_S:
                try:
                    node, end = self.ends.get(timeout=LOOK_S)
                except Empty:
                    idle_s = 0.0 if self.actions.works() else idle_s + LOOK_S
                    continue
                del self.running[node]
                if isinstance(end, Result):
                    self.actions.ended(node, end)
                else:
                    self.actions.failed(node, end, [*self.running])
            for node in self.running:
                self.actions.failed(node, StoppedError(), [])
        except BaseException:
            self.actions.stop(signal.SIGKILL)
            raise


def _outcome(work: Callable[[], Result]) -> Result | BaseException:
    """Returns the result of a work, or its error."""
    try:
        return work()
    except BaseException as error:  # noqa: BLE001 - the loop raises it
        return error
