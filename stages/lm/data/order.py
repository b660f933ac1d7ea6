"""Maps every training position to a sequence by a stateless bijection, so one integer is enough to resume.

A sequence is a fixed number of tokens, packed from segments of documents. The sequence at a position is
start_sequence(phase) + permutation(seed, phase, epoch)(offset of the position in its phase and epoch).
Global batch b of size B is positions b·B … b·B+B-1 for every number of ranks. An epoch goes through the phases in order.
The sequences after the last full global batch of a phase are not trained in that epoch; another epoch has another permutation and leaves
out others.
Therefore no batch crosses a phase or an epoch.

Guarantee: no sequence comes twice within one epoch.
Cost: about 0.2 µs per sequence, and 50 µs per phase of an epoch; memory only for the result.
Source: Black and Rogaway, "Ciphers with arbitrary finite domains" (CT-RSA 2002): a Feistel network on the next even number of bits, applied
again until the result is in range (known as cycle walking).
"""

from __future__ import annotations

import hashlib
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROUNDS = 6


class OrderError(ValueError):
    """An impossible order: no phase holds a full global batch, or a position or index is out of range."""


@dataclass(frozen=True)
class Phase:
    """`sequences` consecutive sequences of the mixture, from `start_sequence` on."""

    start_sequence: int
    sequences: int


@dataclass(frozen=True)
class Places:
    """The sequence, phase and epoch of each position: int64 arrays of equal length. phase and epoch count from 0."""

    position: np.ndarray
    sequence: np.ndarray
    phase: np.ndarray
    epoch: np.ndarray


@dataclass(frozen=True)
class Order:
    """The order of all sequences of a training run.

    Raises:
        OrderError: No phase holds a full global batch.
    """

    phases: tuple[Phase, ...]
    seed: int
    global_batch_size: int

    def __post_init__(self) -> None:
        if self.sequences_per_epoch == 0:
            largest = max((phase.sequences for phase in self.phases), default=0)
            raise OrderError(
                f"No phase holds one global batch: the largest has {largest} sequences, and global_batch_size is {self.global_batch_size}. "
                "Use more data or a smaller global_batch_size."
            )

    @property
    def sequences_per_epoch(self) -> int:
        """Sequences trained in one epoch: each phase rounded down to whole global batches."""
        return sum(self._trained(phase) for phase in self.phases)

    @property
    def steps_per_epoch(self) -> int:
        return self.sequences_per_epoch // self.global_batch_size

    @property
    def sequences_left_over(self) -> int:
        """Sequences that one epoch does not train."""
        return sum(phase.sequences - self._trained(phase) for phase in self.phases)

    def places(self, start: int, count: int) -> Places:
        """Returns the places of positions start … start+count-1.

        Raises:
            OrderError: `start` or `count` is negative.
        """
        if start < 0 or count < 0:
            raise OrderError(f"Positions start at 0; {count} from {start} were requested.")
        places = Places(np.arange(start, start + count, dtype=np.int64), *(np.empty(count, np.int64) for _ in range(3)))
        ends = np.cumsum([self._trained(phase) for phase in self.phases]).tolist()
        done = 0
        while done < count:
            epoch, offset = divmod(start + done, self.sequences_per_epoch)
            index = bisect_right(ends, offset)
            phase, begin = self.phases[index], ends[index] - self._trained(self.phases[index])
            until = min(count, done + ends[index] - offset)
            within = np.arange(offset - begin, offset - begin + until - done, dtype=np.int64)
            keys = permutation_keys(self.seed, index, epoch)
            places.sequence[done:until] = phase.start_sequence + permute(within, phase.sequences, keys)
            places.phase[done:until], places.epoch[done:until] = index, epoch
            done = until
        return places

    def sequences_of_step(self, step: int) -> np.ndarray:
        """Returns the sequences of global batch `step`, counted from 0: int64 [global_batch_size]."""
        return self.places(step * self.global_batch_size, self.global_batch_size).sequence

    def _trained(self, phase: Phase) -> int:
        return phase.sequences - phase.sequences % self.global_batch_size


def sequence_at(position: int, phases: Sequence[Phase], seed: int, global_batch_size: int) -> int:
    """Returns the sequence at one position."""
    return int(Order(tuple(phases), seed, global_batch_size).places(position, 1).sequence[0])


def permutation_keys(seed: int, phase: int, epoch: int) -> np.ndarray:
    """Returns the round keys of one permutation: uint64 [ROUNDS], from the sha512 of seed, phase and epoch."""
    # The text decides the order of every training. It keeps its old word "row", so that the order stays the same.
    digest = hashlib.sha512(f"loam row order {seed} {phase} {epoch}".encode()).digest()
    return np.frombuffer(digest, dtype="<u8")[:ROUNDS].astype(np.uint64)


def permute(index: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """Returns the images of `index` under a permutation of range(size).

    Args:
        index: int64, 0 ≤ index < size.
        size: Size of the permuted range.
        keys: The round keys, from `permutation_keys`.

    Raises:
        OrderError: An index is out of range.
    """
    if index.size and (index.min() < 0 or index.max() >= size):
        raise OrderError(f"An index is outside the permutation of {size} sequences.")
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    out = index.astype(np.uint64)
    outside = np.ones(out.shape, bool)
    while outside.any():
        out[outside] = _feistel(out[outside], half_bits, keys)
        outside &= out >= size
    return out.astype(np.int64)


def _feistel(value: np.ndarray, half_bits: int, keys: np.ndarray) -> np.ndarray:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = value >> bits, value & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << bits) | right


def _mix(value: np.ndarray) -> np.ndarray:
    """Returns the finaliser of splitmix64 (Steele et al., OOPSLA 2014). uint64 arithmetic wraps."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    mixed: np.ndarray = value ^ (value >> np.uint64(31))
    return mixed
