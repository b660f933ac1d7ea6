"""Turns the values of paired runs into a decision between two recipes: the answer, its error, what it cost and how far it holds.

Guarantee: the same values give the same decision. The error is that of flows/trials/decide/sequential_test.py.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum

from flows.trials.decide.matched_sides import ProxyMetric, proxy_note
from flows.trials.decide.sequential_test import ALPHA, boundary, decisive_look

SEED_DECIDES = (
    "The seed of a pair (pretrain.seed) decides the order of the sequences and the initial weights of both sides. Documents, tokenizer and "
    "mixture, with the documents held out, are those of the recipe's seed in every pair, so the error does not cover their variation."
)
FEWEST_PAIRS = next(pairs for pairs in range(2, 100) if boundary(pairs) is not None)
"""Pairs below which no verdict is possible."""


class DecisionAnswer(StrEnum):
    """What a decision says."""

    A = "A"
    B = "B"
    UNDECIDED = "cannot be told at this budget"


@dataclass(frozen=True)
class PairedRuns:
    """One pair.

    Attributes:
        seed: The seed of both trainings.
        a: What the first side measured.
        b: What the second side measured.
        artifacts: The artifacts that hold the two values.
        tokens: Trained tokens of both runs.
        flops: Training FLOPs of both runs.
        cpu_seconds: CPU seconds that building them took in this decision; 0 for runs that were there before.
    """

    seed: int
    a: float
    b: float
    artifacts: tuple[str, str]
    tokens: int
    flops: float
    cpu_seconds: float

    @property
    def difference(self) -> float:
        """The value of B minus that of A."""
        return self.b - self.a


@dataclass(frozen=True)
class TwoWayDecision:
    """A decision and what it rests on.

    Attributes:
        decision: Its id, the name of its record.
        answer: A, B, or that it cannot be told.
        metric: What is compared.
        unit: The unit of the differences.
        lower_is_better: Whether the lower value is better.
        difference: Mean of B - A.
        standard_error: Its standard error; None for one pair.
        interval: Interval of the mean that holds at every look together with probability 1 - alpha; None: not bounded by these pairs.
        e_value: Evidence against equal sides; the boundary is 1 / alpha.
        alpha: Probability of an answer where there is no difference.
        most_pairs: Largest number of pairs.
        parameters: Parameters of the models of A and of B.
        tokens: Trained tokens of all pairs.
        flops: Training FLOPs of all pairs.
        cpu_seconds: CPU seconds of all pairs, and of the nodes before the training as far as this command built them.
        trust: How far the answer holds for larger models.
        seed_decides: What the seed of a pair changes.
        pairs: The pairs, in order.
    """

    decision: str
    answer: DecisionAnswer
    metric: str
    unit: str
    lower_is_better: bool
    difference: float
    standard_error: float | None
    interval: tuple[float, float] | None
    e_value: float
    alpha: float
    most_pairs: int
    parameters: tuple[int, int]
    tokens: int
    flops: float
    cpu_seconds: float
    trust: str
    seed_decides: str
    pairs: tuple[PairedRuns, ...]


def decided(
    decision: str, metric: ProxyMetric, pairs: Sequence[PairedRuns], most_pairs: int, parameters: tuple[int, int], cpu_before: float
) -> TwoWayDecision:
    """Returns the decision that some pairs give.

    Args:
        decision: Its id.
        metric: What is compared.
        pairs: The pairs in the order of their runs; those after the first look that crossed the boundary do not count.
        most_pairs: Largest number of pairs.
        parameters: Parameters of the models of A and of B.
        cpu_before: CPU seconds of what both sides needed before the first pair.
    """
    seen = decisive_look([pair.difference for pair in pairs])
    used = tuple(pairs[: seen.pairs])
    answer = DecisionAnswer.UNDECIDED
    if seen.crossed:
        answer = DecisionAnswer.B if (seen.mean < 0) == metric.lower else DecisionAnswer.A
    return TwoWayDecision(
        decision, answer, str(metric), metric.unit, metric.lower, seen.mean, seen.standard_error, seen.interval, seen.e_value, ALPHA, most_pairs,
        parameters, sum(pair.tokens for pair in used), sum(pair.flops for pair in used), cpu_before + sum(pair.cpu_seconds for pair in used),
        proxy_note(min(parameters)), SEED_DECIDES, used,
    )  # fmt: skip


def detectable_effect(pairs: int) -> float | None:
    """Returns the mean difference that so many pairs decide, in standard deviations of the pairs; None if they are too few."""
    bound = boundary(pairs)
    return None if bound is None else bound / pairs**0.5
