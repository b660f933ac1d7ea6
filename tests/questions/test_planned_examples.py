"""What a plan says about the sources of chats and pairs, against files whose rows are known."""

from __future__ import annotations

import gzip
import json
import random
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from stages.examples import conversations, preferences
from stages.questions import planned_examples
from stages.questions.plan import Step, make_plan
from stages.questions.planned_examples import SAMPLE_BYTES, counted_rows, source_rows
from stages.record.contract.declaration import ExternalFile
from stages.record.contract.recipe import load_recipe


def chats(count: int, words: int, seed: int = 1) -> list[dict[str, Any]]:
    draw = random.Random(seed)
    said = [" ".join(f"w{draw.randrange(999)}" for _ in range(draw.randrange(words, 2 * words))) for _ in range(count)]
    return [{"messages": [{"role": "user", "content": "hi"}, {"role": "assistant", "content": text}]} for text in said]


def text_of(records: list[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(one) + "\n" for one in records).encode()


def external(path: Path) -> ExternalFile:
    return ExternalFile(str(path), path.stat().st_size, "sha256:0")


def test_a_plan_names_rows_and_bytes_of_each_source(tmp_path: Path) -> None:
    (tmp_path / "own.jsonl").write_bytes(text_of(chats(7, 3)) + b"\n  \n" + text_of(chats(1, 3))[:-1])
    pq.write_table(pa.Table.from_pylist(chats(11, 3)), tmp_path / "a.parquet")
    pq.write_table(pa.Table.from_pylist(chats(2, 3)), tmp_path / "b.parquet")
    (tmp_path / "long.jsonl.gz").write_bytes(gzip.compress(text_of(chats(9000, 30))))
    (tmp_path / "pairs.jsonl").write_bytes(b'{"prompt": "a", "chosen": "b", "rejected": "c"}\n')
    recipe = tmp_path / "r.yaml"
    given = {
        "name": "toy",
        "conversations": {
            "files": str(tmp_path / "own.jsonl"),
            "sources": {"two": {"files": [str(tmp_path / "a.parquet"), str(tmp_path / "b.parquet")], "factor": 0.5, "max_examples": 20_000},
                        "long": {"files": str(tmp_path / "long.jsonl.gz")}},
        },
        "preferences": {"files": str(tmp_path / "pairs.jsonl")},
    }  # fmt: skip
    recipe.write_text(json.dumps(given))
    stages = {"conversations": conversations.STAGE, "preferences": preferences.STAGE}
    loaded = load_recipe(str(recipe), {name: stage.config for name, stage in stages.items()})
    plan = make_plan(tmp_path / "home", loaded, [Step(name, {}, stage) for name, stage in stages.items()])
    found = dict(source_rows(loaded, plan))
    assert list(found) == ["conversations, files", "conversations, source long", "conversations, source two", "preferences, files"]
    assert found["conversations, files"].startswith("8 rows, ") and found["preferences, files"].startswith("1 row, 48 bytes")
    assert found["conversations, source two"].startswith("2 files, 13 rows, ")
    assert found["conversations, source two"].endswith("; read 0.5 times; at most 20,000 examples")
    rows = int(found["conversations, source long"].split()[1].replace(",", ""))
    assert "rows (estimate from the beginning of files)" in found["conversations, source long"] and abs(rows - 9000) < 900


@pytest.mark.parametrize("packed", [False, True])
def test_an_estimate_is_near_and_small_files_are_counted(tmp_path: Path, packed: bool) -> None:
    for count in (20, 20_000):
        path = tmp_path / (f"{count}.jsonl" + ".gz" * packed)
        data = text_of(chats(count, 20))
        path.write_bytes(gzip.compress(data) if packed else data)
        found = counted_rows([external(path)])
        assert found is not None and found.exact == (len(data) < SAMPLE_BYTES)
        assert found.rows == count if found.exact else abs(found.rows / count - 1) < 0.1


def test_of_many_files_evenly_spaced_ones_are_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(planned_examples, "SAMPLED_FILES", 4)
    files = []
    for number in range(10):
        path = tmp_path / f"{number}.parquet"
        pq.write_table(pa.Table.from_pylist(chats(50, 20, number)), path)
        files.append(external(path))
    found = counted_rows(files)
    assert found is not None and not found.exact and abs(found.rows / 500 - 1) < 0.05
    Path(files[3].uri).write_bytes(b"PAR1 and no more")
    assert counted_rows(files) is None
    assert counted_rows([*files[:3], ExternalFile("s3://bucket/x.jsonl", 5, "etag:x")]) is None
