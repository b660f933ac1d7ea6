"""What a node needs of this machine, what a run may use of it, and which nodes have room beside each other.

Guarantee: what nodes need together never exceeds what there is, unless one node alone does. A decision follows from the arguments alone.
Memory is that of an earlier build (stages/questions/estimate.py). Without one it is a guess on the safe side: CORE_BYTES per core (what a worker takes
at most), with MODEL_COPIES times the checkpoints and models that the node reads, or of a training on this machine the estimate of all its ranks.
"""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from stages.record.contract.declaration import Artifact
from stages.record.contract.environment import hardware
from stages.record.contract.runtime import Runtime
from stages.record.run.runner import computes_alone, runs_elsewhere

if TYPE_CHECKING:
    from flows.opened_recipe import Session
    from stages.questions.plan import Step

AT_ONCE, MANY_CORES = 4, 8
"""Nodes at once on a machine with many cores. On two busy cores, small nodes took longer in processes of their own than one after another (docs/runs.md)."""
CORE_BYTES = 2e9
"""Memory of a worker; `loam doctor` warns of less per worker, too."""
MODEL_COPIES = 2
"""Weights in bf16 are computed with in fp32 on a CPU."""
MODEL_KINDS = ("checkpoint", "model")


@dataclass(frozen=True)
class Need:
    """What a node needs of this machine while it runs. gpus: whether it computes on its GPUs, or on runtime.hosts, which it has for itself."""

    cores: int
    memory_bytes: float
    gpus: bool = False


NOTHING = Need(0, 0.0)
"""What an imported node needs."""


@dataclass(frozen=True)
class Room:
    """What the nodes of a run may use of this machine together. nodes: how many of them may run."""

    nodes: int
    cores: int
    memory_bytes: float

    def holds(self, needs: Sequence[Need]) -> bool:
        """Returns whether nodes with these needs may run at the same time. One alone always may."""
        if len(needs) <= 1:
            return True
        return (
            len(needs) <= self.nodes
            and sum(need.cores for need in needs) <= self.cores
            and sum(need.memory_bytes for need in needs) <= self.memory_bytes
            and sum(need.gpus for need in needs) <= 1
        )


def room_of(runtime: Runtime) -> Room:
    """Returns what a run may use of this machine."""
    from stages.training.run.training_run import limit_bytes

    cores = hardware()["cores"] or 1
    return Room(runtime.nodes_at_once or (AT_ONCE if cores >= MANY_CORES else 1), cores, limit_bytes())


def need_of(session: Session, step: Step, artifacts: Mapping[str, Artifact]) -> Need:
    """Returns what a node needs.

    Args:
        session: The recipe and its home.
        step: The node.
        artifacts: Node -> what is built. Before its inputs are built, the memory of a node that reads a model is not known.
    """
    if step.node in session.imported:
        return NOTHING
    runtime, stage = session.recipe.runtime, step.stage
    gpus = computes_alone(stage, runtime)
    if runs_elsewhere(stage, runtime):
        return Need(1, CORE_BYTES, gpus)
    cores = _cores(stage.cores, runtime, gpus)
    if (known := session.expected_bytes.get(step.node)) is not None:
        return Need(cores, known, gpus)
    if stage.cores == "ranks":
        models = _training_bytes(session, step, artifacts)
    else:
        read = [artifacts[node].manifest for node in step.reads.values() if node in artifacts]
        models = MODEL_COPIES * sum(one["bytes"] for one in read if one["kind"] in MODEL_KINDS)
    return Need(cores, CORE_BYTES * cores + models, gpus)


def _cores(kind: str, runtime: Runtime, gpus: bool) -> int:
    """Returns the cores of this machine that a node computes on. kind: `Stage.cores`."""
    if kind == "workers":
        here = runtime.engine == "local" or (runtime.engine == "ray" and not runtime.ray.address)
        return runtime.workers if here else 1
    if kind == "ranks":
        return runtime.gpus or runtime.cpu_ranks
    if kind == "all" and not gpus:
        threads = os.environ.get("OMP_NUM_THREADS", "")
        return int(threads) if threads.isdecimal() and int(threads) else hardware()["cores"] or 1
    return 1


def _training_bytes(session: Session, step: Step, artifacts: Mapping[str, Artifact]) -> float:
    """Returns the estimated memory of the ranks of a training: on GPUs it is theirs, and the machine's is taken to be as much. Infinite without a known model."""
    from stages.questions.training_size import model_shape, rank_memory_bytes
    from stages.training.job.training_settings import TrainingSettings

    config = session.recipe.sections[step.node]
    shape = model_shape(session.recipe, artifacts, session.off)
    if shape is None or not isinstance(config, TrainingSettings):
        return float("inf")
    runtime = session.recipe.runtime
    return float((runtime.gpus or runtime.cpu_ranks) * rank_memory_bytes(runtime, config, shape))
