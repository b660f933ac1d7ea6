"""Duplicate removal against brute force over all pairs."""

from __future__ import annotations

import random
from dataclasses import dataclass

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.corpus.dedup import clustering
from stages.corpus.dedup.clustering import Candidates, ShingleSets, Verdicts, decide, first_copies, group_bands, in_buckets, undecided
from stages.corpus.dedup.minhash import TEXT_HASH_BYTES, band_keys, jaccard, shingles, signatures, text_hash


@dataclass
class Found:
    """The verdicts and edges of some texts."""

    verdicts: Verdicts
    edges: list[tuple[int, int, float]]

    @property
    def removed(self) -> dict[int, int]:
        """Removed document -> kept document."""
        return {i: int(k) for i, k in enumerate(self.verdicts.kept_by) if k != i}


def remove(texts: list[str], threshold: float = 0.8, bands: int = 22, rows: int = 5, known: int = 0) -> Found:
    """Returns what the stage finds in texts in memory."""
    sets = [shingles(text, 3) for text in texts]
    offsets = np.concatenate(([0], np.cumsum([len(s) for s in sets]))).astype(np.int64)
    flat = np.concatenate([*sets, np.empty(0, np.uint64)])
    keys = band_keys(signatures(flat, offsets, bands * rows, 1), bands, rows)
    first = first_copies(np.frombuffer(b"".join(map(text_hash, texts)), np.uint8).reshape(-1, TEXT_HASH_BYTES))
    buckets = np.zeros((bands, len(texts)), np.uint32)
    eligible = (first == np.arange(len(texts))) & (np.diff(offsets) > 0)
    total = group_bands(lambda band: keys[band], eligible, known, buckets)
    assert not (in_buckets(buckets) & ~eligible).any()
    verdicts, edges = undecided(len(texts)), []
    for part in decide(Candidates(buckets, total, first, known), ShingleSets(flat, offsets), threshold, verdicts, lambda _: None):
        edges += list(zip(part.later.tolist(), part.earlier.tolist(), part.jaccard.tolist(), strict=True))
    return Found(verdicts, edges)


def brute_force(texts: list[str], threshold: float) -> dict[int, int]:
    """Returns removed -> kept by the greedy rule on all pairs: a document is removed if a kept earlier one is similar enough."""
    kept: list[int] = []
    removed: dict[int, int] = {}
    sets = [shingles(text, 3) for text in texts]
    for i, text in enumerate(texts):
        twins = [k for k in range(i) if text_hash(texts[k]) == text_hash(text)]
        if twins:
            removed[i] = removed.get(twins[0], twins[0])
            continue
        scores = [(jaccard(sets[i], sets[k]), -k) for k in kept]
        best = max(scores, default=(0.0, 0))
        if len(sets[i]) and best[0] >= threshold:
            removed[i] = -best[1]
        else:
            kept.append(i)
    return removed


WORDS = ["alpha", "beta", "gamma", "delta", "epsilon", "zeta", "eta", "theta", "iota", "kappa"]


@settings(max_examples=60, deadline=None)
@given(st.lists(st.lists(st.sampled_from(WORDS), max_size=14), max_size=12), st.randoms(use_true_random=False))
def test_equals_brute_force(bases: list[list[str]], rng: random.Random) -> None:
    texts = []
    for base in bases:
        texts.append(" ".join(base))
        if rng.random() < 0.6:  # a near or exact copy
            copy = base * 3
            if copy and rng.random() < 0.5:
                copy[rng.randrange(len(copy))] = "changed"
            texts += [" ".join(base * 3), " ".join(copy)]
    found = remove(texts, threshold=0.8, bands=110, rows=1)  # a bucket per value: no pair at .8 is missed
    assert found.removed == brute_force(texts, 0.8)


@settings(max_examples=60, deadline=None)
@given(st.integers(0, 2**32), st.integers(0, 2), st.booleans())
def test_every_removal_has_a_verified_edge_to_a_kept_document(seed: int, drift: int, small: bool) -> None:
    rng = np.random.default_rng(seed)
    base = [f"w{i}" for i in range(200)]
    texts = []
    for step in range(40):  # a chain of similarity: each differs a little from the one before
        base[5 * step] = f"y{step}"
        base = [w if rng.random() > 0.01 * drift else f"x{rng.integers(10**6)}" for w in base]
        texts.append(" ".join(base))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(clustering, "BLOCK", 2 if small else 1000)  # buffers that overflow must not change anything
        found = remove(texts)
    sets = [shingles(text, 3) for text in texts]
    assert found.removed
    for number, kept in found.removed.items():
        assert kept not in found.removed
        assert jaccard(sets[number], sets[kept]) == found.verdicts.jaccard[number] >= 0.8
        assert (number, kept, found.verdicts.jaccard[number]) in found.edges
    assert all(jaccard(sets[a], sets[b]) == value >= 0.8 and b not in found.removed for a, b, value in found.edges)
    assert len(found.removed) < len(texts) - 1  # the chain is not one cluster: its ends are not alike
    assert found.verdicts.counts[2] == len(found.edges)


def test_large_bands_are_grouped_in_shares_with_the_same_result(monkeypatch: pytest.MonkeyPatch) -> None:
    rng = np.random.default_rng(4)
    keys = rng.integers(0, 40, (3, 200)).astype(np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    groups = []
    for share in (1 << 24, 64, 7):
        monkeypatch.setattr(clustering, "SHARE", share)
        buckets = np.zeros((3, 200), np.uint32)
        group_bands(lambda band: keys[band], np.arange(200) % 5 > 0, 50, buckets)
        groups.append([{frozenset(np.flatnonzero(band == b)) for b in set(band.tolist()) - {0}} for band in buckets])
    assert groups[0] == groups[1] == groups[2]
    expected = [{frozenset(i for i in range(200) if i % 5 and band[i] == k) for k in band.tolist()} for band in keys]
    assert groups[0] == [{g for g in band if len(g) > 1 and max(g) >= 50} for band in expected]


def test_known_documents_stay_and_remove_new_ones() -> None:
    base = [f"w{i}" for i in range(100)]
    near = [*base[:99], "other"]
    alone = " ".join(f"z{i}" for i in range(50))
    texts = [" ".join(base), " ".join(near), " ".join(near), alone, "new " + " ".join(base)]
    assert remove(texts, known=2).removed == {2: 1, 4: 0}


def test_exact_copies_of_a_near_duplicate_follow_it_to_the_kept_one() -> None:
    base = [f"w{i}" for i in range(100)]
    near = [*base[:99], "other"]
    found = remove([" ".join(base), " ".join(near), " ".join(near)])
    assert found.removed == {1: 0, 2: 0} and found.verdicts.jaccard[1] == found.verdicts.jaccard[2] < 1


def test_a_bucket_of_copies_costs_one_comparison_each() -> None:
    base = [f"w{i}" for i in range(100)]
    texts = [" ".join([*base[: 99 - k % 3], f"end{k}"]) for k in range(300)]
    found = remove(texts)
    assert len(found.removed) == 299 and found.verdicts.counts[1] == 299


def test_texts_without_words_are_only_exact_duplicates() -> None:
    assert remove(["!!", "??", "!!"]).removed == {2: 0}


def test_no_documents() -> None:
    assert remove([]).removed == {}
