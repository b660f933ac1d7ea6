"""Conversations and preference pairs as rows of tokens, for sft, reference and dpo alike.

Guarantee: the same records and the same `render` give the same rows in the same order, so the log-probabilities of the
reference model meet their pair again. What is longer than the context is left out whole, and counted. No torch.
"""

from __future__ import annotations

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from stages.lm.data.reader import RowFiles, write_row_files

Render = Callable[[Sequence[Mapping[str, str]]], tuple[list[int], list[int]]]
"""messages -> (ids, mask); 1 = train on predicting this token."""


class Tokenizer(Protocol):
    """The part of tokenizers.Tokenizer that is used here."""

    def token_to_id(self, token: str) -> int | None: ...


Item = tuple[np.ndarray, np.ndarray]


class ExampleReason(StrEnum):
    """Why a conversation or a preference pair is left out of training."""

    TOO_LONG = "too_long"
    """It has more tokens than the model's context."""
    NOTHING_TRAINED = "nothing_trained"
    """No assistant turn is left to train on."""
    BEYOND_MAX_PAIRS = "beyond_max_pairs"
    """The recipe's max_pairs was reached."""


@dataclass(frozen=True)
class Encoded:
    """Records that fit, in input order, with their tokens; and (record, reason) of those left out."""

    records: list[dict[str, Any]]
    items: list[Item]
    dropped: list[tuple[dict[str, Any], ExampleReason]]

    def reasons(self) -> dict[str, int]:
        """Left-out records by reason."""
        counts: dict[str, int] = {}
        for _, reason in self.dropped:
            counts[reason] = counts.get(reason, 0) + 1
        return counts


def encode_conversations(records: Iterable[dict[str, Any]], render: Render, seq_len: int) -> Encoded:
    """One item per conversation."""
    out = Encoded([], [], [])
    for record in records:
        ids, mask = render(json.loads(record["messages"]))
        reason = ExampleReason.TOO_LONG if len(ids) > seq_len else None if any(mask[1:]) else ExampleReason.NOTHING_TRAINED
        if reason:
            out.dropped.append((record, reason))
        else:
            out.records.append(record)
            out.items.append(_item(ids, mask))
    return out


def encode_pairs(records: Iterable[dict[str, Any]], render: Render, seq_len: int) -> Encoded:
    """Two items per pair, chosen then rejected; each with its prompt must fit the context of seq_len tokens."""
    out = Encoded([], [], [])
    for record in records:
        prompt = json.loads(record["prompt"])
        both = [render([*prompt, {"role": "assistant", "content": record[side]}]) for side in ("chosen", "rejected")]
        if max(len(ids) for ids, _ in both) > seq_len:
            out.dropped.append((record, ExampleReason.TOO_LONG))
        else:
            out.records.append(record)
            out.items.extend(_item(ids, mask) for ids, mask in both)
    return out


def choose(records: Sequence[dict[str, Any]], limit: int | None) -> list[dict[str, Any]]:
    """At most `limit` records of each split, those with the smallest sha256 of their doc_id, in the given order."""
    if limit is None:
        return list(records)
    drawn: dict[str, list[bytes]] = {}
    digests = [hashlib.sha256(str(record["doc_id"]).encode()).digest() for record in records]
    for record, digest in zip(records, digests, strict=True):
        drawn.setdefault(record["split"], []).append(digest)
    bound = {split: sorted(values)[min(limit, len(values)) - 1] for split, values in drawn.items()}
    return [record for record, digest in zip(records, digests, strict=True) if digest <= bound[record["split"]]]


def write_pair_rows(folder: Path, encoded: Encoded, seq_len: int, pad_id: int, references: np.ndarray | None = None) -> RowFiles:
    """One row per pair, twice the context long (its two pieces never see each other, and positions restart). references: float64 [pairs, 2] (chosen, rejected)."""
    row_of = np.repeat(np.arange(len(encoded.records)), 2)
    return write_row_files(folder, encoded.items, row_of, 2 * seq_len, pad_id, references)


def row_span_rows(part: str, encoded: Encoded, row_of: np.ndarray) -> list[dict[str, Any]]:
    """Which record lies in which row, for the row_spans side table (one entry per item; items per record are consecutive)."""
    per_record = len(encoded.items) // max(1, len(encoded.records))
    piece_in_row: dict[int, int] = {}
    starts = np.concatenate([[0], np.cumsum([len(encoded.items[i][0]) for i in np.argsort(row_of, kind="stable")])]).astype(np.int64)
    place = np.argsort(np.argsort(row_of, kind="stable"), kind="stable")
    rows = []
    for index, (ids, _) in enumerate(encoded.items):
        row, record = int(row_of[index]), encoded.records[index // per_record]
        piece = piece_in_row.get(row, 0)
        piece_in_row[row] = piece + 1
        rows.append({"part": part, "row": row, "piece": piece, "doc_id": record["doc_id"], "source": record["source"], "shard": 0,
                     "start": int(starts[place[index]]), "length": len(ids)})  # fmt: skip
    return rows


def token_id(tokenizer: Tokenizer, token: str) -> int:
    """The id of a special token; raises ValueError where the tokenizer has none."""
    found = tokenizer.token_to_id(token)
    if found is None:
        raise ValueError(f"The tokenizer has no token {token}; Loam needs the tokens of its chat format.")
    return found


def _item(ids: list[int], mask: list[int]) -> Item:
    return np.array(ids, np.int64), np.array(mask, np.uint8)
