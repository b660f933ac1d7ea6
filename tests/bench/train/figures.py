"""The arithmetic of the training benchmark: what the table says, from the CPU seconds of the steps."""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Measured:
    """What a process reports after its warm-up and after each round.

    Attributes:
        steps: CPU seconds of each step since the last report.
        cpu_s: CPU seconds of the process since its start, and of the compilers that it ran.
        peak_bytes: The most memory that it has had resident.
        loss: Loss of the last step, nats per token with a label.
        matmul_parameters: Parameters in matrix products, embeddings left out.
    """

    steps: list[float]
    cpu_s: float
    peak_bytes: int
    loss: float
    matmul_parameters: int


@dataclass(frozen=True)
class SideRun:
    """The reports of one process: after the warm-up, and after each round."""

    warm_up: Measured
    rounds: Sequence[Measured]

    @property
    def step_s(self) -> float:
        """Median CPU seconds of the counted steps."""
        return statistics.median(step for measured in self.rounds for step in measured.steps)

    @property
    def spread(self) -> tuple[float, float]:
        """The smallest and the largest of the rounds' medians."""
        medians = [statistics.median(measured.steps) for measured in self.rounds]
        return min(medians), max(medians)

    @property
    def start_s(self) -> float:
        """CPU seconds of start-up: all before the first counted step, less what the steps of the warm-up take later."""
        return max(0.0, self.warm_up.cpu_s - len(self.warm_up.steps) * self.step_s)


@dataclass(frozen=True)
class Work:
    """What one step computes.

    Attributes:
        tokens: Tokens of a step without padding, a mean over the counted steps.
        attention_whole: FLOPs of attention per token as stages/training/model/flops.py counts them: every token attends to a whole context.
        attention_by_document: The same if a token attends to itself and to what precedes it in its own document.
    """

    tokens: float
    attention_whole: float
    attention_by_document: float


def keys_per_token(segments: Sequence[int]) -> float:
    """The tokens that a token attends to, itself included: the mean over the tokens of segments of these lengths."""
    return sum(length * (length + 1) // 2 for length in segments) / sum(segments)


def attention_flops(layers: int, width: int, keys: float) -> float:
    """FLOPs of attention per token, forward and backward, at a mean number of keys."""
    return 12 * layers * width * keys


def table(runs: dict[str, SideRun], work: Work, product_flops: float, first: str) -> list[dict[str, Any]]:
    """One row per side.

    Args:
        runs: Side -> what it measured.
        work: What a step computes.
        product_flops: FLOP/s of a plain matrix product in the same precision, by CPU seconds.
        first: The side to which the others are compared.
    """
    rows = []
    for side, run in runs.items():
        speed, last = work.tokens / run.step_s, run.rounds[-1]
        whole, by_document = (
            (6 * last.matmul_parameters + attention) * speed for attention in (work.attention_whole, work.attention_by_document)
        )
        rows.append({
            "side": side, "CPU s per step (rounds)": f"{run.step_s:.3f} ({run.spread[0]:.3f} to {run.spread[1]:.3f})",
            "tokens per CPU s": f"{speed:,.0f}", f"of {first}": f"{runs[first].step_s / run.step_s:.2f}" if first in runs else "-",
            "matmul parameters": f"{last.matmul_parameters:,}",
            "GFLOP/s, whole context (of matmul)": f"{whole / 1e9:.1f} ({whole / product_flops:.0%})",
            "GFLOP/s, by document (of matmul)": f"{by_document / 1e9:.1f} ({by_document / product_flops:.0%})",
            "peak MB": f"{last.peak_bytes / 1e6:,.0f}", "start-up CPU s": f"{run.start_s:.1f}", "last loss": f"{last.loss:.3f}",
        })  # fmt: skip
    return rows
