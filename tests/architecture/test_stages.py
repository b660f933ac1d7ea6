"""Every stage is declared in full: documented settings, a test file, an entry in the recipes, a row in the README's table."""

from __future__ import annotations

import typing
from importlib import metadata
from pathlib import Path

import pytest
from pydantic import BaseModel

from flows.pipeline import config_classes, road, stage_of
from stages.core.contract.recipe import Runtime, load_recipe
from stages.core.contract.source_code import PROJECT
from stages.settings import OneOf

STAGES = sorted({node.stage_name for node in road()})


def models(config: type[BaseModel]) -> list[type[BaseModel]]:
    """A config class and every config class nested in its fields."""
    found, queue = [config], [f.annotation for f in config.model_fields.values()]
    queue += [
        kind for f in config.model_fields.values() for mark in f.metadata if isinstance(mark, OneOf) for kind in mark.classes.values()
    ]
    while queue:
        kind = queue.pop()
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            found += models(kind)
        queue.extend(typing.get_args(kind))
    return found


@pytest.mark.parametrize("name", STAGES)
def test_every_setting_has_a_docstring(name: str) -> None:
    config = stage_of(next(n for n in road() if n.stage_name == name)).config
    for model in models(config):
        assert model.__doc__, model
        for field, info in model.model_fields.items():
            assert info.description, f"{model.__name__}.{field} has no docstring"


def test_every_runtime_setting_has_a_docstring() -> None:
    assert all(info.description for info in Runtime.model_fields.values())


@pytest.mark.parametrize("name", STAGES)
def test_every_stage_has_a_test_and_a_declaration(name: str) -> None:
    assert (PROJECT / "tests" / "stages" / f"test_{name}.py").is_file()
    stage = stage_of(next(n for n in road() if n.stage_name == name))
    assert stage.run.__module__ == f"stages.{name}" and stage.run.__doc__
    for distribution in stage.distributions:
        metadata.version(distribution)


@pytest.mark.parametrize("recipe", ["tiny", "small", "full"])
def test_recipes_load_and_name_every_node_that_needs_settings(recipe: str) -> None:
    given = ["crawl.warcs=[crawl/a.warc.gz]"] if recipe == "small" else []  # its paths come from the command line
    loaded = load_recipe(recipe, config_classes(), given)
    assert set(loaded.sections) == {node.name for node in road()} and loaded.name == recipe and loaded.description
    text = (PROJECT / "configs" / f"{recipe}.yaml").read_text()
    for node in road():
        assert f"\n{node.name}:" in text or f'\n"{node.name}":' in text, f"{recipe}.yaml has no section {node.name}"


def test_the_stage_table_of_the_readme_is_current() -> None:
    text = (PROJECT / "README.md").read_text()
    for name in STAGES:
        stage = stage_of(next(n for n in road() if n.stage_name == name))
        reads = ", ".join(dict.fromkeys(stage.inputs.values())) or "nothing" if name != "report" else "everything"
        row = f"| `{name}` | {reads} | {stage.output} |"
        assert row in text, f"README's table needs the row: {row} …"


def test_every_dependency_is_pinned() -> None:
    import re
    import tomllib

    project = tomllib.loads((PROJECT / "pyproject.toml").read_text())["project"]
    pinned = {re.split("[=<>]", line)[0].lower().replace("_", "-") for line in (PROJECT / "constraints.txt").read_text().splitlines()}
    for need in [*project["dependencies"], *project["optional-dependencies"]["test"]]:
        assert re.split("[=<>]", need)[0].lower().replace("_", "-") in pinned, need


def test_files_are_not_too_long() -> None:
    for top in ("flows", "stages", "dashboards"):
        for path in Path(PROJECT, top).rglob("*.py"):
            assert len(path.read_text().splitlines()) <= 400, path


def test_no_broad_handlers_outside_the_runner() -> None:
    import ast

    for top in ("flows", "stages", "dashboards"):
        for path in Path(PROJECT, top).rglob("*.py"):
            for node in ast.walk(ast.parse(path.read_text())):
                if isinstance(node, ast.ExceptHandler):
                    name = ast.unparse(node.type) if node.type else "everything"
                    if name in ("everything", "Exception", "BaseException"):
                        assert any(isinstance(n, ast.Raise) for n in ast.walk(node)), f"{path}:{node.lineno} swallows {name}"
                        assert path.name == "walk.py", f"{path}:{node.lineno} catches {name}"
