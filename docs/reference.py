"""The pages that follow from the code: stages, settings, rules of the filter, SQL views and commands.

mkdocs calls `on_files` when it builds the site (`make docs-site`): it adds the generated pages, and those whose source lies beside this folder
(README.md and others), so that nothing generated is kept in the repository. Only the table of stages is, because it is read there too:
`make docs` (`python -m docs.reference`) rewrites it between its markers, and tests/architecture/test_stages.py fails where it is stale.
"""

from __future__ import annotations

import posixpath
import re
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from flows.pipeline import pipeline, stage_of
from stages.corpus.filter.rules import RULES
from stages.questions.recipe_settings import recipe_settings

if TYPE_CHECKING:
    from mkdocs.config.defaults import MkDocsConfig
    from mkdocs.structure.files import Files

PROJECT = Path(__file__).resolve().parents[1]
STAGES = PROJECT / "docs" / "stages.md"
BEGIN, END = "<!-- stages: begin -->\n", "<!-- stages: end -->\n"
BESIDE = {
    "index.md": "README.md", "architecture.md": "ARCHITECTURE.md", "contributing.md": "CONTRIBUTING.md", "changelog.md": "CHANGELOG.md",
    "queries.md": "QUERIES.md",
}  # fmt: skip
"""Page of the site -> its source in the root of the project."""
SETTINGS_HEAD = """# Settings

Every key that a recipe can have. `loam settings KEY` prints the same. A recipe gives only what differs from the default; "-" marks a key
without a default. `--set KEY=VALUE` changes a key for one run.
"""
RULES_HEAD = """## The rules of the filter

The filter applies the rules in this order. The first rule that a document breaks gives the reason. A rule is one entry of a list in
`stages/corpus/filter/rules.py`. The settings, their help, the decisions, `loam what-if` and this table are made from that list. "-" marks a
rule without a setting.
"""
VIEWS_HEAD = """# Views

What `loam lineage sql` shows of the side tables of artifacts. Every view also has `artifact_id`, `node` and `file`.
"""

Row = tuple[str, ...]


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Returns the files of the site with the pages that are no files of docs/. mkdocs calls it."""
    from mkdocs.structure.files import File

    for page in files.documentation_pages():
        page.content_string = moved(page.content_string, f"docs/{page.src_uri}", page.src_uri)
    pages = {name: moved((PROJECT / source).read_text(encoding="utf-8"), source, name) for name, source in BESIDE.items()}
    pages |= {"reference/settings.md": settings(), "reference/views.md": views(), "reference/commands.md": commands()}
    for name, text in pages.items():
        files.append(File.generated(config, name, content=text))
    return files


def moved(text: str, source: str, page: str) -> str:
    """Returns the text of a document with the links to other documents as they are in the site.

    Args:
        text: The document.
        source: Its path in the project.
        page: Its path in the site.

    >>> moved("[a](docs/own_data.md)", "README.md", "index.md"), moved("[b](../../QUERIES.md)", "docs/design/dag.md", "design/dag.md")
    ('[a](own_data.md)', '[b](../queries.md)')
    """
    pages = {source: name for name, source in BESIDE.items()}

    def link(found: re.Match[str]) -> str:
        target = posixpath.normpath(posixpath.join(posixpath.dirname(source), found[1]))
        return f"]({posixpath.relpath(pages.get(target, target.removeprefix('docs/')), posixpath.dirname(page) or '.')})"

    return re.sub(r"\]\(([^)\s:#]+)\)", link, text)


def stages() -> list[Row]:
    """Returns one row per stage, in DAG order."""
    kinds = {node.name: stage_of(node).output for node in pipeline()}
    rows: list[Row] = [("stage", "reads", "writes", "what it does")]
    for name, node in {node.stage_name: node for node in pipeline()}.items():
        stage = stage_of(node)
        reads = "everything" if stage.sections else ", ".join(dict.fromkeys(kinds[read] for read in node.inputs.values())) or "nothing"
        rows.append((f"`{name}`", reads, stage.output, stage.does))
    return rows


def rules() -> list[Row]:
    """Returns one row per rule of the filter, in order."""
    rows: list[Row] = [("reason", "setting", "default", "unit", "signal", "source")]
    for rule in RULES:
        given = rule.threshold
        setting, default = (f"`{rule.setting}`", f"`{_yaml(given.default)}`") if given else ("-", "-")
        unit, source = (given.unit, given.source) if given else (rule.signal.unit, rule.signal.source)
        rows.append((f"`{rule.full_reason}`", setting, default, unit, f"`{rule.signal.name}`", source))
    return rows


def settings() -> str:
    """Returns the page of settings: of every section of a recipe its keys; then the rules of the filter."""
    parts = [SETTINGS_HEAD]
    for section in recipe_settings({node.name: stage_of(node) for node in pipeline()}):
        alike = f" The same keys: {', '.join(f'`{node}`' for node in section.alike)}." if section.alike else ""
        rows: list[Row] = [("key", "default", "type", "meaning")]
        rows += [(f"`{one.name}`", f"`{one.default}`" if one.default else "-", one.type, one.about) for one in section.settings]
        escaped = [tuple(cell.replace("|", "\\|") for cell in row) for row in rows]
        about = section.about.rstrip(".")
        parts.append(f"## {section.name}\n\n{about[0].upper()}{about[1:]}.{alike}\n")
        parts.append(table(escaped) if section.settings else "It has no settings.\n")
    return "\n".join([*parts, RULES_HEAD, table(rules())])


def views() -> str:
    """Returns the page of SQL views: the tables behind each, and their columns; a table that several stages declare alike stands once."""
    found: dict[str, dict[str, list[str]]] = {}
    for stage in {node.stage_name: stage_of(node) for node in pipeline()}.values():
        for side in stage.tables:
            lines = [f"A row is {side.about}.", "", "| column | type | |", "|---|---|---|"]
            lines += [f"| `{name}` | {column.type} | {column.about} |" for name, column in side.columns.items()]
            text = "\n".join(lines) + (f"\n\nFurther columns: {side.more}." if side.more else "")
            found.setdefault(side.view, {}).setdefault(text, []).append(stage.name)
    parts = [VIEWS_HEAD]
    for view, tables in sorted(found.items()):
        parts.append(f"## {view}\n")
        parts += [f"Of {', '.join(f'`{name}`' for name in names)}. {text}\n" for text, names in tables.items()]
    return "\n".join(parts)


def commands() -> str:
    """Returns the page of commands: the help of each, as cyclopts writes it."""
    from flows.cli import command_line

    return f"# Commands\n\n{command_line().generate_docs(output_format='markdown', recursive=True, heading_level=2)}\n"


def table(rows: Sequence[Row]) -> str:
    """Returns a table in Markdown; the first row is its header."""
    lines = [f"| {' | '.join(row)} |" for row in rows]
    return "\n".join([lines[0], "|---" * len(rows[0]) + "|", *lines[1:]]) + "\n"


def rewritten(text: str) -> str:
    """Returns the page of stages with its table made anew.

    Raises:
        ValueError: The page has not the two lines between which the table stands.
    """
    head, found, rest = text.partition(BEGIN)
    _, closed, tail = rest.partition(END)
    if not found or not closed:
        raise ValueError(f"docs/stages.md has no place for its table: it needs the lines {BEGIN.strip()} and {END.strip()}")
    return head + BEGIN + table(stages()) + END + tail


def _yaml(value: object) -> str:
    """Returns a default as a recipe would say it."""
    if value is None or isinstance(value, bool):
        return {None: "null", True: "true", False: "false"}[value]
    return str(list(value)) if isinstance(value, tuple) else re.sub(r"\s+", " ", str(value))


def main() -> int:
    """Returns the exit code, after rewriting the table of stages."""
    STAGES.write_text(rewritten(STAGES.read_text(encoding="utf-8")), encoding="utf-8")
    return 0


if __name__ == "__main__":
    sys.exit(main())
