"""Decides whether a claim about models is shown: one test per claim, and a corrected p value per family of claims.

Guarantee: every verdict names its test, its number of pairs and its p value, or says why no test was made. The outcome follows
from the corrected p value and the sign of the difference alone. The same values and the same seed give the same verdict.
All tests are two-sided at a level of 5 %, and all treat the pairs as independent: where several items come from one document,
the true error is larger (Miller 2024 clusters them; the side tables of evaluate do not record the document of an item).
Cost: binomial and McNemar test under a millisecond; the sign-flip test 0.6 ms per pair.
Source: Dietterich 1998 (McNemar for two classifiers on the same items); Dror et al. 2018, ACL P18-1128 (which test for which
measure); Miller 2024, arXiv 2411.00640 (paired differences and their errors); the tests themselves as cited at each function.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace
from enum import StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import numpy as np

ALPHA = 0.05
"""Level of every family of claims: the probability of at least one false "reached" or "opposite" in it."""
CONFIDENCE = 0.95
"""Of the interval of a single difference."""
RESAMPLES = 9_999
"""Of the sign-flip test where 2 ** pairs are more; with the observed one 10,000, so the smallest p value is 0.0002."""
BATCH_VALUES = 1_000_000
"""Values that the sign-flip test holds in memory at a time."""


class VerdictOutcome(StrEnum):
    """What a test says about a claim."""

    REACHED = "reached"
    NOT_SHOWN = "not shown"
    OPPOSITE = "opposite"


@dataclass(frozen=True)
class Verdict:
    """One claim and what was measured.

    difference: in `unit`; positive speaks for the claim. standard_error: of the difference. interval: of the difference, 95 %, for this
    claim alone. pairs: items, documents or preference pairs. test: its name; empty where none was made, and `note` says why.
    p: two-sided. p_adjusted: p after the correction for the other claims of its family (see `holm`); before that, p.
    """

    claim: str
    difference: float | None
    unit: str
    standard_error: float | None
    interval: tuple[float, float] | None
    pairs: int
    test: str
    p: float | None
    p_adjusted: float | None
    note: str = ""

    @property
    def outcome(self) -> VerdictOutcome:
        if self.difference is None or self.p_adjusted is None or self.p_adjusted > ALPHA:
            return VerdictOutcome.NOT_SHOWN
        return VerdictOutcome.REACHED if self.difference > 0 else VerdictOutcome.OPPOSITE

    def record(self) -> dict[str, Any]:
        """The fields and the outcome, for JSON."""
        return asdict(self) | {"outcome": self.outcome.value}


def untested(claim: str, unit: str, pairs: int, note: str, difference: float | None = None) -> Verdict:
    """A claim that cannot be tested; note: why, as a phrase that follows "not shown: "."""
    return Verdict(claim, difference, unit, None, None, pairs, "", None, None, note)


def binomial_test(claim: str, unit: str, test: str, successes: int, trials: int, chance: float) -> Verdict:
    """Tests whether `successes` of `trials` are more than `chance`. At a chance of 1/2 this is the sign test.

    Args:
        claim: What more successes than chance would show.
        unit: Of the share of successes.
        test: Name of the test for the reader.
        successes: Trials that speak for the claim.
        trials: Independent trials.
        chance: Share of successes without any effect. Where it differs from trial to trial, its mean: the test is then
            conservative (Hoeffding 1956).

    Raises:
        ValueError: More successes than trials, or a chance that is no probability between 0 and 1.

    Source: exact two-sided binomial test (scipy.stats.binomtest); interval of Clopper and Pearson 1934.
    """
    from scipy.stats import binomtest

    if not 0 <= successes <= trials:
        raise ValueError(f"{claim}: {successes} successes of {trials} trials")
    if not 0 < chance < 1:
        raise ValueError(f"{claim}: a chance of {chance} leaves nothing to test")
    if not trials:
        return untested(claim, unit, 0, "there is nothing to count")
    found = binomtest(successes, trials, chance)
    bounds = found.proportion_ci(CONFIDENCE)
    share = successes / trials
    error = math.sqrt(share * (1 - share) / trials)
    interval = (float(bounds.low) - chance, float(bounds.high) - chance)
    return Verdict(claim, share - chance, unit, error, interval, trials, test, float(found.pvalue), float(found.pvalue))


def mcnemar_test(claim: str, unit: str, ours: np.ndarray, theirs: np.ndarray) -> Verdict:
    """Tests whether `ours` has more right answers than `theirs` on the same items.

    Args:
        claim: What more right answers would show.
        unit: Of the share of right answers.
        ours: [items], 1 for a right answer and 0 for a wrong one.
        theirs: The same for the other model, in the same order.

    Raises:
        ValueError: The arrays differ in length, or hold another value than 0 and 1.

    Source: McNemar 1947, in its exact form: a binomial test of the items that only one of the two got right, against 1/2.
    """
    import numpy as np
    from scipy.stats import binomtest

    if len(ours) != len(theirs):
        raise ValueError(f"{claim}: {len(ours)} items are no pairs of {len(theirs)}")
    if not np.isin([ours, theirs], (0, 1)).all():
        raise ValueError(f"{claim}: McNemar's test takes only 0 and 1")
    if len(ours) < 2:
        return untested(claim, unit, len(ours), "there are fewer than two pairs")
    gains = np.asarray(ours, dtype=np.float64) - theirs
    better, worse = int((gains > 0).sum()), int((gains < 0).sum())
    p = float(binomtest(better, better + worse, 0.5).pvalue) if better + worse else 1.0  # scipy refuses no trials
    return _paired(claim, unit, gains, np.ones(len(gains)), "exact McNemar test", p)


def sign_flip_test(claim: str, unit: str, gains: np.ndarray, sizes: np.ndarray, seed: int) -> Verdict:
    """Tests whether the paired differences `gains` are positive on the whole. Reports sum of gains over sum of sizes.

    Without an effect either sign of a pair's difference is as probable, so the sum is compared with those of other signs: with all of
    them where RESAMPLES are enough, else with a random choice.

    Args:
        claim: What a positive difference would show.
        unit: Of a gain by size.
        gains: [pairs], the other's value less ours where lower is better.
        sizes: [pairs], what the sum is divided by (bytes, or ones for a mean); none negative, not all 0.
        seed: Of the random choice; stands in the verdict.

    Raises:
        ValueError: The arrays differ in length, or the sizes do not add up to something.

    Source: Fisher 1935, The Design of Experiments, section 21; Pitman 1937 (scipy.stats.permutation_test, type "samples"); counting the
        observed signs among the random ones: Phipson and Smyth 2010.
    """
    import numpy as np
    from scipy.stats import permutation_test

    if len(gains) != len(sizes):
        raise ValueError(f"{claim}: {len(gains)} differences have {len(sizes)} sizes")
    if len(gains) < 2:
        return untested(claim, unit, len(gains), "there are fewer than two pairs")
    if sizes.min() < 0 or sizes.sum() <= 0:
        raise ValueError(f"{claim}: a size is negative, or all are 0")
    if not np.isfinite(gains).all():
        return untested(claim, unit, len(gains), "a value is not finite")

    def total(first: np.ndarray, second: np.ndarray, axis: int) -> np.ndarray:
        return np.sum(first - second, axis=axis)

    batch, generator = max(1, BATCH_VALUES // len(gains)), np.random.default_rng(seed)
    found = permutation_test((gains, np.zeros(len(gains))), total, permutation_type="samples", vectorized=True, n_resamples=RESAMPLES,
                             batch=batch, rng=generator)  # fmt: skip
    how = "exact" if 2 ** len(gains) <= RESAMPLES else f"{RESAMPLES:,} resamples, seed {seed}"
    return _paired(claim, unit, gains, sizes, f"sign-flip permutation test ({how})", float(found.pvalue))


def holm(family: Sequence[Verdict]) -> tuple[Verdict, ...]:
    """The verdicts with p values corrected for their number: at most ALPHA for any false verdict among them.

    Holm's method was chosen because it holds under any dependence (the claims share models and items) and is nowhere weaker than
    Bonferroni's. A claim without a test is not counted: it cannot be falsely shown.

    Source: Holm 1979, Scandinavian Journal of Statistics 6, 65-70.
    """
    ordered = sorted((v.p, number) for number, v in enumerate(family) if v.p is not None)
    corrected, largest = list(family), 0.0
    for rank, (p, number) in enumerate(ordered):
        largest = max(largest, min(1.0, (len(ordered) - rank) * p))
        corrected[number] = replace(family[number], p_adjusted=largest)
    return tuple(corrected)


def count_outcomes(family: Sequence[Verdict]) -> dict[VerdictOutcome, int]:
    """Number of verdicts by outcome; all three outcomes are keys."""
    return {outcome: sum(verdict.outcome is outcome for verdict in family) for outcome in VerdictOutcome}


def _paired(claim: str, unit: str, gains: np.ndarray, sizes: np.ndarray, test: str, p: float) -> Verdict:
    """The verdict with the error of a ratio of sums over the pairs, and its interval by Student's t."""
    from scipy.stats import t

    from stages.text.basics.estimates import ratio

    difference, error = ratio(gains, sizes)
    assert error is not None, "there are two pairs at least"
    reach = float(t.ppf((1 + CONFIDENCE) / 2, len(gains) - 1)) * error
    return Verdict(claim, difference, unit, error, (difference - reach, difference + reach), len(gains), test, p, p)
