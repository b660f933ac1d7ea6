"""Duplicate removal against brute force over all pairs."""

from __future__ import annotations

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.text.cluster import Removal, find_duplicates
from stages.text.minhash import jaccard, shingles, signature, text_hash


def remove(texts: list[str], threshold: float = 0.8, bands: int = 22, rows: int = 5) -> dict[int, Removal]:
    sets = [shingles(text, 3) for text in texts]
    sketches = np.array([signature(s, bands * rows, 1) for s in sets], np.uint64).reshape(len(texts), bands * rows)
    hashes = [text_hash(text) for text in texts]
    return find_duplicates(hashes, sketches, lambda i: sets[i], bands, rows, threshold, 1, lambda _: None)[0]


def brute_force(texts: list[str], threshold: float) -> dict[int, int]:
    """The greedy rule on all pairs: a document goes when a kept earlier one is alike enough."""
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
def test_equals_brute_force(bases: list[list[str]], rng: object) -> None:
    texts = []
    for base in bases:
        texts.append(" ".join(base))
        if rng.random() < 0.6:  # a near or exact copy
            copy = base * 3
            if copy and rng.random() < 0.5:
                copy[rng.randrange(len(copy))] = "changed"
            texts += [" ".join(base * 3), " ".join(copy)]
    found = remove(texts, threshold=0.8, bands=110, rows=1)  # a bucket per value: no pair at .8 is missed
    assert {number: removal.kept for number, removal in found.items()} == brute_force(texts, 0.8)


def test_every_removal_has_a_verified_edge_to_a_kept_document() -> None:
    rng = np.random.default_rng(5)
    base = [f"w{i}" for i in range(200)]
    texts = []
    for _ in range(40):  # a chain of likeness: each differs a little from the one before
        base = [w if rng.random() > 0.02 else f"x{rng.integers(10**6)}" for w in base]
        texts.append(" ".join(base))
    removed = remove(texts)
    sets = [shingles(text, 3) for text in texts]
    assert removed
    for number, removal in removed.items():
        assert removal.kept not in removed
        assert jaccard(sets[number], sets[removal.kept]) == removal.jaccard >= 0.8
    assert len(removed) < len(texts) - 1  # the chain is not one cluster: its ends are not alike


def test_exact_copies_of_a_near_duplicate_follow_it_to_the_kept_one() -> None:
    base = [f"w{i}" for i in range(100)]
    near = [*base[:99], "other"]
    removed = remove([" ".join(base), " ".join(near), " ".join(near)])
    assert removed[1].kind == "near"
    assert removed[2] == Removal(0, removed[1].jaccard, "exact")


def test_texts_without_words_are_only_exact_duplicates() -> None:
    assert remove(["!!", "??", "!!"]) == {2: Removal(0, 1.0, "exact")}
