"""Gathers what the tables say about many documents, in one pass over each table, so that a trace of them does not read the files again.

The rows become temporary tables of one connection, and temporary views of the same names hide those of the index. The queries of a trace are the
same for one document and for a thousand; behind `gather` they read these rows.
Guarantee: every row that a trace of one of the documents reads is there, so the answers are those without `gather` (tested). What is not about
single documents, such as the first step of a training, must be asked before.
Cost: two passes over the decisions and one over each other table; the rows, and the texts of documents that quote benchmark items, are in memory.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from stages.questions.tracing.document_rows import in_files
from stages.questions.tracing.trace_start import Start
from stages.record.index.database import QueryFunction
from stages.record.index.limited_query import Table
from stages.record.index.schema import identifier

IN = "IN (SELECT unnest(?::UUID[]))"


def gather(query: QueryFunction, of: Start, doc_ids: Sequence[str]) -> QueryFunction:
    """Replaces the tables that a trace reads by their rows about some documents, on this connection.

    Args:
        query: runs a query on one connection to the index.
        of: the start of the answer.
        doc_ids: the documents, UUIDs as text.

    Returns:
        A function that runs queries of a trace on the connection, each only once: many are the same for all documents of an artifact.
    """
    ids, found = list(doc_ids), _Gathering(query, of)
    judged = found.paths("decisions")
    kept = found.values("decisions", "kept_doc_id", f"{in_files(judged)} AND doc_id {IN}", [*judged, ids])
    found.take("clusters", found.paths("clusters"), {"doc_id": ids})
    kept += found.values("clusters", "kept_doc_id")
    corpora = [f"/{corpus}/" for corpus in found.values("clusters", "corpus", "corpus <> ''")]
    of_clusters = sorted({*ids, *kept})
    found.take("pairs", found.paths("pairs"), {"kept_doc_id": of_clusters})
    found.take(
        "decisions", [*judged, *corpora], {"doc_id": sorted({*of_clusters, *found.values("pairs", "doc_id")}), "kept_doc_id": of_clusters}
    )
    for kind in ("removed", "spans", "hits", "sequence_spans"):
        found.take(kind, found.paths(kind), {"doc_id": ids})
    found.take("files", found.paths("files"), {})
    found.take("items", found.parents(), {"item_id": found.values("hits", "item_id")})
    found.take("documents", found.parents(), {"doc_id": found.values("hits", "doc_id")})
    found.take("steps", found.paths("steps"), {"sequence": found.values("sequence_spans", "sequence", "part = 'train'")})
    answers: dict[str, Table] = {}

    def remembered(sql: str, parameters: Sequence[object] = ()) -> Table:
        asked = repr((sql, parameters))
        if asked not in answers:
            answers[asked] = query(sql, parameters)
        return answers[asked]

    return remembered


class _Gathering:
    """The views of one connection, by the kind of their side table. A kind has one view, except after a version that named it otherwise."""

    def __init__(self, query: QueryFunction, of: Start) -> None:
        self.query, self.of = query, of
        self.views: dict[str, list[str]] = dict(query("SELECT kind, list(DISTINCT view ORDER BY view) FROM side_table GROUP BY kind")[1])

    def paths(self, kind: str) -> list[str]:
        """Returns the path parts of the artifacts of the start, and of what it continues, that have a kind of side table."""
        return list(dict.fromkeys(path for one in self.of.chain for (_, found), path in one.of.items() if found == kind))

    def parents(self) -> list[str]:
        """Returns the path parts of the inputs of the artifacts of the start, and of what it continues."""
        artifacts = sorted({path.strip("/") for one in self.of.chain for path in one.of.values()})
        found = self.query("SELECT DISTINCT parent FROM edge WHERE input AND list_contains(?::VARCHAR[], child) ORDER BY 1", [artifacts])[1]
        return [f"/{parent}/" for (parent,) in found]

    def columns(self, view: str) -> dict[str, str]:
        """Returns column -> type of a view."""
        return dict(self.query("SELECT name, type FROM side_column WHERE view = ?", [view])[1])

    def take(self, kind: str, paths: Sequence[str], conditions: Mapping[str, Sequence[str]]) -> None:
        """Replaces the views of a kind by their rows in some artifacts that meet one of some conditions on columns.

        Args:
            kind: the kind of side table.
            paths: the path parts of the artifacts.
            conditions: column -> its values as text; empty for all rows. A column that a view does not have counts for nothing.
        """
        for view in self.views.get(kind, ()):
            known = self.columns(view)
            met = [f"{identifier(name)} IN (SELECT unnest(?::{known[name]}[]))" for name in conditions if name in known]
            values = [list(found) for name, found in conditions.items() if name in known]
            where = f"{in_files(paths)} AND ({' OR '.join(met) or ('false' if conditions else 'true')})" if paths else "false"
            self.query(
                f"CREATE TEMP TABLE {identifier(f'gathered_{view}')} AS SELECT * FROM {identifier(view)} WHERE {where}",
                [*paths, *values] if paths else [],
            )
            self.query(f"CREATE OR REPLACE TEMP VIEW {identifier(view)} AS SELECT * FROM {identifier(f'gathered_{view}')}")

    def values(self, kind: str, column: str, where: str = "true", parameters: Sequence[object] = ()) -> list[str]:
        """Returns the values of a column, as text, in the rows that meet a condition; none where no view has the column."""
        views = [view for view in self.views.get(kind, ()) if column in self.columns(view)]
        sql = "SELECT DISTINCT {0}::VARCHAR FROM {1} WHERE {2} AND {0} IS NOT NULL"
        return [value for view in views for (value,) in self.query(sql.format(identifier(column), identifier(view), where), parameters)[1]]
