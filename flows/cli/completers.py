"""What the shell offers when the user presses Tab: recipes, nodes, and names of artifacts and runs.

Guarantee: nothing is written, and a home without an index offers no names (an index is not built for a completion).
Cost: one start of Python; for names one query of the index. cyclopts calls these functions and keeps what begins with the typed word.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from cyclopts.completion._engine import CompletionContext  # the type that a completer is called with

MOST_NAMES = 5_000
ARTIFACTS = "SELECT alias AS name FROM artifact UNION SELECT node FROM artifact UNION SELECT name FROM given_name SEMI JOIN artifact ON target = artifact_id"
RUNS = "SELECT alias AS name FROM run UNION SELECT run_id FROM run UNION SELECT name FROM given_name SEMI JOIN run ON target = run_id"


def recipes(context: CompletionContext) -> list[str]:
    """The recipes in configs/, and the recorded runs, from which a branch starts."""
    from flows.opened_recipe import ROOT

    return [*sorted(path.stem for path in (ROOT / "configs").glob("*.yaml")), *runs(context)]


def nodes(context: CompletionContext) -> list[str]:
    """The nodes of the DAG in order."""
    from flows.pipeline import pipeline

    return [node.name for node in pipeline()]


def artifacts(context: CompletionContext) -> list[str]:
    """Nodes with an artifact, aliases and given names of artifacts."""
    return _names(context, ARTIFACTS)


def runs(context: CompletionContext) -> list[str]:
    """Ids, aliases and given names of runs."""
    return _names(context, RUNS)


def artifacts_and_runs(context: CompletionContext) -> list[str]:
    """What `artifacts` and `runs` offer."""
    return _names(context, f"{ARTIFACTS} UNION {RUNS}")


def _names(context: CompletionContext, sql: str) -> list[str]:
    from flows.opened_recipe import default_home
    from stages.core.index import database

    home = default_home(context["--home"].raw or "")
    if not (home / database.FILE).is_file():
        return []
    return [str(row[0]) for row in database.query(home, f"SELECT name FROM ({sql}) ORDER BY name LIMIT {MOST_NAMES}")[1]]
