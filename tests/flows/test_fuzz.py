"""Hostile input to every reader and to the command line: an exit code of 0 to 3, one message on failure, never a traceback.

Quick by default and the same each time; `make test-fuzz` looks for new cases for minutes (LOAM_FUZZ names the examples per test).
"""

from __future__ import annotations

import contextlib
import gzip
import io
import json
import os
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from functools import cache
from hashlib import sha256
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from flows.cli import main
from flows.contradictions import refuse_contradictions
from flows.road import config_classes
from stages.core import foreign, lineage, names, runs
from stages.core.errors import LoamError, RecipeError
from stages.core.manifest import artifact_id
from stages.core.recipe import Runtime, apply_setting, load_recipe, validated
from stages.core.records import read_lines, read_records
from stages.core.stage import ExternalFile
from tests.conftest import run_stage
from tests.core.toys import COUNT, WORDS

pytestmark = pytest.mark.fuzz
LONG = int(os.environ.get("LOAM_FUZZ", "0"))
PROJECT = Path(__file__).resolve().parents[2]

HOSTILE = (
    "", " ", "-", "--", "---", "0", "-1", "1e999", "NaN", "null", "9" * 400, "9" * 5000, "²", "\x00", "a\x00b", "\n", "\r\n", "\x1b[2J", "\u202eabc",
    "\udcff", "\ud800", "é", "日本", "%", "%s%n", "%41", "?", "*", "**", "[", "]", "{", "}", "{{7*7}}", "\\", "'", '"', "';--", "' OR 1=1 --", "..",
    "../..", "/", "//", "/dev/null", "/dev/zero", "/proc/self/mem", "~", "~nobody", "a/b", "a" * 300, "A" * 70_000, "words", "words-1", "toy-1", "count",
    "best", "tiny", "dedup", "evaluate@sft", "@", "a=b", "words.words=[x]", "x::y", "file:///etc/passwd", "!!python/object:os.system", "&a [*a]",
)  # fmt: skip
WORD = st.sampled_from(HOSTILE) | st.text(max_size=12)


def profile(quick: int, each: int = 1) -> settings:
    """quick: examples of the short run; the long one has LONG / each."""
    slow = [HealthCheck.too_slow, HealthCheck.data_too_large, HealthCheck.function_scoped_fixture]
    count = max(1, LONG // each) if LONG else quick
    return settings(max_examples=count, deadline=None, derandomize=not LONG, database=None, suppress_health_check=slow)


def holds(words: Sequence[str]) -> int:
    """Runs the command line in this process and checks what it promises whatever it is given."""
    out, err = (io.TextIOWrapper(io.BytesIO(), encoding="utf-8", errors=how, write_through=True) for how in ("strict", "backslashreplace"))
    with contextlib.redirect_stdout(out), contextlib.redirect_stderr(err):
        try:
            code = main(words)
        except SystemExit as stopped:  # argparse
            code = int(stopped.code or 0)
            assert code in (0, 2)
            code = -code
    printed = err.buffer.getvalue().decode()  # type: ignore[attr-defined]
    assert "Traceback" not in printed
    messages = re.findall("^loam: ", printed, re.MULTILINE)
    if code < 0:
        assert printed.startswith("usage: ") and printed.count("error: ") >= 1 and len(messages) <= 1
    elif code and words[:2] != ["lineage", "verify"]:
        assert code in (1, 2, 3) and len(messages) == 1, printed
        assert len(printed) < 20_000
    return abs(code)


# ---------------------------------------------------------------------------------------------------------------- recipes


@cache
def classes() -> Mapping[str, Any]:
    return config_classes()


@st.composite
def torn(draw: st.DrawFn, whole: bytes) -> bytes:
    """A file that was cut, overwritten, doubled in places, or had hostile words put into it."""
    data = bytearray(whole)
    for _ in range(draw(st.integers(1, 3))):
        at = draw(st.integers(0, len(data)))
        kind = draw(st.integers(0, 4))
        if kind == 0:
            del data[at:]
        elif kind == 1:
            data[at:at] = draw(st.binary(min_size=1, max_size=8))
        elif kind == 2:
            data[at:at] = draw(WORD).encode("utf-8", "surrogatepass")
        elif kind == 3:
            to = draw(st.integers(0, len(data)))
            data[at:at] = data[min(at, to) : max(at, to)][:4096]
        else:
            size = draw(st.integers(1, 8))
            data[at : at + size] = draw(st.binary(max_size=size))
    return bytes(data)


def load(path: Path, *given: str) -> None:
    with contextlib.suppress(RecipeError):
        recipe = load_recipe(str(path), classes(), given)
        refuse_contradictions(recipe)
        json.dumps(recipe.resolved(), allow_nan=False).encode()


@profile(15, 4)
@given(st.binary(max_size=60) | torn((PROJECT / "configs" / "tiny.yaml").read_bytes()))
def test_recipes(tmp_path_factory: pytest.TempPathFactory, raw: bytes) -> None:
    path = tmp_path_factory.getbasetemp() / "fuzz.yaml"
    path.write_bytes(raw)
    load(path)


YAML_VALUE = WORD | st.sampled_from(
    ["[a, b]", "{a: 1}", "{1: .nan}", "[[]]", "yes", "~", "0x10", "1e5", "2020-01-01", "[1, 2]", "{steps: 3}", "{a: {a: {}}}"]
)


def fields() -> list[str]:
    found = []
    for node, config in {"runtime": Runtime, **classes()}.items():
        for name, value in config.model_construct().__dict__.items():
            found.append(f"{node}.{name}")
            found += [f"{node}.{name}.{below}" for below in getattr(type(value), "model_fields", {})]
    return found


@profile(60)
@given(st.data())
def test_settings_of_the_command_line(data: st.DataObject) -> None:
    name = data.draw(st.sampled_from(fields()) | WORD)
    setting = f"{name}={data.draw(YAML_VALUE)}"
    node = name.split(".")[0]
    raw = _tiny()
    try:
        apply_setting(raw, setting, classes())
        if node in classes():
            json.dumps(validated(classes()[node], raw[node], "r.yaml").model_dump(mode="json"), allow_nan=False).encode()
    except RecipeError as error:
        assert error.do and error.exit_code == 2


@cache
def _resolved() -> str:
    return json.dumps(load_recipe("tiny", classes()).resolved())


def _tiny() -> dict[str, Any]:
    made: dict[str, Any] = json.loads(_resolved())
    return made


# ---------------------------------------------------------------------------------------------------------------- records

JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | WORD,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORD, inner, max_size=3),
    max_leaves=8,
)
KEYS = st.sampled_from(
    ["query", "choices", "gold", "context", "continuation", "question", "answer", "ctx", "endings", "label", "messages", "role", "content", "prompt",
     "chosen", "rejected", "text", "id", "doc_id", "url", "date", "source", "lang", "lang_score", "context_options", "canonical_solution"]
)  # fmt: skip
TURNS = st.lists(
    st.fixed_dictionaries({"role": st.sampled_from(["user", "assistant", "system", ""]) | JSON, "content": WORD | JSON}), max_size=3
)
RECORD = (
    st.dictionaries(KEYS, JSON | TURNS, max_size=6)
    | st.fixed_dictionaries({"query": WORD | JSON, "choices": st.lists(WORD, max_size=3) | JSON, "gold": st.integers(-2, 4) | JSON})
    | st.fixed_dictionaries({"messages": TURNS})
    | st.fixed_dictionaries({"prompt": TURNS | WORD, "chosen": TURNS | WORD, "rejected": TURNS | WORD})
    | st.fixed_dictionaries({"text": WORD, "lang_score": JSON, "id": JSON, "url": JSON})
)


@st.composite
def lines(draw: st.DrawFn) -> bytes:
    whole = "\n".join(json.dumps(record, ensure_ascii=draw(st.booleans())) for record in draw(st.lists(RECORD, max_size=4)))
    raw = whole.encode("utf-8", "surrogatepass")
    return draw(torn(raw)) if draw(st.booleans()) else raw


def external(path: Path) -> ExternalFile:
    return ExternalFile(str(path), path.stat().st_size, "sha256:" + "ab" * 32)


class Dropped(list[tuple[str, str, str]]):
    """A context's `drop`, which demands what bad_records.jsonl and a message need."""

    def __call__(self, reason: str, where: str, record: str) -> None:
        json.dumps([where, record], ensure_ascii=False).encode()
        assert reason and len(reason) < 1000 and len(record) <= 2000
        self.append((reason, where, record))


def context() -> Any:
    return SimpleNamespace(drop=Dropped(), progress=lambda *_: None, log=lambda _: None, seed=1)


@profile(40)
@given(lines(), st.sampled_from(["a.jsonl", "a.jsonl.gz"]))
def test_records_of_every_kind(tmp_path_factory: pytest.TempPathFactory, raw: bytes, name: str) -> None:
    from stages.benchmarks import Benchmarks, _read_file
    from stages.text.dialogue import BadDialogueError, read_messages, read_pair

    path = tmp_path_factory.getbasetemp() / name
    path.write_bytes(gzip.compress(raw, 1) if name.endswith(".gz") else raw)
    file, ctx = external(path), context()
    with contextlib.suppress(LoamError):
        for record in read_records([file], ctx):
            record.text().encode(), record.source.encode()
            for read in (lambda value: read_messages(value.get("messages")), read_pair):
                with contextlib.suppress(BadDialogueError):
                    read(record.value)
    with contextlib.suppress(LoamError):
        list(read_lines(file))
    with contextlib.suppress(LoamError):
        _read_file(file, Benchmarks(), ctx, [])
    with contextlib.suppress(LoamError):
        foreign.take_documents([file], tmp_path_factory.getbasetemp() / "taken", ctx)


@cache
def parquet() -> bytes:
    table = pa.table(
        {"text": ["One.", "Two."], "id": ["a", None], "url": ["u", "v"], "date": ["", ""], "lang": ["en", "de"], "lang_score": [0.5, 1.0]}
    )
    sink = io.BytesIO()
    pq.write_table(table, sink, compression="zstd")
    return sink.getvalue()


@profile(20)
@given(st.data())
def test_parquet_documents(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject) -> None:
    path = tmp_path_factory.getbasetemp() / "a.parquet"
    path.write_bytes(data.draw(torn(parquet())))
    with contextlib.suppress(LoamError):
        foreign.take_documents([external(path)], tmp_path_factory.getbasetemp() / "taken", context())


@cache
def warc() -> bytes:
    http = b"HTTP/1.1 200 OK\r\nContent-Type: text/html\r\nTransfer-Encoding: chunked\r\n\r\n5\r\n<p>hi\r\n0\r\n\r\n"
    head = "WARC/1.0\r\nWARC-Type: response\r\nWARC-Target-URI: http://a/\r\nWARC-Record-ID: <urn:uuid:{}>\r\nContent-Length: {}\r\n\r\n"
    record = head.format("0" * 8 + "-0000-0000-0000-" + "1" * 12, len(http)).encode() + http + b"\r\n\r\n"
    return record * 2 + gzip.compress(record, mtime=0)


@profile(20)
@given(st.data(), st.booleans())
def test_warc_files(tmp_path_factory: pytest.TempPathFactory, data: st.DataObject, zipped: bool) -> None:
    from stages.core.shards import Meter
    from stages.extract import ExtractConfig, extract_file

    base = tmp_path_factory.getbasetemp()
    path, out = base / "a.warc", base / "extracted"
    raw = data.draw(torn(warc()))
    path.write_bytes(gzip.compress(raw, 1) if zipped else raw)
    out.mkdir(exist_ok=True)
    task = {"config": ExtractConfig().model_dump(mode="json"), "uri": str(path), "number": 0, "name": "a.warc",
            "identity": "sha256:" + sha256(path.read_bytes()).hexdigest(),
            "source": "s", "bytes": path.stat().st_size, "path": str(path)}  # fmt: skip
    with contextlib.suppress(LoamError):
        extract_file(out, task, Meter(base / "meter.json"))


# ---------------------------------------------------------------------------------------------------------------- the home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two runs of two toy stages, a given name, an index."""
    home = tmp_path_factory.mktemp("fuzz") / "home"
    recipe = home.parent / "toy.yaml"
    recipe.write_text("name: toy\n")
    loaded = load_recipe(str(recipe), {"words": WORDS.config, "count": COUNT.config})
    for words in (("alpha", "beta"), ("gamma",)):
        first = run_stage(WORDS, {"words": words, "packages": ["stdlib"]}, {}, home)
        run = runs.start_run(home, loaded, {"recipe": "toy"})
        for artifact in (first, run_stage(COUNT, {}, {"words": first}, home)):
            runs.record_node(home, run, artifact.manifest["node"], "done", artifact_id(artifact))
        runs.end_run(home, run, "done")
    names.give_name(home, "best", artifact_id(first))
    (home / "hashes.json").write_text(json.dumps({"/x": [[1, 2, 3, 4], "ab"]}))
    lineage.update(home)
    return home


QUESTIONS = (
    ("lineage", "runs"), ("lineage", "show", "words-1"), ("lineage", "show", "toy-1"), ("lineage", "up", "count"), ("lineage", "down", "best"),
    ("lineage", "names"), ("lineage", "diff", "words-1", "words-2"), ("lineage", "verify"), ("lineage", "reindex"), ("lineage", "gc"),
    ("lineage", "name", "words-1", "other", "--move"), ("compare", "toy-1", "toy-2"), ("trace", "--url", "x"), ("report",), ("plan", "toy-1"),
    ("lineage", "why", "crawl", "toy-1"), ("lineage", "affected", "--url-pattern", "x"), ("what-if", "words"), ("plan", "tiny", "--until", "crawl"),
    ("lineage", "adopt", "dedup", "{home}/artifacts/words", "--provenance", "x"),
)  # fmt: skip
RECORDS = (
    "artifacts/*/*/manifest.json",
    "runs/*/run.json",
    "runs/*/end.json",
    "runs/*/nodes.jsonl",
    "names/*.json",
    "counters.json",
    "hashes.json",
)
GARBAGE = (
    b"",
    b"[]",
    b"{}",
    b"null",
    b"5",
    b'"x"',
    b"\xff\xfe\x00",
    b"\x00" * 64,
    b"[" * 5000,
    b'{"a":' * 2000,
    b"NaN",
    b'{"target": 5}',
    b'{"words": 1e999}',
)


@st.composite
def damaged(draw: st.DrawFn, whole: bytes) -> bytes:
    """Garbage, a torn file, or the JSON it holds with one value replaced."""
    kind = draw(st.integers(0, 2))
    if kind == 0:
        return draw(st.sampled_from(GARBAGE))
    try:
        value = json.loads(whole)
    except ValueError:
        return draw(torn(whole))
    if kind == 1 or not isinstance(value, dict) or not value:
        return draw(torn(whole))
    here: Any = value
    while isinstance(here, dict | list) and here:
        key = draw(st.sampled_from(sorted(here) if isinstance(here, dict) else range(len(here))))
        if draw(st.booleans()) or not isinstance(here[key], dict | list) or not here[key]:
            if draw(st.booleans()) and isinstance(here, dict):
                del here[key]
            else:
                here[key] = draw(JSON)
            break
        here = here[key]
    return json.dumps(value).encode()


@contextlib.contextmanager
def as_before(home: Path) -> Iterator[None]:
    """Puts the home back as it was."""
    kept = home.parent / "kept"
    if not kept.exists():
        shutil.copytree(home, kept, symlinks=True)
    try:
        yield
    finally:
        shutil.rmtree(home)
        shutil.copytree(kept, home, symlinks=True)


@profile(8, 2)
@given(st.data())
def test_damaged_records_of_a_home(home: Path, data: st.DataObject) -> None:
    pattern = data.draw(st.sampled_from(RECORDS))
    path = data.draw(st.sampled_from(sorted(home.glob(pattern))))
    question = [word.replace("{home}", str(home)) for word in data.draw(st.sampled_from(QUESTIONS))]
    with as_before(home):
        path.write_bytes(data.draw(damaged(path.read_bytes())))
        if data.draw(st.booleans()):
            (home / lineage.FILE).unlink()
        holds([*question, "--home", str(home)])


@profile(3, 20)
@given(st.data())
def test_a_damaged_index(home: Path, data: st.DataObject) -> None:
    question = data.draw(st.sampled_from(QUESTIONS[:8]))
    with as_before(home):
        path = home / lineage.FILE
        path.chmod(0o644)
        whole = path.read_bytes()
        path.write_bytes(
            data.draw(torn(whole[:100_000])) + whole[100_000:] if data.draw(st.booleans()) else data.draw(st.sampled_from(GARBAGE))
        )
        holds([*question, "--home", str(home)])


# ---------------------------------------------------------------------------------------------------------- the command line

COMMANDS = (
    ("plan",), ("plan", "tiny"), ("lineage", "runs"), ("lineage", "show"), ("lineage", "up"), ("lineage", "down"), ("lineage", "names"),
    ("lineage", "name"), ("lineage", "diff"), ("lineage", "affected"), ("lineage", "why"), ("lineage", "verify"), ("lineage", "gc"), ("lineage",),
    ("lineage", "adopt"), ("compare",), ("trace",), ("what-if",), ("report",), (), ("dashboard", "--help"), ("serve", "--help"), ("run", "--help"),
)  # fmt: skip
OPTIONS = (
    "--json",
    "--set",
    "--until",
    "--url",
    "--doc",
    "--step",
    "--url-pattern",
    "--provenance",
    "--as",
    "--keep-runs",
    "--move",
    "--help",
    "-V",
)


@profile(40)
@given(st.data())
def test_arguments(home: Path, data: st.DataObject) -> None:
    words = list(data.draw(st.sampled_from(COMMANDS)))
    for _ in range(data.draw(st.integers(0, 3))):
        words += [data.draw(st.sampled_from(OPTIONS)), data.draw(WORD)] if data.draw(st.booleans()) else [data.draw(WORD)]
    if words[:2] in (["lineage", "name"], ["lineage", "adopt"]):
        with as_before(home):
            holds([*words, "--home", str(home)])
    else:
        holds([*words, "--home", str(home)])


@profile(8, 4)
@given(WORD, st.sampled_from(QUESTIONS[:8]))
def test_homes(tmp_path_factory: pytest.TempPathFactory, name: str, question: tuple[str, ...]) -> None:
    base = tmp_path_factory.getbasetemp()
    holds([*question, "--home", f"{base}/homes/{name}"])
    holds([*question, f"--home={name}"])
