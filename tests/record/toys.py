"""Toy stages for tests of the runner: one draws a line per word, one counts lines, one takes time. Real Stage records, no shortcuts."""

from __future__ import annotations

import json
import os
import random
import signal
import time
from collections.abc import Mapping
from pathlib import Path
from typing import TypedDict

from stages.record.contract.declaration import Artifact, Context, ExternalFiles, NamedFiles, Outcome, Packages, RecordCounts, Stage
from stages.record.contract.errors import StageError
from stages.record.contract.side_table import Column, SideTable
from stages.record.settings import StageConfig
from stages.record.tables.shards import Meter, collect, run_shards


class WordsConfig(StageConfig):
    """Which words."""

    words: tuple[str, ...] = ("alpha", "beta", "gamma")
    """One file each."""
    files: ExternalFiles = ()
    """Files whose lines are words too."""
    named: NamedFiles = ()
    """Files whose names matter."""
    packages: Packages = ()
    """Distributions that decide nothing but the key."""
    max_bad_records: int = 0
    """How many words may be empty."""
    fail_at: str = ""
    """A word at which the shard fails while the file named by LOAM_TEST_FAIL exists."""
    unbalanced: bool = False
    """Whether the record counts are wrong on purpose."""


class CountConfig(StageConfig):
    """How to count."""

    factor: int = 1
    """Multiplies the count."""


class WordTask(TypedDict):
    """A word, and the file whose existence makes its shard fail; empty for none."""

    word: str
    fail: str


def write_word(folder: Path, task: WordTask, meter: Meter) -> dict[str, int]:
    """One shard: one word in one file."""
    if task["fail"] and Path(task["fail"]).exists():
        raise RuntimeError(f"shard of {task['word']} was told to fail")
    (folder / "word.txt").write_text(task["word"])
    meter.add(1, len(task["word"]))
    return {"chars": len(task["word"])}


def run_words(config: WordsConfig, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes one file per word."""
    words = list(config.words)
    for file in ctx.files("files"):
        words += Path(file.uri).read_text(encoding="utf-8").split("\n")
    kept = []
    for position, word in enumerate(words):
        if word:
            kept.append(word)
        else:
            ctx.drop("empty word", f"word {position}", word)
    switch = os.environ.get("LOAM_TEST_FAIL", "")
    tasks: list[WordTask] = [{"word": w, "fail": switch if w == config.fail_at else ""} for w in kept]
    shards = run_shards(write_word, tasks, ctx, "words")
    collect(shards, "word.txt", out)
    chars = sum(s.result["chars"] for s in shards)
    record_counts = RecordCounts("words", len(words), len(kept), 0, {"empty": len(words) - len(kept)}, chars, chars + config.unbalanced)
    return Outcome(rows=len(kept), record_counts=record_counts, summary={"longest": max(map(len, kept))})


def run_count(config: CountConfig, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Counts the words of its input."""
    number = len(list((inputs["words"].path / "word").iterdir())) * config.factor
    (out / "count.txt").write_text(str(number))
    ctx.log(f"{number} words")
    return Outcome(rows=number)


DECISIONS = SideTable("decisions", "decisions", "nothing: a test puts rows beside the words", {"url": Column("string", "a URL")})
WORDS = Stage("words", WordsConfig, run_words, {}, "documents", ("first version",), ("pyarrow",), unit="words", tables=(DECISIONS,))
COUNT = Stage("count", CountConfig, run_count, {"words": "words"}, "tokens", ("first version",))


class SlowConfig(StageConfig):
    """How to end, and what to wait for."""

    ends: str = ""
    """How it ends: "" well, "error" with an error, "killed" by SIGKILL, "network" with an error of the network, "fault" with one of its code."""
    waits_for: str = ""
    """A file that another node makes; it must be there within ten seconds, so both run at once."""
    makes: str = ""
    """A file that it makes at its start."""


def run_slow(config: SlowConfig, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes what it reads after the seconds that LOAM_TOY_SECONDS has for its node, and changes what a process has only once."""
    if config.makes:
        Path(config.makes).write_text(str(os.getpid()), encoding="utf-8")
    end = time.monotonic() + 10
    while config.waits_for and not Path(config.waits_for).exists():
        if time.monotonic() > end:
            raise StageError(f"{ctx.node} waited for {config.waits_for} in vain.")
        time.sleep(0.01)
    random.seed(ctx.seed)
    os.environ["LOAM_TOY_NODE"] = ctx.node
    drawn, seconds = [], json.loads(os.environ.get("LOAM_TOY_SECONDS", "{}")).get(ctx.node, 0.0)
    for part in range(10):
        ctx.progress(part + 1, 10, "parts")
        drawn.append(random.random())
        time.sleep(seconds / 10)
    if config.ends == "error":
        raise StageError(f"{ctx.node} was told to fail.", where="here", do="nothing")
    if config.ends == "killed":
        os.kill(os.getpid(), signal.SIGKILL)
    if config.ends == "network":
        raise ConnectionResetError(f"{ctx.node} lost its server")
    if config.ends == "fault":
        raise ZeroDivisionError(f"{ctx.node} has a fault")
    read = sorted((one.path / "numbers.txt").read_text() for one in inputs.values())
    (out / "numbers.txt").write_text(f"{os.environ['LOAM_TOY_NODE']} {drawn} {read}")
    ctx.log(f"{ctx.node} wrote")
    return Outcome(rows=1 + len(read))


SLOW = Stage("slow", SlowConfig, run_slow, {}, "toys", ("first version",))
"""Nodes of it do not depend on each other unless a test gives them inputs."""
