"""Broken Unicode is mended, sound text is not touched."""

from __future__ import annotations

from stages.corpus.filter.filter_sections import RepairRules
from stages.corpus.filter.judge import make_repair, repair_text


def repaired(text: str, **given: bool) -> str:
    return repair_text(text, make_repair(RepairRules.model_validate(given)))


def test_mends_what_was_decoded_wrongly() -> None:
    assert repaired("CÃ©dric and Ãœberblick") == "Cédric and Überblick"
    assert repaired("a\x00b\x1b[31mred") == "abred"


def test_leaves_sound_text_alone() -> None:
    for text in ("plain\tASCII\n", "“curly” ﬁ ｆｕｌｌ", "日本語。Привет", "&lt;b&gt; &amp; é"):
        assert repaired(text) == text


def test_settings_reach_ftfy() -> None:
    assert repaired("&lt;b&gt;", unescape_html=True) == "<b>"
    assert repaired("“a”", uncurl_quotes=True) == '"a"' and repaired("CÃ©dric", fix_encoding=False) == "CÃ©dric"


def test_defaults_are_datatroves_but_for_entities() -> None:
    from datatrove.pipeline.formatters import FTFYFormatter

    ours, theirs = make_repair(RepairRules()), FTFYFormatter().config
    assert ours._replace(unescape_html="auto", normalization=None) == theirs
