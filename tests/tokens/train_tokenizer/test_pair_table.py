"""The table of pairs against a dict."""

from __future__ import annotations

import random

import numpy as np

from stages.tokens.train_tokenizer.pair_table import counts_of, lose, pair_table, set_counts


def test_counts_are_those_of_a_dict() -> None:
    draw = random.Random(1)
    known = {draw.randrange(1 << 20) << 32 | draw.randrange(1 << 20): draw.randrange(1 << 50) for _ in range(5_000)}
    table = pair_table(len(known))
    set_counts(table, np.array(list(known)), np.array(list(known.values())))
    assert table.used[0] == len(known) <= 0.75 * len(table.keys)
    asked = [*known, *(key + 1 for key in known)]
    assert counts_of(table, np.array(asked)).tolist() == [known.get(key, 0) for key in asked]
    lose(table, np.array(asked), np.full(len(asked), 7))
    losses = dict.fromkeys(known, 0)
    for key in asked:
        if key in losses:
            losses[key] += 7
    assert counts_of(table, np.array(asked)).tolist() == [known[key] - losses[key] if key in known else 0 for key in asked]
    assert table.used[0] == len(known), "a pair that only lost was added"
