"""Every setting of the filter, one after the other: what-if gives what a rerun gives, row by row, or refuses by name.

The oracle is the filter itself, run again with the setting: its own decisions beside those of the first run.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from stages.corpus.filter.stage import STAGE, FilterConfig
from stages.corpus.text.classifier import FastTextSettings, train
from stages.questions.what_if import what_if
from stages.record.contract.declaration import Artifact
from stages.record.contract.errors import RecipeError
from stages.record.index import database
from stages.record.tables.parquet import read_rows, schema, write_rows
from stages.record.tables.shards import run_in_pool
from tests.conftest import run_stage
from tests.stages.made import SPACE, artifact, uuid5

LINES = [
    "The old house of the baker was painted by the men that live near the river.",
    "To be honest, nobody could have known how long the winter would last with so little wood.",
    "Children of the village went to school on foot and came back with stories and snow.",
    "A letter had been lying on the table since Monday, unread and covered with flour.",
    "She asked whether that road might lead to the harbour where big ships are built.",
    "In spring their garden was full of bees, and every window stood open until dark.",
    "When the doctor arrived he brought apples, two newspapers and a very small dog.",
    "It is said that bread from this oven can be kept for several weeks without harm.",
]
PROSE = "\n".join(LINES)
COUNTS = [("two", "six"), ("five", "nine"), ("ten", "four"), ("all", "few"), ("some", "seven")]
OFFER = [line.lower().replace("the ", "that cheap ") for line in reversed(LINES)]
REPEATS = ["Yes, it is so.", "Not of that.", "To be sure."]
PLANTED: dict[str, tuple[str, dict[str, Any]]] = {
    "good": (PROSE, {}),
    "longer": ("\n".join(LINES + [line.replace("the", "our") for line in LINES]), {}),
    "brief": ("\n".join(LINES[:2]) + "\nHe left.", {}),
    "german": (PROSE, {"lang": "de"}),
    "less sure": (PROSE, {"lang_score": 0.85}),
    "to remove": (PROSE, {"url": "http://gone.test/page"}),
    "soft word": (PROSE, {"url": "http://fine.test/babes"}),
    "lorem": (PROSE + "\nThe words lorem ipsum stand for any text that is not there.", {}),
    "brace": (PROSE + "\nThe sign { begins a block of the code that is shown here.", {}),
    "lines twice": ("\n".join(LINES + REPEATS * 3), {}),
    "one line often": ("\n".join(LINES[:6] + LINES[:1] * 2), {}),
    "paragraphs twice": ("\n\n".join(LINES[:4] + REPEATS * 3), {}),
    "a paragraph often": ("\n\n".join([*LINES, PROSE.replace("\n", " ")[:300], PROSE.replace("\n", " ")[:300]]), {}),
    "two words often": ("\n".join(f"{line} The old man, the old man, the old man went." for line in LINES), {}),
    "five words often": ("\n".join(f"{line[:-1]} and so it was done by them." for line in LINES), {}),
    "long words": ("\n".join(line.replace("the", "notwithstanding") for line in LINES), {}),
    "hashes": ("\n".join(f"# # # {line}" for line in LINES), {}),
    "ellipses": (PROSE.replace(", ", " ... ").replace(" of ", " ... "), {}),
    "bullets": ("\n".join(f"- {line}" for line in LINES), {}),
    "lines that trail off": ("\n".join([*LINES[:4], *(line[:-1] + "..." for line in LINES[4:])]), {}),
    "numbers": ("\n".join(f"{line[:-1]} 1 2 3 4 5 6 7." for line in LINES), {}),
    "few stop words": ("\n".join(f"Every {n} cats saw {m} mice under our table last night, near an empty box." for n, m in COUNTS), {}),
    "an offer": ("\n".join(f"{line[:-1]} and the offer is free." for line in OFFER), {}),
    "no full stops": ("\n".join(line[:-1] for line in LINES[:7]) + "\n" + LINES[7], {}),
    "short lines": (PROSE.replace(" and ", " and\n").replace(", ", ",\n").replace(" the ", "\nthe "), {}),
    "a list": ("\n".join(f"{word}." for word in PROSE.replace(".", "").split()), {}),
}  # fmt: skip

CHANGES: dict[str, Any] = {
    "url.remove": ["http://gone.test/%"], "url.soft_words": 1, "languages": ["en", "de"], "min_lang_score": 0.9,
    "gopher_repetition.enabled": False, "gopher_repetition.dup_line_frac": 0.5, "gopher_repetition.dup_para_frac": 0.5,
    "gopher_repetition.dup_line_char_frac": 0.5, "gopher_repetition.dup_para_char_frac": None,
    "gopher_repetition.top_n_grams": {2: 0.5}, "gopher_repetition.dup_n_grams": {10: 0.5},
    "gopher_quality.enabled": False, "gopher_quality.min_doc_words": 20, "gopher_quality.max_doc_words": 130,
    "gopher_quality.min_avg_word_length": 4.3, "gopher_quality.max_avg_word_length": 5, "gopher_quality.max_symbol_word_ratio": 0.5,
    "gopher_quality.max_bullet_lines_ratio": 1.0, "gopher_quality.max_ellipsis_lines_ratio": None,
    "gopher_quality.min_alpha_words_ratio": 0.5, "gopher_quality.min_stop_words": 0,
    "c4.min_num_sentences": 1, "c4.filter_lorem_ipsum": False, "c4.filter_curly_bracket": False,
    "fineweb.enabled": False, "fineweb.line_punct_thr": 0.2, "fineweb.short_line_thr": 0.5, "fineweb.char_duplicates_ratio": 1.0,
    "fineweb.new_line_ratio": 0.15, "quality.min_score": 0.6,
}  # fmt: skip
"""A value for each setting that only decides a verdict; it changes the verdict of a planted document."""

REFUSED: dict[str, Any] = {
    **{f"repair.{name}": None for name in FilterConfig().repair.model_dump()},
    **{f"pii.{name}": None for name in FilterConfig().pii.model_dump()},
    **dict.fromkeys(("url.enabled", "c4.enabled", "c4.edit_lines", "c4.remove_citations", "c4.filter_no_terminal_punct"), None),
    **dict.fromkeys(("c4.filter_javascript", "c4.filter_policy"), None),
    "sure_lang_score": 0.7, "lang_model": ["x.bin"], "words": "de", "gopher_quality.stop_words": {"en": ["the"]}, "c4.min_words_per_line": 4,
    "c4.max_word_length": 20, "fineweb.short_line_length": 10,
}  # fmt: skip
"""Those that decide a text or a signal; None stands for the opposite, or for another text."""
BASE_OF = {"url.soft_words": "url", "gopher_quality.min_stop_words": "fineweb", "quality.min_score": "fineweb"}


def leaves(settings: Mapping[str, Any], prefix: str = "") -> Iterator[str]:
    for name, value in settings.items():
        if isinstance(value, Mapping) and value and not name.endswith("_n_grams"):
            yield from leaves(value, f"{prefix}{name}.")
        else:
            yield prefix + name


def test_every_setting_is_looked_at() -> None:
    assert sorted([*CHANGES, *REFUSED]) == sorted(leaves(FilterConfig().model_dump()))


BASES: dict[str, dict[str, Any]] = {
    "": {"url": {"enabled": False}, "c4": {"edit_lines": False}},
    "fineweb": {"url": {"enabled": False}, "c4": {"enabled": False, "edit_lines": False}, "gopher_repetition": {"enabled": False}},
    "url": {},
}
"""What the other settings are: lists of URLs cost a second, and C4's line rules leave nothing that FineWeb's would see."""


def merged(settings: Mapping[str, Any], path: str, value: Any) -> dict[str, Any]:
    head, _, rest = path.partition(".")
    return {**settings, head: merged(settings.get(head, {}), rest, value) if rest else value}


@pytest.fixture(scope="module")
def inputs(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Artifact]:
    root = tmp_path_factory.mktemp("planted")
    shape = schema(doc_id="uuid", source="string", url="string", date="string", lang="string", lang_score="float64", text="string")
    plain = {"source": "crawl", "date": "2026-01-01", "lang": "en", "lang_score": 1.0}
    rows = [
        {**plain, "doc_id": uuid5(SPACE, name), "url": f"http://fine.test/{number}", "text": text, **more}
        for number, (name, (text, more)) in enumerate(PLANTED.items())
    ]
    for number, part in enumerate((rows[:9], rows[9:])):
        write_rows(root / "documents" / "documents" / f"{number:05d}.parquet", shape, part)
    (root / "classifier").mkdir()
    good = [f"__label__positive {' '.join(text.split())}" for text, _ in PLANTED.values()][:2]
    lines = [*good, f"__label__negative {' '.join(PLANTED['an offer'][0].split())}"] * 60
    (root / "lines.txt").write_text("\n".join(lines) + "\n")
    run_in_pool(
        [partial(train, root / "lines.txt", root / "classifier" / "model.bin", FastTextSettings(64, 2, 200_000, 25, 0.5), 1)], 1, "test"
    )
    (root / "classifier" / "classifier.json").write_text(json.dumps({"state": "given", "label": "__label__positive"}))
    return {"documents": artifact(root / "documents", "documents"), "classifier": artifact(root / "classifier", "classifier")}


@pytest.fixture(scope="module")
def homes(inputs: dict[str, Artifact], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[Path, Artifact]]:
    made = {}
    for name, base in BASES.items():
        home = tmp_path_factory.mktemp(f"home{name}")
        made[name] = (home, run_stage(STAGE, base, inputs, home))
        database.update(home)
    return made


def verdicts(filtered: Artifact) -> dict[Any, tuple[str, int]]:
    """Returns doc_id -> (reason, characters)."""
    rows = [row for path in sorted((filtered.path / "decisions").glob("*")) for row in read_rows(path)]
    return {row["doc_id"]: (f"dropped: {row['reason']}" if row["verdict"] == "dropped" else "kept", row["chars"]) for row in rows}


@pytest.mark.parametrize("setting", list(CHANGES))
def test_the_answer_is_that_of_a_rerun(
    setting: str, homes: dict[str, tuple[Path, Artifact]], inputs: dict[str, Artifact], tmp_path: Path
) -> None:
    name = BASE_OF.get(setting, "fineweb" if setting.startswith("fineweb.") else "")
    home, before = homes[name]
    id = f"filter/{before.path.name}"
    rows = what_if(home, id, STAGE, [f"filter.{setting}={json.dumps(CHANGES[setting])}"])
    old, new = verdicts(before), verdicts(run_stage(STAGE, merged(BASES[name], setting, CHANGES[setting]), inputs, tmp_path))
    then, today = Counter(v for v, _ in new.values()), Counter(v for v, _ in old.values())
    fresh = Counter(new[doc][0] for doc in new if new[doc][0] != old[doc][0])
    assert fresh, "the change must change a verdict, or the test says nothing"
    assert {row["verdict"] for row in rows} == {*then, *today, "kept"} and rows[0]["verdict"] == "kept"
    for row in rows:
        verdict = row["verdict"]
        chars = sum(count for v, count in new.values() if v == verdict)
        assert row == {"verdict": verdict, "today": today[verdict], "then": then[verdict], "change": then[verdict] - today[verdict],
                       "new": fresh[verdict], "chars_then": chars}  # fmt: skip
    assert [(-row["then"], row["verdict"]) for row in rows[1:]] == sorted((-row["then"], row["verdict"]) for row in rows[1:])


@pytest.mark.parametrize("setting", list(REFUSED))
def test_what_decides_a_text_or_a_signal_is_refused_by_name(setting: str, homes: dict[str, tuple[Path, Artifact]]) -> None:
    value = REFUSED[setting]
    home, made = homes["url" if setting == "c4.enabled" else ""]
    if value is None:
        old: Any = made.manifest["config"]
        for part in setting.split("."):
            old = old[part]
        value = not old if isinstance(old, bool) else f"{old}x"
    with pytest.raises(RecipeError) as caught:
        what_if(home, f"filter/{made.path.name}", STAGE, [f"filter.{setting}={json.dumps(value)}"])
    named = setting + "".join(f".{key}" for key in (value if isinstance(value, dict) else ()))
    assert caught.value.what.startswith(f"Stored signals cannot tell what filter.{named} would change: ")
    assert caught.value.do == "Run the filter again: loam run RECIPE --until filter --set …"
