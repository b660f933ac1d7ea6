"""Writes what the documents say of the stages from their declarations: `make docs`. README.md (the table of stages) and VIEWS.md.

The README's tables are those of tests/architecture/readme_tables.py; VIEWS.md is generated whole. tests/architecture/test_stages.py fails where either is not current.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flows.pipeline import pipeline, stage_of
from stages.core.contract.source_code import PROJECT
from tests.architecture.readme_tables import rewritten

VIEWS_HEAD = """# Views

What `loam lineage sql` shows of the side tables of artifacts; written by `make docs` from the declarations in `stages/`. Every view also has
`artifact_id`, `node` and `file`.
"""


def views() -> str:
    """VIEWS.md: of every view the tables behind it, and their columns; a table that several stages declare alike stands once."""
    found: dict[str, dict[str, list[str]]] = {}
    for stage in {node.stage_name: stage_of(node) for node in pipeline()}.values():
        for table in stage.tables:
            lines = [f"A row is {table.about}.", "", "| column | type | |", "|---|---|---|"]
            lines += [f"| `{name}` | {column.type} | {column.about} |" for name, column in table.columns.items()]
            text = "\n".join(lines) + (f"\n\nFurther columns: {table.more}." if table.more else "")
            found.setdefault(table.view, {}).setdefault(text, []).append(stage.name)
    parts = [VIEWS_HEAD]
    for view, tables in sorted(found.items()):
        parts.append(f"## {view}\n")
        parts += [f"Of {', '.join(f'`{name}`' for name in names)}. {text}\n" for text, names in tables.items()]
    return "\n".join(parts)


def written() -> dict[Path, str]:
    """File -> what it should hold."""
    path = PROJECT / "README.md"
    return {path: rewritten(path.read_text(encoding="utf-8")), PROJECT / "VIEWS.md": views()}


def main() -> int:
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(PROJECT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
