"""Writes what the documents say of the stages from their declarations: `make docs`. docs/stages.md (its table), VIEWS.md, SETTINGS.md.

The table of docs/stages.md is that of tests/architecture/readme_tables.py; the other two are generated whole. tests/architecture/test_stages.py
fails where one is not current.
"""

from __future__ import annotations

import sys
from pathlib import Path

from flows.pipeline import pipeline, stage_of
from stages.core.contract.source_code import PROJECT
from stages.queries.recipe_settings import recipe_settings
from tests.architecture.readme_tables import markdown, rewritten, rules

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


SETTINGS_HEAD = """# Settings

Every key that a recipe can have; written by `make docs` from the settings classes. `loam settings KEY` prints the same. A recipe gives only
what differs from the default; "-" marks a key without a default. `--set KEY=VALUE` changes a key for one run.
"""


RULES_HEAD = """## The rules of the filter

The filter applies the rules in this order. The first rule that a document breaks gives the reason. A rule is one entry of a list in
`stages/text/quality/rules.py`. The settings, their help, the decisions, `loam what-if` and this table are made from that list. "-" marks a
rule without a setting.
"""


def settings() -> str:
    """SETTINGS.md: of every section of a recipe its keys; then the rules of the filter."""
    parts = [SETTINGS_HEAD]
    for section in recipe_settings({node.name: stage_of(node) for node in pipeline()}):
        alike = f" The same keys: {', '.join(f'`{node}`' for node in section.alike)}." if section.alike else ""
        rows = [("key", "default", "type", "meaning")]
        rows += [(f"`{one.name}`", f"`{one.default}`" if one.default else "-", one.type, one.about) for one in section.settings]
        escaped = [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
        about = section.about.rstrip(".")
        parts.append(f"## {section.name}\n\n{about[0].upper()}{about[1:]}.{alike}\n")
        parts.append(markdown(escaped) if section.settings else "It has no settings.\n")
    return "\n".join([*parts, RULES_HEAD, markdown(rules())])


def written() -> dict[Path, str]:
    """File -> what it should hold."""
    path = PROJECT / "docs" / "stages.md"
    return {path: rewritten(path.read_text(encoding="utf-8")), PROJECT / "VIEWS.md": views(), PROJECT / "SETTINGS.md": settings()}


def main() -> int:
    for path, text in written().items():
        path.write_text(text, encoding="utf-8")
        print(path.relative_to(PROJECT))
    return 0


if __name__ == "__main__":
    sys.exit(main())
