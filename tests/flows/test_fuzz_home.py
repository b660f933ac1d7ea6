"""A damaged home and hostile arguments: an exit code of 0 to 3, one message on failure, never a traceback. See tests/fuzzing.py."""

from __future__ import annotations

import contextlib
import json
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.record.contract.recipe import load_recipe
from stages.record.index import database
from stages.record.store import names, runs
from stages.record.store.manifest import artifact_id
from tests.conftest import run_stage
from tests.fuzzing import JSON, WORD, holds, profile, torn
from tests.record.toys import COUNT, WORDS

pytestmark = pytest.mark.fuzz
PROJECT = Path(__file__).resolve().parents[2]

# ---------------------------------------------------------------------------------------------------------------- the home


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Returns a home with two runs of two toy stages, a given name, an index."""
    home = tmp_path_factory.mktemp("fuzz") / "home"
    recipe = home.parent / "toy.yaml"
    recipe.write_text("name: toy\n")
    loaded = load_recipe(str(recipe), {"words": WORDS.config, "count": COUNT.config})
    for words in (("alpha", "beta"), ("gamma",)):
        first = run_stage(WORDS, {"words": words, "packages": ["stdlib"]}, {}, home)
        run = runs.start_run(home, loaded, {"recipe": "toy"})
        for artifact in (first, run_stage(COUNT, {}, {"words": first}, home)):
            runs.record_node(home, run, artifact.manifest["node"], "built", artifact_id(artifact))
        runs.end_run(home, run, "done")
    names.give_name(home, "best", artifact_id(first))
    (home / "hashes.json").write_text(json.dumps({"/x": [[1, 2, 3, 4], "ab"]}))
    database.update(home)
    return home


QUESTIONS = (
    ("runs", "list"), ("lineage", "show", "words-1"), ("lineage", "show", "toy-1"), ("lineage", "up", "count"), ("lineage", "down", "best"),
    ("lineage", "names"), ("lineage", "diff", "words-1", "words-2"), ("lineage", "verify"), ("lineage", "reindex"), ("lineage", "gc"),
    ("lineage", "name", "words-1", "other", "--move"), ("compare", "toy-1", "toy-2"), ("trace", "--url", "x"), ("report",), ("plan", "toy-1"),
    ("lineage", "why", "crawl", "toy-1"), ("lineage", "affected", "--url-pattern", "x"), ("what-if", "words"), ("plan", "tiny", "--until", "crawl"),
    ("lineage", "import", "dedup", "{home}/artifacts/words", "--provenance", "x"), ("runs", "delete", "toy-1"),
)  # fmt: skip
RECORDS = (
    "artifacts/*/*/manifest.json",
    "manifests/*/*.json",
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
    """Returns garbage, a torn file, or the JSON it holds with one value replaced."""
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
            (home / database.FILE).unlink()
        holds([*question, "--home", str(home)])


@profile(3, 20)
@given(st.data())
def test_a_damaged_index(home: Path, data: st.DataObject) -> None:
    question = data.draw(st.sampled_from(QUESTIONS[:8]))
    with as_before(home):
        path = home / database.FILE
        path.chmod(0o644)
        whole = path.read_bytes()
        path.write_bytes(
            data.draw(torn(whole[:100_000])) + whole[100_000:] if data.draw(st.booleans()) else data.draw(st.sampled_from(GARBAGE))
        )
        holds([*question, "--home", str(home)])


# ---------------------------------------------------------------------------------------------------------- the command line

COMMANDS = (
    ("plan",), ("plan", "tiny"), ("runs", "list"), ("runs",), ("runs", "delete"), ("lineage", "show"), ("lineage", "up"), ("lineage", "down"), ("lineage", "names"),
    ("lineage", "name"), ("lineage", "diff"), ("lineage", "affected"), ("lineage", "why"), ("lineage", "verify"), ("lineage", "gc"), ("lineage",),
    ("lineage", "import"), ("compare",), ("trace",), ("what-if",), ("report",), (), ("dashboard", "--help"), ("serve", "--help"), ("run", "--help"),
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
    if words[:2] in (["lineage", "name"], ["lineage", "import"]):
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
