"""The import rule, read from the sources.

core, text and lm never import each other; a stage imports core, text and lm, never another stage; queries imports core, text and
lm, never a stage; only flows imports prefect; dashboards imports no torch; heavy libraries are imported inside functions.
A leaf imports nothing of the project, and all may import it.
"""

from __future__ import annotations

import ast
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from flows.pipeline import pipeline
from stages.core.contract.source_code import PROJECT, imports_of, reached

HEAVY = {
    "torch", "deepspeed", "lm_eval", "datatrove", "transformers", "tokenizers", "pyarrow", "duckdb", "spacy", "numba",
    "datasketch", "datasets", "prefect", "fastwarc", "resiliparse", "warcio", "httpx", "uvicorn", "fastapi", "jinja2", "rich",
    "safetensors", "tiktoken", "scipy", "pandas", "yaml", "fsspec",
}  # fmt: skip
STAGES = {node.stage_name for node in pipeline()}


def modules() -> list[str]:
    files = [p for top in ("flows", "stages", "dashboards") for p in (PROJECT / top).rglob("*.py")]
    return sorted(".".join(p.relative_to(PROJECT).with_suffix("").parts) for p in files if p.name != "__init__.py")


LEAVES: dict[str, set[str]] = {"stages.settings": {"pydantic", "pydantic_core"}, "stages.processes": set()}
"""What every room may import, and the libraries that each may import beside the standard library's."""

BODIES = {
    "stages.canary_files",
    "stages.continued_training",
    "stages.held_out_quotes",
    "stages.encoded_chats",
    "stages.enough_data",
    "stages.mixture_sequences",
    "stages.trained_artifact",
    "stages.training",
    "stages.training_replay",
    "stages.training_texts",
    "stages.signatures",
    "stages.dedup_rulings",
    "stages.warc_listing",
    "stages.given_documents",
    "stages.unique_ids",
    "stages.line_counts",
    "stages.word_tables",
    "stages.vocabulary_report",
    "stages.generations",
    "stages.task_scores",
}
"""What several stages have in common where core and lm meet; no stage by itself."""


def room(module: str) -> str:
    parts = module.split(".")
    if parts[0] != "stages":
        return parts[0]
    if module in LEAVES:
        return "leaf"
    if module in BODIES:
        return "body"
    return parts[1] if len(parts) > 2 or parts[1] in ("core", "text", "lm", "queries") else "stage"


def foreign(tree: ast.AST) -> Iterator[str]:
    """Top-level names of the packages imported by statements directly in `tree`."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (a.name.split(".")[0] for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield node.module.split(".")[0]


def at_module_level(source: str) -> set[str]:
    found: set[str] = set()
    queue: list[ast.AST] = list(ast.parse(source).body)
    while queue:
        node = queue.pop()
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.dump(node.test):
            queue.extend(node.orelse)
            continue
        if isinstance(node, ast.Import | ast.ImportFrom):
            found.update(foreign(ast.Module([node], [])))
        else:
            queue.extend(ast.iter_child_nodes(node))
    return found


def source(module: str) -> str:
    return PROJECT.joinpath(*module.split(".")).with_suffix(".py").read_text(encoding="utf-8")


ALLOWED = {
    "leaf": set(),
    "core": {"core", "leaf"},
    "text": {"text", "leaf"},
    "lm": {"lm", "leaf"},
    "body": {"core", "text", "lm", "leaf", "body"},
    "stage": {"core", "text", "lm", "leaf", "body"},
    "queries": {"core", "text", "lm", "queries", "leaf"},
    "flows": {"core", "queries", "flows", "dashboards", "leaf"},
    "dashboards": {"core", "text", "queries", "dashboards", "leaf"},
}


@pytest.mark.parametrize("module", modules())
def test_a_module_imports_only_what_its_room_may(module: str) -> None:
    own = room(module)
    for name in imports_of(module):
        if name.count(".") == 0 or name in ("stages.core", "stages.text", "stages.lm", "stages.queries"):
            continue
        assert room(name) in ALLOWED[own] or name == module, f"{module} imports {name}: {own} may import {sorted(ALLOWED[own])}"


@pytest.mark.parametrize("module", LEAVES)
def test_a_leaf_imports_only_its_libraries(module: str) -> None:
    others = set(foreign(ast.parse(source(module)))) - sys.stdlib_module_names
    assert others <= LEAVES[module], f"{module} imports {sorted(others - LEAVES[module])}"


@pytest.mark.parametrize("module", modules())
def test_heavy_libraries_are_imported_inside_functions(module: str) -> None:
    allowed = {"torch", "safetensors"} if room(module) == "lm" else set()
    if module in ("flows.pretrain_flow", "flows.stage_flow", "flows.task", "dashboards.app"):
        allowed |= {"prefect", "fastapi"}  # imported only when they run: flows/cli imports these modules inside functions
    if module == "stages.core.contract.plain_yaml":
        allowed |= {"yaml"}  # the one reader of YAML, itself imported inside functions
    assert at_module_level(source(module)) & HEAVY <= allowed


@pytest.mark.parametrize("module", modules())
def test_only_flows_imports_prefect_and_the_dashboard_no_torch(module: str) -> None:
    names = set(foreign(ast.parse(source(module))))
    assert "prefect" not in names or room(module) == "flows"
    assert "torch" not in names or room(module) in ("lm", "stage", "queries")
    index = (
        "stages.core.index.database",
        "stages.core.index.limited_query",
        "stages.core.index.sql_guard",
        "stages.core.index.views",
    )  # the first opens it, the others work on its connections
    assert "duckdb" not in names or module in index, "stages.core.index.database is the only code that opens the index"


NETWORK = {"socket", "socketserver", "ssl", "http", "urllib.request", "asyncio", "httpx", "requests", "fastapi", "uvicorn"}
"""Modules that open connections or serve them."""


def network(tree: ast.AST) -> set[str]:
    """Returns the imports of a module, at any depth, that are in NETWORK or below one of them."""
    names: set[str] = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            names.update((node.module, *(f"{node.module}.{alias.name}" for alias in node.names)))
    return {name for name in names if any(name == one or name.startswith(f"{one}.") for one in NETWORK)}


def test_only_the_site_of_text_has_network() -> None:
    found = {module for module in modules() if room(module) == "text" and network(ast.parse(source(module)))}
    assert found == {"stages.text.site.crawler", "stages.text.site.doc_site"}


@pytest.mark.parametrize(
    "line",
    ["import socket", "from urllib import request", "import urllib.request as r", "from http.server import HTTPServer", "import httpx"],
)
def test_an_import_of_the_network_is_seen_at_any_depth(line: str) -> None:
    assert network(ast.parse(f"def f():\n    {line}"))
    assert not network(ast.parse("from urllib.parse import urlsplit\nimport urllib.robotparser"))


def test_the_modules_of_the_site_do_not_import_each_other_in_a_circle() -> None:
    reads = {module: {name for name in imports_of(module) if name.startswith("stages.text.site.")} - {module} for module in modules()}
    site = {module: others for module, others in reads.items() if module.startswith("stages.text.site.")}
    while site:
        free = {module for module, others in site.items() if not others & site.keys()}
        assert free, f"a circle of imports: {sorted(site)}"
        site = {module: others for module, others in site.items() if module not in free}


def test_ranks_import_neither_prefect_nor_core() -> None:
    for module in reached("stages.lm.ranks.rank"):
        assert not module.startswith("stages.core."), module
        assert (
            "prefect" not in set(foreign(ast.parse(source(module))))
            if Path(PROJECT, *module.split(".")).with_suffix(".py").is_file()
            else True
        )


def test_the_command_line_is_light() -> None:
    import subprocess

    code = "import sys, flows.cli; flows.cli.main({words}); print(sorted({{m.split('.')[0] for m in sys.modules}}))"
    for words, drawn in (([], set()), (["--help"], {"rich"}), (["plan", "--help"], {"rich"})):  # a help page is drawn by rich
        run = [sys.executable, "-c", code.format(words=words)]
        done = subprocess.run(run, capture_output=True, text=True, check=True, cwd=PROJECT)
        loaded = set(ast.literal_eval(done.stdout.splitlines()[-1]))
        assert not loaded & (HEAVY | {"pydantic"}) - drawn, loaded & HEAVY


def test_stage_modules_are_light() -> None:
    import subprocess

    code = "import sys; from flows.pipeline import config_classes; config_classes(); print(sorted({m.split('.')[0] for m in sys.modules}))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=PROJECT)
    assert not set(ast.literal_eval(done.stdout)) & HEAVY
