"""The key's exact bytes, and what its differences look like: a key that changes with the code would rebuild every home."""

from __future__ import annotations

import hashlib

from stages.core import key


def test_the_key_is_the_sha256_of_canonical_json() -> None:
    text = '{"config":{"a":[1,2.5],"b":null},"node":"ü","seed":7}'
    assert key.key_of({"seed": 7, "node": "ü", "config": {"b": None, "a": [1, 2.5]}}) == hashlib.sha256(text.encode()).hexdigest()


def test_differences_come_in_order_and_long_values_are_cut() -> None:
    old = {"z": 1, "config": {"b": {"deep": 1}, "a": "x" * 60, "same": 3}, "gone": True}
    new = {"z": 2, "config": {"b": {"deep": 2}, "a": "y" * 58, "same": 3}, "there": [1]}
    assert key.key_differences(new, old) == [
        f'config.a: "{"x" * 39}… (62 characters) -> "{"y" * 58}"',
        "config.b.deep: 1 -> 2",
        "gone: true -> null",
        "there: null -> [1]",
        "z: 1 -> 2",
    ]
    assert key.key_differences({"config": {"a": 1}}, {"config": 3}) == ['config: 3 -> {"a": 1}']
