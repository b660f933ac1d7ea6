"""Which copies a takedown names, and with which values: on side tables that are made row by row."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import duckdb
import pytest

from stages.questions import affected as affected_module
from stages.questions.affected import affected
from stages.record.index import database
from tests.questions.two_runs import CLUSTER, DECISION, Cell, doc, make_artifact


def uuid(number: int) -> str:
    return str(doc(number))


@pytest.fixture
def db() -> Iterator[duckdb.DuckDBPyConnection]:
    """Returns a database with the tables that the query for copies reads, all empty."""
    with duckdb.connect() as db:
        db.execute(
            "CREATE TABLE matching (doc_id UUID);"
            "CREATE TABLE decisions (node VARCHAR, artifact_id VARCHAR, doc_id UUID, url VARCHAR, verdict VARCHAR, reason VARCHAR);"
            "CREATE TABLE clusters (artifact_id VARCHAR, doc_id UUID, kept_doc_id UUID, kind VARCHAR, jaccard DOUBLE, corpus VARCHAR);"
            "CREATE TABLE pairs AS SELECT artifact_id, doc_id, kept_doc_id, jaccard, corpus FROM clusters;"
            "CREATE TABLE same_text (artifact_id VARCHAR, doc_id UUID, compared UUID)"
        )
        yield db


def test_a_copy_of_two_pages_is_named_once_with_the_closer_relation(db: duckdb.DuckDBPyConnection) -> None:
    """Page 3 was kept for 1, which has its text, and for 2, which is near to it."""
    db.execute("INSERT INTO matching VALUES ($1), ($2)", [uuid(1), uuid(2)])
    db.execute(
        "INSERT INTO clusters VALUES ('d', $1, $3, 'exact', 1.0, NULL), ('d', $2, $3, 'near', 0.9, NULL)", [uuid(1), uuid(2), uuid(3)]
    )
    for number, verdict in ((1, "dropped"), (2, "dropped"), (3, "kept")):
        db.execute("INSERT INTO decisions VALUES ('dedup', 'd', $1, $2, $3, NULL)", [uuid(number), f"http://{number}", verdict])
    ((_, *found),) = db.execute(affected_module._COPIES).fetchall()
    assert found == ["d", "http://3", "http://1", "exact", 1.0, False, None]


def test_a_page_has_the_pairs_of_the_page_with_its_text_and_no_others(db: duckdb.DuckDBPyConnection) -> None:
    """Page 1 has the text of 2, which is near to 3. In the same artifact 4 is near to 5, and in another one 2 is near to 6."""
    db.execute("INSERT INTO matching VALUES ($1)", [uuid(1)])
    db.execute("INSERT INTO same_text VALUES ('d', $1, $2)", [uuid(1), uuid(2)])
    for artifact, page, kept in (("d", 2, 3), ("d", 4, 5), ("other", 2, 6)):
        db.execute("INSERT INTO pairs VALUES ($1, $2, $3, 0.9, NULL)", [artifact, uuid(page), uuid(kept)])
    assert [str(row[0]) for row in db.execute(affected_module._COPIES).fetchall()] == [uuid(3)]


def made_dedup(home: Path, decisions: list[dict[str, Cell]], clusters: list[dict[str, Cell]], pairs: list[dict[str, Cell]]) -> None:
    shape = {name: CLUSTER[name] for name in ("doc_id", "kept_doc_id", "jaccard", "corpus")}
    tables = {
        "decisions/00000.parquet": (DECISION, decisions), "clusters.parquet": (CLUSTER, clusters), "pairs.parquet": (shape, pairs)
    }  # fmt: skip
    make_artifact(home, "dedup", 1, {}, tables)
    database.update(home)


def test_a_copy_that_a_takedown_removed_already_is_not_named_again(tmp_path: Path) -> None:
    """Page 1 matches. Its copies 2 and 3 were removed, as one of a named page and by their own URL; 4 is an ordinary dropped copy."""
    reasons = {1: "url.removed", 2: "copy_of_removed", 3: "url.removed", 4: "exact_duplicate"}
    decisions: list[dict[str, Cell]] = [
        {"doc_id": doc(n), "url": f"http://{n}", "verdict": "dropped", "reason": reason} for n, reason in reasons.items()
    ]
    clusters: list[dict[str, Cell]] = [
        {"doc_id": doc(n), "cluster": 0, "kept_doc_id": doc(1), "jaccard": 1.0, "kind": "exact"} for n in (2, 3, 4)
    ]
    made_dedup(tmp_path / "home", decisions, clusters, [])
    assert [copy["url"] for copy in affected(tmp_path / "home", "http://1").copies] == ["http://4"]


def test_where_no_artifact_has_texts_a_near_copy_may_have_the_text_of_any_exact_copy(tmp_path: Path) -> None:
    """Page 2 was compared with 3 and 4; page 1 is an exact copy in its cluster with its similarity. No texts of any stage are left."""
    decisions: list[dict[str, Cell]] = [{"doc_id": doc(n), "url": f"http://{n}", "verdict": "kept"} for n in (1, 2, 3, 4)]
    clusters: list[dict[str, Cell]] = [
        {"doc_id": doc(n), "cluster": 0, "kept_doc_id": doc(3), "jaccard": 0.9, "kind": kind} for n, kind in ((1, "exact"), (2, "near"))
    ]
    pairs: list[dict[str, Cell]] = [{"doc_id": doc(2), "kept_doc_id": doc(n), "jaccard": 0.9} for n in (3, 4)]
    made_dedup(tmp_path / "home", decisions, clusters, pairs)
    assert [copy["url"] for copy in affected(tmp_path / "home", "http://1").copies] == ["http://3", "http://4"]


def test_a_copy_of_two_matching_pages_has_the_higher_similarity(tmp_path: Path) -> None:
    decisions: list[dict[str, Cell]] = [{"doc_id": doc(n), "url": f"http://a/{n}", "verdict": "dropped"} for n in (1, 2)]
    decisions.append({"doc_id": doc(3), "url": "http://b/3", "verdict": "kept"})
    similarity = {1: 0.8, 2: 0.95}
    clusters: list[dict[str, Cell]] = [
        {"doc_id": doc(n), "cluster": 0, "kept_doc_id": doc(3), "jaccard": jaccard, "kind": "near"} for n, jaccard in similarity.items()
    ]
    pairs: list[dict[str, Cell]] = [{"doc_id": doc(n), "kept_doc_id": doc(3), "jaccard": jaccard} for n, jaccard in similarity.items()]
    made_dedup(tmp_path / "home", decisions, clusters, pairs)
    (copy,) = affected(tmp_path / "home", "http://a/%").copies
    assert (copy["url"], copy["jaccard"]) == ("http://b/3", 0.95)
