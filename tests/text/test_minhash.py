"""Shingles and signatures against Python sets and datasketch."""

from __future__ import annotations

import numpy as np
from datasketch import MinHash
from hypothesis import given
from hypothesis import strategies as st

from stages.text.minhash import BATCH_SHINGLES, as_minhash, jaccard, shingles, signature, text_hash
from stages.text.ngrams import normalise_words

TEXTS = st.lists(st.sampled_from(["a", "b", "c", "d", "e", "F"]), max_size=40).map(" ".join)


def word_shingles(text: str, n: int) -> set[tuple[str, ...]]:
    words = normalise_words(text)
    length = min(n, len(words))
    return {tuple(words[i : i + length]) for i in range(len(words) - length + 1)} if words else set()


@given(TEXTS, TEXTS)
def test_jaccard_of_hashes_is_jaccard_of_word_sets(a: str, b: str) -> None:
    x, y = word_shingles(a, 5), word_shingles(b, 5)
    expected = len(x & y) / len(x | y) if x | y else 0.0
    assert jaccard(shingles(a, 5), shingles(b, 5)) == expected


def test_layout_and_case_do_not_count() -> None:
    assert np.array_equal(shingles("One two, THREE\nfour five six", 3), shingles("one two three four. Five! six", 3))


def test_signature_is_datasketchs_whatever_the_batches() -> None:
    hashes = np.unique(np.random.default_rng(0).integers(0, 2**64, BATCH_SHINGLES * 2 + 5, np.uint64))
    whole = MinHash(num_perm=20, seed=3, hashfunc=int, scheme="affine64")
    whole.update_batch(hashes)
    assert np.array_equal(signature(hashes, 20, 3), whole.hashvalues)
    assert as_minhash(whole.hashvalues, 3).jaccard(whole) == 1.0


def test_signatures_estimate_jaccard() -> None:
    rng = np.random.default_rng(1)
    common, a, b = (rng.integers(0, 2**64, size, np.uint64) for size in (600, 200, 200))
    x, y = np.unique(np.concatenate((common, a))), np.unique(np.concatenate((common, b)))
    estimate = float(np.mean(signature(x, 512, 1) == signature(y, 512, 1)))
    assert abs(estimate - jaccard(x, y)) < 0.08  # 4 standard errors at 512 permutations


def test_text_hash_ignores_white_space_and_composition_only() -> None:
    assert text_hash("a  b\nc") == text_hash(" a b c ")
    assert text_hash("\u00e9") == text_hash("e\u0301")
    assert text_hash("a b") != text_hash("A b")
