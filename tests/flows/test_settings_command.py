"""`loam settings` prints every key of a recipe with its default, type and meaning; the page of settings holds the same."""

from __future__ import annotations

import pytest

from docs.reference import settings
from flows.cli import main
from tests.conftest import answered


def test_a_key_is_printed_with_default_type_and_meaning(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "pretrain.min_lr_frac"]) == 0
    head, names, row = capsys.readouterr().out.splitlines()
    assert head.startswith("pretrain: ") and names.split() == ["setting", "default", "type", "about"]
    assert row.startswith("pretrain.min_lr_frac") and " 0.1 " in row and "number, at least 0, at most 1" in row and "Chinchilla" in row


def test_without_a_name_every_section_is_printed(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings"]) == 0
    text = capsys.readouterr().out
    places = [text.index(line) for line in ("recipe: ", "\nruntime: ", "\ndedup: ", "\nencode: ", "\nevaluate@base (also evaluate@sft, ")]
    assert places == sorted(places)
    row = next(line for line in text.splitlines() if line.startswith("pretrain.learning_rate"))
    assert row.split()[1] == "-"  # a recipe must give it


def test_the_settings_as_json(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "evaluate@sft.chat", "--json"]) == 0
    (section,) = answered(capsys.readouterr().out, "settings")["sections"]
    (chat,) = section.pop("settings")
    assert section == {
        "name": "evaluate@sft",
        "alike": [],
        "about": "benchmark items with lm-eval's metrics, lm-eval's own tasks, bits per byte, baselines, texts to read",
    }
    assert (chat["name"], chat["default"], chat["type"]) == ("evaluate@sft.chat", "false", "true or false") and chat["about"]


def test_an_unknown_key_is_refused(capsys: pytest.CaptureFixture[str]) -> None:
    assert main(["settings", "dedup.treshold"]) == 2
    assert "There is no setting 'dedup.treshold'.\n  to do: Did you mean dedup.threshold?" in capsys.readouterr().err


def test_the_page_has_every_key() -> None:
    text = settings()
    for line in ("| `dedup.threshold` | `0.8` |", "| `pretrain.learning_rate` | - |", "| `runtime.gpus` | `0` |", "| `seed` | `0` |"):
        assert f"\n{line}" in text
    assert "The same keys: `evaluate@sft`, `evaluate@dpo`." in text
