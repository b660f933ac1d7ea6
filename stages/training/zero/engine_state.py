"""Reads and sets the state of a started engine: fp32 weights and the optimizer's state, by parameter and not by flat tensor.

Guarantee: after `assign`, the fp32 weights, the optimizer's state and the weights of the forward pass agree on all ranks.
Cost: one copy of this rank's part of the state.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import NamedTuple

from torch import Tensor

from stages.training.launch.events import PartitionSizes
from stages.training.optimizers.optimizer import full_shape, is_hidden_matrix
from stages.training.zero.engine import Engine
from stages.training.zero.partitions import WEIGHT


class LocalPart(NamedTuple):
    """This rank's part of a tensor of a parameter, without padding: parameter, WEIGHT or state, first element, flat fp32 values."""

    name: str
    what: str
    begin: int
    values: Tensor


def full_size(engine: Engine, name: str) -> int:
    """Returns the number of elements of the whole parameter `name`."""
    size = 1
    for side in full_shape(engine.named[name]):
        size *= side
    return size


def partition_sizes(engine: Engine) -> PartitionSizes:
    """Returns the element counts of all parameters, on this rank and in the model."""
    return PartitionSizes(
        held=sum(engine.partitions.part(name).length for name in engine.named),
        resident=sum(param.numel() for param in engine.named.values()),  # of the trained ones
        parameters=sum(full_size(engine, name) for name in engine.named),
    )


def local_weights(engine: Engine) -> Iterator[tuple[str, Tensor]]:
    """Yields (parameter, this rank's flat fp32 part of it, with padding) of every parameter that the rank has a part of."""
    for name in engine.named:
        if engine.partitions.part(name).length:
            yield name, engine.partitions.read(name, WEIGHT)


def local_state(engine: Engine) -> Iterator[LocalPart]:
    """Yields this rank's parts of all tensors; of a parameter that the rank has no element of, nothing."""
    for name in engine.named:
        begin, length = engine.partitions.part(name)
        real = min(length, full_size(engine, name) - begin)
        if real > 0:
            for what in (WEIGHT, *engine.optimizer.tensors(is_hidden_matrix(name))):
                yield LocalPart(name, what, begin, engine.partitions.read(name, what)[:real])


def optimizer_steps(engine: Engine, step: int) -> int:
    """Returns the number of updates that the optimizer counted, or `step` if it does not count them.

    Raises:
        RuntimeError: The counts of the parameter groups differ.
    """
    names = {*engine.optimizer.counts(True), *engine.optimizer.counts(False)}
    counts = {int(state[name]) for state in engine.ds_engine.optimizer.optimizer.state.values() for name in names & set(state)}
    if len(counts) > 1:
        raise RuntimeError(f"The optimizer's groups have different step counts: {sorted(counts)}.")
    return counts.pop() if counts else step


def assign_frozen(engine: Engine, partition: Callable[[str, str, int, int], Tensor]) -> None:
    """Sets the weights that are not trained, which no optimizer has: whole under ZeRO 1, this rank's part under ZeRO 3. partition: see `assign`."""
    for name, param in engine.frozen.items():
        divided = hasattr(param, "ds_tensor")
        values: Tensor = (param.ds_tensor if divided else param).data
        begin = engine.rank * values.numel() if divided else 0
        values.copy_(partition(name, WEIGHT, begin, values.numel()).view_as(values))
        if divided:
            param.ds_secondary_tensor = None  # a group's copy of the weights before
    engine.barrier()


def assign(engine: Engine, partition: Callable[[str, str, int, int], Tensor], step: int | None = None) -> None:
    """Sets the weights and, unless step is None, the optimizer's state.

    Args:
        engine: The started engine.
        partition: (parameter name, "weight" or the name of an optimizer state, begin, length) -> flat fp32 slice of the full tensor. Beyond
            the end of the tensor, the slice is zero.
        step: Updates that the optimizer has made; at 0 its state is zero, also before a first update that the guard may leave out. None: no
            state, for scoring. Every group gets its own state tensors.
    """
    if step is not None:
        engine.partitions.start_state(step)
    for name in engine.named:
        begin, length = engine.partitions.part(name)
        states = engine.optimizer.tensors(is_hidden_matrix(name)) if step else ()
        for what in (WEIGHT, *states) if length else ():
            engine.partitions.write(name, what, partition(name, what, begin, length))
    engine.partitions.publish()
    engine.barrier()
