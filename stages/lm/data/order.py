"""Which row is trained at which position: a stateless bijection, so that resuming is one integer.

row(p) = start(phase) + permutation(seed, phase, pass)(p - start(phase)). Global batch b is positions b·B … b·B+B-1 whatever
the number of ranks. A pass goes through the phases in order; the rows left after the last full global batch of a phase
are not trained in that pass (another permutation leaves out others), so neither a batch nor a pass crosses a phase.

Guarantee: within one pass no row comes twice. Cost: about 0.2 µs per row, no memory. Source: Black and Rogaway, "Ciphers
with arbitrary finite domains" (CT-RSA 2002): a Feistel network on the next even number of bits, walked until inside.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np

ROUNDS = 6


class OrderError(ValueError):
    """An order that cannot be: no full global batch, or a position outside it."""


@dataclass(frozen=True)
class Phase:
    """`rows` consecutive rows of the mixture, from `start_row` on."""

    start_row: int
    rows: int


@dataclass(frozen=True)
class Places:
    """Where positions lead: int64 arrays of equal length. epoch counts from 0."""

    position: np.ndarray
    row: np.ndarray
    phase: np.ndarray
    epoch: np.ndarray


@dataclass(frozen=True)
class Order:
    """The order of a whole training run."""

    phases: tuple[Phase, ...]
    seed: int
    global_batch_size: int

    def __post_init__(self) -> None:
        if self.sequences_per_epoch == 0:
            largest = max((phase.rows for phase in self.phases), default=0)
            raise OrderError(
                f"No phase holds one global batch: the largest has {largest} rows, and global_batch_size is {self.global_batch_size}. "
                "Use more data or a smaller global_batch_size."
            )

    @property
    def sequences_per_epoch(self) -> int:
        """Rows trained in one pass: every phase down to whole global batches."""
        return sum(self._trained(phase) for phase in self.phases)

    @property
    def steps_per_epoch(self) -> int:
        return self.sequences_per_epoch // self.global_batch_size

    @property
    def sequences_left_over(self) -> int:
        """Rows that one pass leaves untrained."""
        return sum(phase.rows - self._trained(phase) for phase in self.phases)

    def places(self, start: int, count: int) -> Places:
        """The places of positions start … start+count-1."""
        if start < 0 or count < 0:
            raise OrderError(f"Positions start at 0; {count} from {start} were asked for.")
        position = np.arange(start, start + count, dtype=np.int64)
        epoch, offset = np.divmod(position, self.sequences_per_epoch)
        row, phase_number = np.empty(count, np.int64), np.empty(count, np.int64)
        begin = 0
        for index, phase in enumerate(self.phases):
            trained = self._trained(phase)
            here = (offset >= begin) & (offset < begin + trained)
            phase_number[here] = index
            for number in np.unique(epoch[here]):
                mine = here & (epoch == number)
                row[mine] = phase.start_row + permute(offset[mine] - begin, phase.rows, permutation_keys(self.seed, index, int(number)))
            begin += trained
        return Places(position, row, phase_number, epoch)

    def rows_of_step(self, step: int) -> np.ndarray:
        """The rows of global batch `step`, counted from 0."""
        return self.places(step * self.global_batch_size, self.global_batch_size).row

    def _trained(self, phase: Phase) -> int:
        return phase.rows - phase.rows % self.global_batch_size


def row_at(position: int, phases: Sequence[Phase], seed: int, global_batch_size: int) -> int:
    """The row at one position."""
    return int(Order(tuple(phases), seed, global_batch_size).places(position, 1).row[0])


def permutation_keys(seed: int, phase: int, epoch: int) -> np.ndarray:
    """The round keys of one permutation: uint64 [ROUNDS], from sha512 of its three names."""
    digest = hashlib.sha512(f"loam row order {seed} {phase} {epoch}".encode()).digest()
    return np.frombuffer(digest, dtype="<u8")[:ROUNDS].astype(np.uint64)


def permute(index: np.ndarray, size: int, keys: np.ndarray) -> np.ndarray:
    """The images of `index` (int64, 0 ≤ index < size) under the permutation of range(size) that `keys` name."""
    if index.size and (index.min() < 0 or index.max() >= size):
        raise OrderError(f"An index outside the permutation of {size} rows was asked for.")
    half_bits = max(1, ((size - 1).bit_length() + 1) // 2)
    out = index.astype(np.uint64)
    walking = np.ones(out.shape, bool)
    while walking.any():
        out[walking] = _feistel(out[walking], half_bits, keys)
        walking &= out >= size
    return out.astype(np.int64)


def _feistel(value: np.ndarray, half_bits: int, keys: np.ndarray) -> np.ndarray:
    bits, mask = np.uint64(half_bits), np.uint64((1 << half_bits) - 1)
    left, right = value >> bits, value & mask
    for key in keys:
        left, right = right, left ^ (_mix(right ^ key) & mask)
    return (left << bits) | right


def _mix(value: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser (Steele et al., OOPSLA 2014); uint64 arithmetic wraps."""
    value = (value ^ (value >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    value = (value ^ (value >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return value ^ (value >> np.uint64(31))
