"""A takedown names all that holds a page, all that holds a copy of it, and the copies with their hosts."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from stages.core.contract.errors import StageError
from stages.queries.affected import affected
from tests.conftest import answered, loam
from tests.queries.two_runs import FOREIGN, MIRROR, SITE, make_two_runs


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    home = tmp_path_factory.mktemp("affected") / "home"
    make_two_runs(home)
    return home


def by_name(home: Path, pattern: str, *columns: str) -> dict[str, tuple[Any, ...]]:
    """alias -> some columns. An artifact's id is as its number."""
    alias = {path.parent.name: json.loads(path.read_text())["alias"] for path in home.glob("artifacts/*/*/manifest.json")}
    return {alias[row["artifact"].split("/")[1]]: tuple(row[c] for c in columns) for row in affected(home, pattern).artifacts}


def test_a_changed_document_is_held(home: Path) -> None:
    """Page 1 is changed by the filter, which still holds it."""
    found = by_name(home, f"{SITE}/1", "relation", "documents")
    assert found["filter-1"] == ("holds", 1) and found["dedup-1"] == ("holds", 1)
    assert found["crawl-1"] == ("names the files", 1) and found["mix-1"] == ("holds", 1) and found["pretrain-1"] == ("made from", None)
    assert set(found) == {f"{node}-1" for node in ("crawl", "extract", "filter", "dedup", "decontaminate", "encode")} | {
        "mix-1", "mix-2", "pretrain-1", "pretrain-2"
    }  # fmt: skip


def test_only_trained_rows_are_steps(home: Path) -> None:
    """Page 2 is row 0 of the validation part, and row 0 of the training part is another page."""
    found = by_name(home, f"{SITE}/2", "relation", "steps")
    assert found["mix-1"] == ("holds", None) and found["pretrain-1"] == ("made from", None)
    assert by_name(home, f"{SITE}/0", "steps")["pretrain-1"] == (1,)


def test_steps_follow_the_mixture_of_their_own_checkpoint(home: Path) -> None:
    assert {name: steps for name, (steps,) in by_name(home, f"{SITE}/%", "steps").items() if steps} == {"pretrain-1": 3, "pretrain-2": 3}
    found = by_name(home, f"{FOREIGN}/%", "relation", "steps")
    assert found["mix-3"] == ("holds", None) and not any(name.startswith("pretrain") for name in found)


def test_kept_copies_of_dropped_pages_are_named_with_their_hosts(home: Path) -> None:
    """Page 3 went as an exact copy of page 4 of another host: what holds page 4 holds it."""
    found = affected(home, f"{SITE}/3")
    (copy,) = found.copies
    assert copy["relation"] == "kept copy" and copy["url"] == f"{MIRROR}/4" and copy["host"] == "mirror" and copy["of"] == f"{SITE}/3"
    assert (copy["kind"], copy["jaccard"]) == ("exact", 1.0) and copy["artifact"].startswith("dedup/")
    rows = by_name(home, f"{SITE}/3", "relation", "documents", "copies", "steps")
    assert rows["filter-1"] == ("holds", 1, 1, None) and rows["dedup-1"] == ("holds a copy", None, 1, None)
    assert rows["crawl-1"] == ("names the files", 1, 1, None)  # the copy was read from it too
    assert rows["mix-1"] == ("holds a copy", None, 1, None) and rows["pretrain-1"] == ("made from", None, None, 1)


def test_dropped_copies_would_come_in_place_of_a_page_and_are_named(home: Path) -> None:
    (copy,) = affected(home, f"{SITE}/0").copies
    assert (copy["relation"], copy["url"], copy["kind"], copy["jaccard"]) == ("dropped copy", f"{MIRROR}/5", "near", 0.9)
    assert [row["url"] for row in affected(home, f"{SITE}/%").copies] == [f"{MIRROR}/4", f"{MIRROR}/5"]
    assert affected(home, "http://%").copies == []  # both ends match
    assert affected(home, f"{SITE}/1").copies == []


def test_a_pattern_that_matches_nothing_is_an_error(home: Path) -> None:
    with pytest.raises(StageError, match="No recorded document has a URL like http://nowhere/%") as caught:
        affected(home, "http://nowhere/%")
    assert "Write % for any characters" in str(caught.value)
    assert loam("lineage", "affected", "--url-pattern", "http://nowhere/%", home=home, check=False).returncode == 1


def test_the_command_says_how_to_leave_pages_and_copies_out(home: Path) -> None:
    said = loam("lineage", "affected", "--url-pattern", f"{SITE}/3", home=home).stdout
    assert "1 copies under other URLs, on 1 hosts (mirror)" in said and f"{MIRROR}/4" in said
    assert f"--set 'dedup.remove_copies_of=[\"{SITE}/3\"]'" in said and f"--set 'filter.url.remove=[\"{SITE}/3\"]'" in said
    found = answered(loam("lineage", "affected", "--url-pattern", f"{SITE}/1", "--json", home=home).stdout)
    assert found["copies"] == [] and len(found["artifacts"]) == 10
    assert "No copy under another URL is known" in loam("lineage", "affected", "--url-pattern", f"{SITE}/1", home=home).stdout
