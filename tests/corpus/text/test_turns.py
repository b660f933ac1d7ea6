"""The texts of turns, written down by hand."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from stages.corpus.text.turns import chat_texts, tools_of, turn_text, turn_texts
from stages.corpus.text_index.example_texts import TextKind, example_texts
from stages.evaluation.contamination import _dialogues
from stages.examples.items.dialogue import contents
from stages.record.tables.parquet import schema, write_rows
from stages.training.run.held_out_quotes import _quotable

CALL = {"id": "c1", "type": "function", "function": {"name": "add", "arguments": {"Größe": 1}}}
TURN: dict[str, Any] = {"role": "assistant", "content": "Let me see.", "reasoning_content": "I add.", "tool_calls": [CALL, CALL]}
PARTS: dict[str, Any] = {"role": "user", "content": [{"type": "text", "text": "a"}, {"type": "text", "text": "b"}]}
RESULT: dict[str, Any] = {"role": "tool", "content": "six", "tool_call_id": "c1", "name": "add"}
AS_TEXT = '{"name": "add", "arguments": {"Größe": 1}}'
TOOL = {"type": "function", "function": {"name": "add"}}


def test_everything_that_a_turn_says_is_a_text() -> None:
    assert turn_texts(TURN) == ["I add.", "Let me see.", AS_TEXT, AS_TEXT] and turn_texts(PARTS) == ["a", "b"]
    assert turn_texts({"role": "assistant", "tool_calls": [CALL]}) == [AS_TEXT] and turn_text(RESULT) == "six"
    said = [("assistant", text) for text in turn_texts(TURN)]
    assert chat_texts([PARTS, TURN, RESULT], [TOOL]) == [("tools", json.dumps(TOOL)), ("user", "a"), ("user", "b"), *said, ("tool", "six")]
    assert tools_of(None) == tools_of("") == [] and tools_of(json.dumps([TOOL])) == [TOOL]


def test_a_chats_reasoning_calls_and_results_are_searched_traced_and_compared_with_documents(tmp_path: Path) -> None:
    """Catches: a benchmark item in the result of a tool that no search finds, a call that is trained and that no trace shows."""
    messages, tools = json.dumps([PARTS, TURN, RESULT]), json.dumps([TOOL])
    whole = "\n".join([json.dumps(TOOL), "a", "b", "I add.", "Let me see.", AS_TEXT, AS_TEXT, "six"])
    assert contents(json.loads(messages), [TOOL]) == whole
    columns = {
        "doc_id": "uuid",
        "messages": "string",
        "tools": "string",
        "prompt": "string",
        "chosen": "string",
        "rejected": "string",
        "split": "string",
    }
    row = {"doc_id": bytes(16), "messages": messages, "tools": tools, "prompt": messages, "chosen": "x", "rejected": "y", "split": "train"}
    write_rows(tmp_path / "rows.parquet", schema(**columns), [row])
    assert [text for _, _, text in _dialogues(tmp_path / "rows.parquet", "conversations")] == [whole]
    assert [text for _, _, text in _dialogues(tmp_path / "rows.parquet", "preferences")] == [f"{whole}\nx\n{whole}\ny"]
    found = example_texts(TextKind.CONVERSATION, {"messages": messages})
    assert found == chat_texts(json.loads(messages), [])
    assert _quotable({"doc_id": bytes(16), "messages": messages}).replies == ("I add.", "Let me see.", AS_TEXT, AS_TEXT)  # type: ignore[typeddict-item]
