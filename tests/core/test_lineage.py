"""The index: complete, rebuilt from manifests alone, readable by a plain duckdb client, never written in place."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import duckdb
import pytest

from stages.core import lineage, runs
from stages.core.errors import RecipeError, StageError
from stages.core.recipe import load_recipe
from stages.core.tables import schema, write_rows
from tests.conftest import run_stage
from tests.core.toys import COUNT, WORDS


@pytest.fixture
def home(tmp_path: Path) -> Path:
    """A home with two artifacts and a run that names them."""
    recipe = tmp_path / "r.yaml"
    recipe.write_text("name: toy\n")
    loaded = load_recipe(str(recipe), {"words": WORDS.config, "count": COUNT.config})
    home = tmp_path / "home"
    words = run_stage(WORDS, {}, {}, home)
    count = run_stage(COUNT, {}, {"words": words}, home)
    run = runs.start_run(home, loaded, {"recipe": "toy"})
    for artifact in (words, count):
        runs.record_node(home, run, artifact.manifest["node"], "done", f"{artifact.manifest['node']}/{artifact.path.name}", 1.5)
    runs.end_run(home, run, "done")
    lineage.update(home)
    return home


def everything(home: Path) -> list[object]:
    tables = ("run", "node_run", "artifact", "edge", "metric", "book", "side_table", "current")
    return [lineage.query(home, f"SELECT * FROM {table} ORDER BY ALL") for table in tables]


def test_holds_artifacts_edges_metrics_books_and_runs(home: Path) -> None:
    assert lineage.query(home, "SELECT node, rows FROM artifact ORDER BY node")[1] == [("count", 3), ("words", 3)]
    edge = lineage.records(home, "SELECT * FROM edge")[0]
    assert edge["parent"].startswith("words/") and edge["child"].startswith("count/") and edge["role"] == "words"
    assert lineage.query(home, "SELECT name, value FROM metric")[1] == [("longest", 5.0)]
    assert ("in", None, 3, 14) in lineage.query(home, "SELECT entry, reason, rows, chars FROM book")[1]
    assert lineage.query(home, "SELECT recipe, state FROM run")[1] == [("toy", "done")]
    assert [r[0] for r in lineage.query(home, "SELECT node FROM current ORDER BY 1")[1]] == ["count", "words"]


def test_reindex_loses_nothing(home: Path) -> None:
    before = everything(home)
    (home / lineage.FILE).unlink()
    assert lineage.reindex(home) == (2, 1)
    assert everything(home) == before


def test_a_damaged_index_is_built_anew(home: Path) -> None:
    before = everything(home)
    (home / lineage.FILE).chmod(0o644)
    (home / lineage.FILE).write_bytes(b"not a database")
    lineage.update(home)
    assert everything(home) == before


def test_an_absent_index_is_built_by_the_first_question(home: Path) -> None:
    (home / lineage.FILE).unlink()
    assert lineage.query(home, "SELECT count(*) FROM artifact")[1] == [(2,)]


def test_is_read_only_and_swapped_in(home: Path) -> None:
    inode = (home / lineage.FILE).stat().st_ino
    assert (home / lineage.FILE).stat().st_mode & 0o777 == 0o444
    reader = duckdb.connect(str(home / lineage.FILE), read_only=True)
    run_stage(WORDS, {"words": ["more"]}, {}, home)
    lineage.update(home)
    assert reader.execute("SELECT count(*) FROM artifact").fetchone() == (2,)
    reader.close()
    assert (home / lineage.FILE).stat().st_ino != inode
    assert lineage.query(home, "SELECT count(*) FROM artifact")[1] == [(3,)]
    assert not list(home.glob("*.wal")) and not list(home.glob(".lineage*"))


def test_side_tables_are_views_that_a_plain_client_reads_from_any_folder(home: Path, tmp_path: Path) -> None:
    artifact = next((home / "artifacts" / "words").iterdir())
    manifest = __import__("json").loads((artifact / "manifest.json").read_text())
    write_rows(artifact / "decisions" / "00000.parquet", schema(url="string", verdict="string"), [{"url": "http://a", "verdict": "kept"}])
    write_rows(artifact / "decisions" / "00001.parquet", schema(url="string", reason="string"), [{"url": "http://b", "reason": "short"}])
    for number in (0, 1):
        manifest["files"].append({"path": f"decisions/{number:05d}.parquet", "bytes": 0, "sha256": ""})
    (artifact / "manifest.json").write_text(__import__("json").dumps(manifest))
    lineage.reindex(home)
    code = "import duckdb, sys; print(duckdb.connect(sys.argv[1], read_only=True).execute(sys.argv[2]).fetchall())"
    sql = "SELECT node, url, verdict, reason FROM decisions ORDER BY url"
    done = subprocess.run(
        [sys.executable, "-c", code, str(home / lineage.FILE), sql], capture_output=True, text=True, cwd=tmp_path, check=True
    )
    assert done.stdout.strip() == "[('words', 'http://a', 'kept', None), ('words', 'http://b', None, 'short')]"
    (artifact / "decisions" / "00001.parquet").unlink()
    lineage.update(home)
    assert lineage.query(home, "SELECT count(*) FROM decisions")[1] == [(1,)]


def test_recorders_in_many_processes_lose_nothing(home: Path) -> None:
    code = (
        "import sys, pathlib; from stages.core import lineage; from tests.conftest import run_stage; from tests.core.toys import WORDS\n"
        "home = pathlib.Path(sys.argv[1])\n"
        "for i in range(4):\n    run_stage(WORDS, {'words': [sys.argv[2], str(i)]}, {}, home); lineage.update(home)\n"
    )
    processes = [subprocess.Popen([sys.executable, "-c", code, str(home), f"p{n}"], cwd=Path(__file__).parents[2]) for n in range(3)]
    assert [p.wait(timeout=120) for p in processes] == [0, 0, 0]
    assert lineage.query(home, "SELECT count(*) FROM artifact")[1] == [(2 + 12,)]


def test_wrong_sql_and_unknown_names_say_what_to_do(home: Path, tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="The query failed") as caught:
        lineage.query(home, "SELECT nothing FROM nowhere")
    assert "SHOW TABLES" in str(caught.value)
    with pytest.raises(StageError, match="There is no artifact 'pretrain'") as missing:
        lineage.latest_artifact(home, "pretrain")
    assert "count, words" in str(missing.value)
    with pytest.raises(RecipeError, match="This home has no lineage yet"):
        lineage.query(tmp_path / "elsewhere", "SELECT 1")


def test_an_artifact_is_found_by_node_name_key_and_digest(home: Path) -> None:
    record = lineage.latest_artifact(home, "words")
    for name in (record["artifact_id"], record["key"][:8], record["digest"][:10]):
        assert lineage.latest_artifact(home, name)["artifact_id"] == record["artifact_id"]
