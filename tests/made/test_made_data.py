"""The made data: the same bytes each time, the layout that real data has, and as many languages and charsets as are promised."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from tests.made import warc_files
from tests.made.prose import LANGUAGES, parts_of, sentences
from tests.made.real import VARIABLE, real_folder
from tests.made.variants import MAKERS, Data
from tests.made.web_pages import STATED


def sums(folder: Path) -> dict[str, str]:
    return {str(p.relative_to(folder)): hashlib.sha256(p.read_bytes()).hexdigest() for p in folder.rglob("*") if p.is_file()}


def test_the_same_bytes_each_time(made: Data, tmp_path: Path) -> None:
    again = Data("made", tmp_path)
    for name in MAKERS:
        if name != "crawl":
            assert sums(again.part(name)) == sums(made.part(name)), name
    for write in (warc_files.write_broken, warc_files.write_others, warc_files.write_quirks):
        write(tmp_path)
    first = sums(made.part("crawl"))
    assert {name: digest for name, digest in sums(tmp_path).items() if name in first}.items() <= first.items()


def test_languages_and_charsets() -> None:
    charsets = {charset.lower() for stated in STATED.values() for charset, _ in stated}
    assert {"windows-1251", "shift_jis", "euc-jp", "gb18030", "iso-8859-1", "iso-8859-15", "euc-kr"} <= charsets
    assert len(LANGUAGES) == 10 and {where for stated in STATED.values() for _, where in stated} == {"header", "meta", "xml", ""}
    for language in LANGUAGES:
        lists = parts_of(language)
        assert all(len(set(parts)) == len(parts) >= 8 for parts in lists), language
        few = list(sentences(language, 8, "test"))
        assert len(set(few)) == 8 and all(sum(part in line for line in few) <= 1 for part in lists[-1]), language


def test_the_folder_of_real_data(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv(VARIABLE, str(tmp_path))
    assert real_folder() == tmp_path
    monkeypatch.delenv(VARIABLE)
    assert real_folder().is_absolute() and real_folder().name == "corpora"
