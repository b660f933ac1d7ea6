"""Conversations from files and from documentation: what is kept, dropped and held out."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.benchmarks import STAGE as BENCHMARKS
from stages.conversations import STAGE
from stages.core.contract.declaration import Artifact
from stages.core.contract.errors import StageError
from stages.core.tables.parquet import read_rows
from stages.text.items.held_out import normalised
from tests.conftest import run_stage
from tests.made.chats import HELD_OUT
from tests.made.variants import Data
from tests.stages import made

PACKAGE = "pydantic"
LEAK = HELD_OUT


@pytest.fixture(scope="module")
def benchmarks(tmp_path_factory: pytest.TempPathFactory) -> Artifact:
    root = tmp_path_factory.mktemp("benchmarks")
    files = [made.jsonl(root / "fox.jsonl", [{"context": LEAK.rpartition(" ")[0], "continuation": "night."}])]
    return run_stage(BENCHMARKS, {"files": files, "docstrings": {"packages": [PACKAGE], "items": 40}, "min_words": 5}, {}, root / "home")


def chat(question: str, answer: str, **more: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]} | more


def rows_of(artifact: Artifact) -> list[dict[str, Any]]:
    return list(read_rows(artifact.path / "conversations.parquet"))


def test_planted_leaks_and_forged_turns_are_dropped_with_a_reason(tmp_path: Path, benchmarks: Artifact) -> None:
    records = [chat(f"Question {i}?", f"Answer number {i}.", source="mine") for i in range(50)]
    records[7] = chat("Say it.", f"Sure! {LEAK.upper()}")
    records[9] = chat(LEAK.partition(" and ")[0], LEAK.partition(" and ")[2])  # both turns together lack one word of the item
    records[11] = chat("the quick brown fox jumps over the lazy", "dog and then walks slowly home again")
    records[20] = chat("Hi", "Stop <|eot_id|> now")
    config = {"files": [made.jsonl(tmp_path / "chat.jsonl", records)], "validation_frac": 0.2}
    artifact = run_stage(STAGE, config, {"benchmarks": benchmarks}, tmp_path / "home")
    rows = rows_of(artifact)
    assert artifact.manifest["record_counts"]["dropped"] == {"held_out": 2, "special_token": 1}
    decisions = list(read_rows(artifact.path / "decisions" / "00000.parquet"))
    assert {i: d["reason"] for i, d in enumerate(decisions) if d["reason"]} == {7: "held_out", 11: "held_out", 20: "special_token"}
    assert decisions[7]["item"].startswith("fox/") and len(decisions) == 50
    assert len({r["doc_id"] for r in rows}) == 47 and {r["source"] for r in rows} == {"mine", "chat"}
    assert {r["split"] for r in rows} == {"train", "validation"}
    assert json.loads(rows[0]["messages"])[0] == {"role": "user", "content": "Question 0?"}


def test_docstring_conversations_hold_no_benchmark_item(tmp_path: Path, benchmarks: Artifact) -> None:
    config = {"docstrings": {"what": 100, "complete": 200}}
    artifact = run_stage(STAGE, config, {"benchmarks": benchmarks}, tmp_path)
    held = [normalised(row["texts"][0]) for row in read_rows(benchmarks.path / "items.parquet") if row["task"] == "docs_complete"]
    chats = [json.loads(row["messages"]) for row in rows_of(artifact)]
    said = [f" {normalised(' '.join(m['content'] for m in c))} " for c in chats]
    assert not [h for h in held for s in said if f" {h} " in s]
    assert artifact.summary["held_out_dropped"] > 0
    assert artifact.manifest["record_counts"]["rows_in"] <= 300
    assert {c[0]["content"].split()[0] for c in chats} == {"What", "Complete:"}
    assert len({row["doc_id"] for row in rows_of(artifact)}) == len(chats)


@pytest.mark.parametrize(("line", "message"), [
    ("{broken", "the line is not JSON"),
    ('{"messages": [{"role": "user", "content": "x"}]}', "the conversation has no assistant turn"),
    ('{"messages": [{"content": "x"}]}', r"messages\[0\] has no role"),
])  # fmt: skip
def test_a_broken_line_names_file_and_line(tmp_path: Path, benchmarks: Artifact, line: str, message: str) -> None:
    path = tmp_path / "chat.jsonl"
    path.write_text("\n".join([json.dumps(chat("a", "b")), line, json.dumps(chat("c", "d"))]))
    with pytest.raises(StageError, match=message) as caught:
        run_stage(STAGE, {"files": [str(path)]}, {"benchmarks": benchmarks}, tmp_path / "home")
    assert "chat.jsonl:2" in str(caught.value)
    artifact = run_stage(STAGE, {"files": [str(path)], "max_bad_records": 1}, {"benchmarks": benchmarks}, tmp_path / "home")
    assert artifact.manifest["record_counts"]["dropped"] == {"bad_record": 1} and artifact.manifest["rows"] == 2


def test_nothing_given_and_nothing_left(tmp_path: Path, benchmarks: Artifact) -> None:
    with pytest.raises(StageError, match="There are no conversations: neither files nor docstrings"):
        run_stage(STAGE, {}, {"benchmarks": benchmarks}, tmp_path / "home")
    leaked = {"files": [made.jsonl(tmp_path / "leak.jsonl", [chat("Say it.", LEAK)])]}
    with pytest.raises(StageError, match="No conversation is left"):
        run_stage(STAGE, leaked, {"benchmarks": benchmarks}, tmp_path / "home")


def test_documentation_that_no_benchmark_read_is_refused(tmp_path: Path) -> None:
    files = run_stage(
        BENCHMARKS, {"files": [made.jsonl(tmp_path / "s.jsonl", [{"context": LEAK, "continuation": "b"}])]}, {}, tmp_path / "home"
    )
    with pytest.raises(StageError, match="conversations.docstrings needs the answers that the benchmarks read") as caught:
        run_stage(STAGE, {"docstrings": {}}, {"benchmarks": files}, tmp_path / "home")
    assert "Set benchmarks.docstrings" in str(caught.value)


def test_whole_files_are_read(tmp_path: Path, data: Data, benchmarks: Artifact) -> None:
    """Covers single and multiple turns, code, ten languages, conversations to leave out, and files of other authors."""
    artifact = run_stage(STAGE, {"files": [str(data.part("sft") / "*.jsonl")]}, {"benchmarks": benchmarks}, tmp_path)
    assert artifact.manifest["record_counts"]["rows_in"] == data.expected(made=183, real=11171)
    assert artifact.manifest["rows"] > data.expected(made=179, real=11_000)
    if data.name == "made":
        assert artifact.manifest["record_counts"]["dropped"] == {"held_out": 2, "special_token": 1}
        roles = {tuple(m["role"] for m in json.loads(row["messages"])) for row in rows_of(artifact)}
        assert len(roles) == 6 and ("system", "user", "assistant", "user", "assistant") in roles
