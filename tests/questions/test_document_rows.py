"""The rows of a document are those that a search of every file gives, however the stages divided the documents; other files stay closed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

import pytest

from stages.questions.tracing import trace, trace_start
from stages.questions.tracing.document_rows import decisions_of, spans_of
from stages.record.index import database
from stages.record.tables.parquet import read_rows
from tests.questions.two_runs import DECISION, DOCUMENTS, Table, doc, make_artifact, make_run

Division = Sequence[Sequence[int]]
SPAN = {"doc_id": "uuid", "shard": "int32", "start": "int64", "length": "int64"}
ALIKE: Division = ((0, 1, 2), (3, 4, 5))
OTHER: Division = ((5, 3), (2, 0, 1, 4))
DROPPED = {("boilerplate", 1), ("dedup", 4)}


def made(home: Path, divisions: Mapping[str, Division]) -> dict[str, str]:
    """Returns node -> artifact of a home whose stages divided six documents like this. A document that was dropped is in no later table."""
    gone: set[int] = set()
    names: list[str] = []
    for node in (*DOCUMENTS, "encode"):
        tables: dict[str, Table] = {}
        for number, shard in enumerate(divisions[node]):
            rows = [page for page in shard if page not in gone]
            if node == "encode":
                spans = [{"doc_id": doc(page), "shard": number, "start": 10 * page, "length": 10} for page in rows]
                tables[f"spans/{number:05d}.parquet"] = (SPAN, spans)
            else:
                verdicts = [(page, "dropped" if (node, page) in DROPPED else "kept") for page in rows]
                judged = [{"doc_id": doc(page), "url": f"http://a/{page}", "verdict": verdict} for page, verdict in verdicts]
                tables[f"decisions/{number:05d}.parquet"] = (DECISION, judged)
        gone |= {page for name, page in DROPPED if name == node}
        names.append(make_artifact(home, node, 1, {"documents": names[-1]} if names else {}, tables))
    make_run(home, 1, names)
    database.update(home)
    return {name.split("/")[0]: name for name in names}


def by_brute_force(home: Path, artifacts: Mapping[str, str], page: int) -> tuple[list[tuple[str, str]], list[int]]:
    """(node, verdict) of a document, and the shards of its tokens, from every row of every file."""
    rows = {
        node: [
            row for path in sorted((home / "artifacts" / name).glob("*/*.parquet")) for row in read_rows(path) if row["doc_id"] == doc(page)
        ]
        for node, name in artifacts.items()
    }
    return [(node, row["verdict"]) for node in DOCUMENTS for row in rows[node]], [row["shard"] for row in rows["encode"]]


@pytest.mark.parametrize(
    "divided",
    [{}, {"filter": OTHER}, {"extract": OTHER}, {"boilerplate": OTHER, "encode": OTHER}, {"dedup": OTHER, "decontaminate": OTHER},
     {"dedup": ((0, 1, 2, 3, 4, 5),)}, {"extract": ((0, 1, 2), (2, 3, 4, 5))}],
)  # fmt: skip
def test_no_row_is_missed_where_stages_divided_the_documents_differently(tmp_path: Path, divided: Mapping[str, Division]) -> None:
    artifacts = made(tmp_path, dict.fromkeys((*DOCUMENTS, "encode"), ALIKE) | divided)
    of = trace_start.start(tmp_path)
    for page in range(7):

        def asked(query: database.QueryFunction, page: int = page) -> tuple[list[tuple[str, str]], list[int]]:
            found = decisions_of(query, of, str(doc(page)))
            spans = spans_of(query, of, str(doc(page)), found) if found else ()
            return [(decision.node, decision.verdict) for decision in found], [span.shard for span in spans]

        assert database.with_connection(tmp_path, asked) == by_brute_force(tmp_path, artifacts, page), page


def test_of_later_stages_only_the_file_of_the_document_is_read(tmp_path: Path) -> None:
    artifacts = made(tmp_path, dict.fromkeys((*DOCUMENTS, "encode"), ALIKE))
    for node, name in artifacts.items():
        if node != "extract":
            table = "spans" if node == "encode" else "decisions"
            (tmp_path / "artifacts" / name / table / "00001.parquet").write_bytes(b"unreadable")
    of = trace_start.start(tmp_path)
    found = trace.trace_doc(tmp_path, of, str(doc(2)))
    assert [verdict.node for verdict in found.verdicts] == list(DOCUMENTS) and [span.start for span in found.tokens] == [20]
    assert [one.doc_id for one in trace.trace_url(tmp_path, of, "http://a/2")] == [str(doc(2))]
    with pytest.raises(Exception, match="00001.parquet"):
        trace.trace_doc(tmp_path, of, str(doc(3)))
