"""A model in a process of its own: it writes what `loam chat` writes, can be stopped, says what is wrong, and ends with who started it."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from flows.pipeline import models
from stages.questions.talk.conversation import Conversation
from stages.questions.talk.exported_model import find_model
from stages.questions.talk.model_process import ModelProcess, ProcessQuestion, Written
from stages.questions.talk.sampling import Sampling
from stages.questions.talk.written_answer import load
from stages.record.contract.errors import StageError
from tests.questions.talk.talking_home import make_talking_home

pytestmark = pytest.mark.long

WARM = Sampling(1.2, 0.9, 24)
HISTORY = [{"role": "user", "content": "The sum"}, {"role": "assistant", "content": "of two \u2028 numbers"}]


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_talking_home(tmp_path_factory.mktemp("process") / "home")


async def answered(
    process: ModelProcess, text: str, messages: Sequence[Mapping[str, str]] = (), sampling: Sampling = WARM, stop: bool = False
) -> tuple[str, Written]:
    written, end = "", None
    async for piece in process.answer(ProcessQuestion(text, messages, sampling, 5)):
        if isinstance(piece, Written):
            end = piece
        else:
            written += piece
            if stop:
                process.stop()
    assert end
    return written, end


async def code_of(process: asyncio.subprocess.Process) -> int:
    """Its exit code, within a minute."""
    for _ in range(600):
        if process.returncode is not None:
            return process.returncode
        await asyncio.sleep(0.1)
    raise AssertionError("the process did not end")


def test_it_writes_what_a_chat_writes_and_names_what_cannot_be_a_prompt(home: Path) -> None:
    """Catches: a history, a seed or a sampling that is lost on the way, and an error that ends the process."""

    async def asked() -> list[tuple[str, Written]]:
        process = ModelProcess(home, "dpo", models())
        found = [await answered(process, "The sum", HISTORY)]
        first = process._process
        with pytest.raises(StageError, match="Give a shorter text"):
            await answered(process, "word " * 400)
        found += [await answered(process, "The sum", HISTORY), await answered(process, "The sum")]
        assert process._process is first, "the process answers on after an error"
        process.end()
        assert first and await code_of(first) != 0
        return found

    found = asyncio.run(asked())
    talk = Conversation(load(find_model(home, "dpo", models())), messages=list(map(dict, HISTORY)))
    answer, left_out = talk.answer("The sum", WARM, 5)
    assert "".join(answer) == found[0][0] == found[1][0] != found[2][0]
    assert found[0][1] == Written(answer.tokens, answer.ended, left_out)


def test_an_answer_can_be_stopped_and_a_model_that_is_not_there_is_named(home: Path) -> None:
    async def asked() -> tuple[str, Written]:
        with pytest.raises(StageError, match="nothing has the name|nowhere"):
            await ModelProcess(home, "nowhere", models()).start()
        process = ModelProcess(home, "base", models())
        try:
            return await answered(process, "The sum", sampling=Sampling(0, 1.0, 200), stop=True)
        finally:
            process.end()

    _, end = asyncio.run(asked())
    assert end.tokens < 200 and not end.ended


def test_it_ends_when_nobody_can_ask_any_more(home: Path) -> None:
    async def asked() -> int:
        process = ModelProcess(home, "base", models())
        await process.start()
        assert process._process and process._process.stdin
        process._process.stdin.close()
        return await code_of(process._process)

    assert asyncio.run(asked()) == 0


def test_a_process_that_dies_is_named_and_started_anew(home: Path) -> None:
    async def asked() -> tuple[str, Written]:
        process = ModelProcess(home, "base", models())
        await process.start()
        assert process._process
        process._process.kill()
        with pytest.raises(StageError, match="The process of the model ended with code -9"):
            await answered(process, "The sum")
        try:
            return await answered(process, "The sum")
        finally:
            process.end()

    assert asyncio.run(asked())[1].tokens > 0
