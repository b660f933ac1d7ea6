"""The command line: help, exit codes, messages. What it prints on a real run is in test_tiny_road.py."""

from __future__ import annotations

import json
import sys
from pathlib import Path

import pytest

from flows.cli import main
from flows.opened_recipe import split_settings
from flows.pipeline import road
from flows.terminal import books_text, print_table, progress_text, size_text
from stages.core.contract.errors import RecipeError
from tests.conftest import loam


def test_every_command_explains_itself(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--help"])
    text = capsys.readouterr().out
    assert ended.value.code == 0
    for command in ("run", "plan", "stage", "lineage", "trace", "report", "compare", "what-if", "dashboard", "serve"):
        assert f"\n    {command} " in text
        with pytest.raises(SystemExit) as ended:
            main([command, "--help"])
        assert ended.value.code == 0


@pytest.mark.parametrize(
    ("words", "what"),
    [
        (["run", "nano"], "There is no recipe 'nano'"),
        (["run", "tiny", "--set", "dedup.treshold=0.7"], "Did you mean 'threshold'?"),
        (["run", "tiny", "--set", "pretrain.budget=many"], "budget"),
        (["run", "tiny", "--until", "dedpu"], "There is no node 'dedpu'"),
        (["stage", "dedpu", "tiny"], "There is no node 'dedpu'"),
        (["run", "tiny", "--from", "dedpu"], "There is no node 'dedpu'"),
        (["run", "tiny", "--from", "dedup"], "--from dedup takes what stands before it as it is, but benchmarks, conversations"),
        (["run", "tiny", "--from", "dedup", "--until", "filter"], "--from dedup: the run stops before this node"),
        (["run", "tiny", "--as", "dedup-3"], "'dedup-3' cannot be a name"),
        (["run", "small", "--set", "crawl.warcs=[nowhere/*.warc.gz]"], "pattern matches no file: nowhere/*.warc.gz"),
        (["plan", "tiny", "--set", "filter.quality.min_score=0.5"], "There is no classifier to score documents with"),
        (
            ["plan", "tiny", "--set", "filter.url.remove=[a, b]", "--set", "dedup.remove_copies_of=[b]"],
            "The filter takes b out before dedup",
        ),
        (["what-if", "filter", "--set", "filter.c4.enabled=false"], "This home has no lineage yet"),
        (["lineage", "runs"], "This home has no lineage yet"),
        (["lineage", "reindex"], "This home has no artifacts"),
        (["lineage", "up", "pretrain"], "This home has no lineage yet"),
        (["trace", "--step", "3"], "This home has no lineage yet"),
        (["report"], "This home has no lineage yet"),
    ],
)
def test_a_mistake_is_one_message_and_exit_code_2(tmp_path: Path, capsys: pytest.CaptureFixture[str], words: list[str], what: str) -> None:
    assert main([*words, "--home", str(tmp_path / "home")]) == 2
    printed = capsys.readouterr().err
    assert what in printed and printed.startswith("loam: ") and "Traceback" not in printed
    assert not list((tmp_path / "home").glob("artifacts/*")) if (tmp_path / "home").exists() else True


def test_the_version(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["--version"])
    assert ended.value.code == 0 and capsys.readouterr().out.startswith("loam 0.")


def test_usage_errors_are_exit_code_2(capsys: pytest.CaptureFixture[str]) -> None:
    for words in ([], ["fly"], ["trace"], ["run"]):
        with pytest.raises(SystemExit) as ended:
            main(words)
        assert ended.value.code == 2
    capsys.readouterr()


def test_the_plan_of_a_fresh_home_names_every_node(tmp_path: Path) -> None:
    done = loam("plan", "tiny", "--json", home=tmp_path)
    plan = json.loads(done.stdout)
    states = {s["node"]: s["state"] for s in plan["steps"]}
    assert states["crawl"] == "miss" and states["report"] == "waits" and list(states) == [node.name for node in road()]
    assert "parameters" in plan["size"] and plan["lacks"] == []


def test_the_full_recipe_plans_and_says_what_it_lacks(tmp_path: Path) -> None:
    done = loam("plan", "full", home=tmp_path, check=False)
    assert done.returncode == 2
    assert "pretraining FLOPs" in done.stdout and "GPU hours" in done.stdout
    run = loam("run", "full", home=tmp_path, check=False)
    assert run.returncode == 2 and "GPUs" in run.stderr and "Traceback" not in run.stderr
    assert not (tmp_path / "artifacts").exists()


def test_a_home_that_is_being_cleaned_is_refused_before_anything_starts(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    from stages.core.store.runs import hold_home

    with hold_home(tmp_path, alone=True):
        for words in (["run", "tiny"], ["stage", "crawl", "tiny"]):
            assert main([*words, "--home", str(tmp_path)]) == 1
            assert "This home is being cleaned" in capsys.readouterr().err
    assert not (tmp_path / "prefect").exists()


def test_debug_shows_the_traceback(tmp_path: Path) -> None:
    with pytest.raises(RecipeError, match="There is no recipe"):
        main(["run", "nano", "--debug", "--home", str(tmp_path)])


def test_a_closed_pipe_is_no_error(tmp_path: Path) -> None:
    import subprocess

    command = f"{sys.executable} -m flows.cli plan tiny --home {tmp_path} | head -1"
    done = subprocess.run(
        ["bash", "-o", "pipefail", "-c", command], capture_output=True, text=True, cwd=Path(__file__).parents[2], check=False
    )
    assert "Traceback" not in done.stderr and "Broken" not in done.stderr


def test_tables_align_and_numbers_stand_right(capsys: pytest.CaptureFixture[str]) -> None:
    print_table([{"name": "a", "n": 1234}, {"name": "long name", "n": 5}])
    assert capsys.readouterr().out.splitlines() == ["name           n", "a          1,234", "long name      5"]
    print_table([])
    assert capsys.readouterr().out == "(no rows)\n"


def test_texts_of_progress_books_and_sizes() -> None:
    assert progress_text({"done": 5, "total": 20, "unit": "pages", "note": "x"}) == "5 of 20 pages, 25 %, x"
    books = {"unit": "pages", "rows_in": 10, "kept": 5, "changed": 1, "dropped": {"a": 1, "b": 3}}
    assert books_text(books) == "10 pages in, 5 kept, 1 changed, 4 dropped (b 3, a 1)"
    assert [size_text(n) for n in (12, 12_000, 3_400_000_000)] == ["12 bytes", "12.0 KB", "3.4 GB"]


def test_settings_of_a_deployment_are_split_as_in_a_shell() -> None:
    assert split_settings("a.b=1 c.d='[x, y]'") == ["a.b=1", "c.d=[x, y]"]
    with pytest.raises(RecipeError, match="cannot be read"):
        split_settings("a='")
