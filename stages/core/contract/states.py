"""What becomes of a node and of a run: the one vocabulary of plan, run records, index, dashboard, Prefect and messages.

A node's state is what a plan expects of it (cached, damaged, missing, waiting, imported) or what a run made of it (cached, built, identical,
differs, imported, failed, interrupted). The values are what records and tables hold.
"""

from __future__ import annotations

from enum import StrEnum


class NodeState(StrEnum):
    """State of one node in a plan or a run."""

    CACHED = "cached"
    """Its artifact is there: nothing to build."""
    BUILT = "built"
    """A run built its artifact."""
    IDENTICAL = "identical"
    """Built again on request, with the same digest as before; the earlier artifact stays."""
    DIFFERS = "differs"
    """Built again on request, with another digest; both artifacts stay (training only)."""
    IMPORTED = "imported"
    """An artifact that the recipe names stands in its place."""
    MISSING = "missing"
    """It has no artifact for this key: a run would build it."""
    WAITING = "waiting"
    """Its key is not known yet: a node or a file that it reads is not there."""
    DAMAGED = "damaged"
    """Its artifact is there, but a file of it is gone, of another size, or not its own."""
    FAILED = "failed"
    """Its stage raised an error."""
    INTERRUPTED = "interrupted"
    """Its run was stopped while it was built."""
    NOT_RUN = "not_run"
    """The run did not reach it, or was not asked for it."""


READY = frozenset({NodeState.CACHED, NodeState.IMPORTED})
"""A node in one of these states has an artifact to read, and nothing is to be built."""
BUILDS = (NodeState.BUILT, NodeState.IDENTICAL, NodeState.DIFFERS)
"""A run that leaves a node in one of these states executed its stage to the end."""


class RunState(StrEnum):
    """State of a run. Only the first three are written into its end.json."""

    DONE = "done"
    """Every node that it was asked for is cached, built or imported."""
    FAILED = "failed"
    """A node failed."""
    INTERRUPTED = "interrupted"
    """It was stopped."""
    RUNNING = "running"
    """It holds its lease."""
    KILLED = "killed"
    """It holds no lease and recorded no end."""


ENDS = (RunState.DONE, RunState.FAILED, RunState.INTERRUPTED)
