"""A rule of the filter is one entry of one list: what is made from the list, and a toy rule added to a copy of the project."""

from __future__ import annotations

import json
import os
import re
import subprocess
import sys
from dataclasses import replace
from typing import Any

import pytest

from docs.reference import rewritten
from stages.corpus.filter import stored_signals
from stages.corpus.filter.rules import DOCUMENT_RULES, RULES, columns, signals
from stages.corpus.filter.stage import FilterConfig, FilterSettings, with_rules
from stages.record.tables.parquet import schema
from tests.conftest import PROJECT, copy_project

SETTINGS = FilterConfig().model_dump(mode="json")
PROSE = """The old house of the baker was painted by the men that live near the river.
To be honest, nobody could have known how long the winter would last with so little wood.
Children of the village went to school on foot and came back with stories and snow.
A letter had been lying on the table since Monday, unread and covered with flour.
She asked whether that road might lead to the harbour where big ships are built.
When the doctor arrived he brought apples, two newspapers and a very small dog."""

TOY = """
    Rule("gopher_quality", "too_loud", Signal(
        "shouts_per_char", "float64", "marks per character", "exclamation marks, by characters", "a test",
        measure=lambda text: text.count("!") / len(text) if text else None,
    ), above, Threshold(
        "max_shouts", Ratio | None, 0.02, "marks per character", "Most exclamation marks per character.", "a test",
    )),
"""
"""The one entry that the toy rule is."""

USE = """
import json, sys
from pathlib import Path
from stages.questions.what_if import what_if
from stages.record.index import database as lineage
from stages.record.contract.errors import RecipeError
from stages.record.tables.parquet import read_rows
from stages.corpus.filter.stage import STAGE
from tests.conftest import run_stage
from docs.reference import rules
from tests.stages.made import documents


def main(home, texts):
    found = run_stage(STAGE, {"url": {"enabled": False}}, {"documents": documents(home / "made", [texts])}, home)
    lineage.update(home)
    field = STAGE.config.model_fields["gopher_quality"].annotation.model_fields["max_shouts"]
    try:
        what_if(home, f"filter/{found.path.name}", STAGE, ["filter.gopher_quality.max_shouts=-1"])
    except RecipeError as error:
        refused = str(error)
    return {
        "default": STAGE.config().gopher_quality.max_shouts, "help": field.description, "refused": refused,
        "decisions": [[row["reason"], row["shouts_per_char"]] for row in read_rows(found.path / "decisions" / "00000.parquet")],
        "record_counts": found.manifest["record_counts"]["dropped"],
        "what_if": what_if(home, f"filter/{found.path.name}", STAGE, ["filter.gopher_quality.max_shouts=0.5"]),
        "readme": [row for row in rules() if "max_shouts" in row[1]],
    }


if __name__ == "__main__":
    print(json.dumps(main(Path(sys.argv[1]), json.loads(sys.argv[2]))))
"""


@pytest.fixture(scope="module")
def toy(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What a copy of the project says and does after one entry was added to one file."""
    tree = tmp_path_factory.mktemp("tree")
    copy_project(("stages", "flows", "dashboards", "tests", "docs"), tree)
    file = tree / "stages" / "corpus" / "filter" / "rules.py"
    before, last, after = file.read_text().partition('    Rule("", "no_words"')
    assert last
    file.write_text(before + TOY + last + after)
    (tree / "use.py").write_text(USE)
    texts = json.dumps([PROSE, PROSE.replace(".", "!!"), PROSE.replace(".\n", "!\n")])
    done = subprocess.run(
        [sys.executable, "use.py", str(tree / "home"), texts], cwd=tree, env={**os.environ, "PYTHONPATH": str(tree)}, capture_output=True,
        text=True, check=False, timeout=240,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def test_a_new_rule_is_a_setting_with_default_limits_and_help(toy: dict[str, Any]) -> None:
    assert toy["default"] == 0.02
    assert toy["help"] == "Most exclamation marks per character. Unit: marks per character. Source: a test."
    assert "gopher_quality.max_shouts: must be at least 0 (marks per character), not -1." in toy["refused"]


def test_a_new_rule_and_its_signal_are_in_the_decisions(toy: dict[str, Any]) -> None:
    loud = PROSE.replace(".", "!!")
    less = PROSE.replace(".\n", "!\n")
    assert toy["decisions"] == [[None, 0.0], ["gopher_quality.too_loud", 12 / len(loud)], [None, 5 / len(less)]]
    assert toy["record_counts"] == {"gopher_quality.too_loud": 1}


def test_a_new_rule_is_in_the_answer_of_what_if(toy: dict[str, Any]) -> None:
    counts = {row["verdict"]: (row["today"], row["then"]) for row in toy["what_if"]}
    assert counts == {"kept": (2, 3), "dropped: gopher_quality.too_loud": (1, 0)}


def test_a_new_rule_is_a_row_of_the_table(toy: dict[str, Any]) -> None:
    row = ["`gopher_quality.too_loud`", "`gopher_quality.max_shouts`", "`0.02`", "marks per character", "`shouts_per_char`", "a test"]
    assert toy["readme"] == [row]


def test_a_readme_without_a_place_for_a_table_is_refused() -> None:
    text = (PROJECT / "docs/stages.md").read_text(encoding="utf-8")
    with pytest.raises(ValueError, match="docs/stages.md has no place for its table"):
        rewritten(text.replace("<!-- stages: end -->", ""))


def test_a_reason_is_spelled_in_snake_case_and_has_one_rule() -> None:
    reasons = [rule.full_reason.format(n=2) for rule in RULES]
    assert all(re.fullmatch(r"([a-z0-9_]+\.)?[a-z][a-z0-9_]*", reason) for reason in reasons)
    assert [reason for reason in reasons if reasons.count(reason) > 1] == ["c4.lorem_ipsum"] * 2, "before and behind a curly bracket"


def test_every_threshold_is_a_setting_with_unit_and_source() -> None:
    for rule in RULES:
        if rule.threshold is None:
            continue
        here: Any = SETTINGS
        for part in rule.setting.split("."):
            here = here[part]
        assert rule.threshold.unit and rule.threshold.source and rule.threshold.help.endswith((".", ")."))
        assert rule.setting in DOCUMENT_RULES or rule.signal.per == rule.setting


def test_every_signal_is_declared_once_with_a_type_that_tables_know() -> None:
    declared = [value for value in vars(stored_signals).values() if isinstance(value, stored_signals.Signal)]
    names = [signal.name for signal in declared]
    assert len(set(names)) == len(names)
    assert {*declared} - {stored_signals.URL} == {*stored_signals.STORED}, "a declared signal is stored"
    assert {rule.signal for rule in RULES} <= {*signals(), stored_signals.URL}, "a rule looks at what is stored"
    assert all(signal.unit and signal.meaning and signal.source for signal in declared)
    assert schema(**columns(SETTINGS)).names == list(columns(SETTINGS))


def test_a_rule_of_an_unknown_section_is_refused() -> None:
    with pytest.raises(ValueError, match="a rule names the section 'shouting'; the filter's sections are classes in filter_sections.py"):
        with_rules(FilterSettings, [*RULES, replace(RULES[-1], section="shouting")])


def test_the_help_names_unit_and_source() -> None:
    quality = FilterConfig.model_fields["gopher_quality"].annotation
    assert quality is not None
    described = quality.model_json_schema()["properties"]["min_doc_words"]
    assert described["description"] == "Fewest words. Unit: words. Source: Rae et al. 2021, section A.1.1." and described["default"] == 50
