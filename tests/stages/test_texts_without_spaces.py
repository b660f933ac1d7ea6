"""dedup, decontaminate and contamination on texts in scripts without spaces, as on English: planted copies and quotes, and unrelated texts.

The expected values are from datasketch and from sets over plain Python's words (tests/corpus/text/spaceless.py).
"""

from __future__ import annotations

import json
import random
from pathlib import Path
from typing import Any

import pytest
from datasketch import MinHash

from stages.corpus.decontaminate import STAGE as DECONTAMINATE
from stages.corpus.dedup.stage import STAGE as DEDUP
from stages.evaluation.contamination import STAGE as CONTAMINATION
from stages.evaluation.contamination import report_section
from stages.examples.benchmarks.stage import STAGE as BENCHMARKS
from stages.record.run.runner import Event
from stages.record.tables.parquet import read_rows, schema, write_rows
from tests.conftest import run_stage
from tests.corpus.text.spaceless import plain, runs, sentences, sixths
from tests.stages import made

LANGUAGES = ("en", "zh", "ja", "th", "km")


def edited(text: str, language: str, seed: int) -> str:
    """Returns the text with one of its sentences exchanged, and without its last full stop."""
    chance = random.Random(seed)
    own = sentences(language, seed, 24)
    assert "".join(own) == text
    own[chance.randrange(1, 23)] = sentences(language, seed + 1000, 1)[0]
    return "".join(own).rstrip("。. ។")


def estimate(a: str, b: str) -> float:
    """Returns datasketch's estimate of the similarity of two texts."""
    sketches = []
    for text in (a, b):
        sketches.append(MinHash(num_perm=128))
        sketches[-1].update_batch([" ".join(run).encode() for run in runs(plain(text), 5)])
    return float(sketches[0].jaccard(sketches[1]))


def test_near_duplicates_are_found_as_in_english(tmp_path: Path) -> None:
    """Catches: a clause as one word (no pair is found), and a threshold that two thirds of a text pass."""
    texts = {language: ["".join(sentences(language, seed, 24)) for seed in range(10)] for language in LANGUAGES}
    copies = {language: [edited(text, language, seed) for seed, text in enumerate(own)] for language, own in texts.items()}
    halves = {language: "".join(sentences(language, 0, 24)[:16] + sentences(language, 77, 8)) for language in LANGUAGES}
    documents = [text for language in LANGUAGES for text in (*texts[language], *copies[language], halves[language])]
    built = run_stage(DEDUP, {}, {"documents": made.documents(tmp_path / "documents", [documents])}, tmp_path / "home")
    row_of = {row["doc_id"]: row["text"] for row in read_rows(tmp_path / "documents" / "documents" / "00000.parquet")}
    found = {
        frozenset((row_of[row["doc_id"]], row_of[row["kept_doc_id"]])): row["jaccard"] for row in read_rows(built.path / "pairs.parquet")
    }
    expected = {frozenset((a, b)) for language in LANGUAGES for a, b in zip(texts[language], copies[language], strict=True)}
    assert set(found) == expected and built.summary["near_duplicates"] == 10 * len(LANGUAGES)
    for pair, similarity in found.items():
        a, b = (set(runs(plain(text), 5)) for text in pair)
        assert similarity == pytest.approx(len(a & b) / len(a | b)) and abs(similarity - estimate(*pair)) < 0.2


@pytest.mark.parametrize("language", LANGUAGES)
def test_quotes_of_items_are_cut_wherever_they_are(language: str, tmp_path: Path) -> None:
    """Catches: an item that is one word, a line break or a document's border that hides a quote, a cut that takes more than the item."""
    made_questions = [sentences(language, seed, 1)[0].strip() for seed in range(100, 120)]
    questions = [question for question in made_questions if sum(map(sixths, plain(question))) >= 8 * 6][:5]
    items = [{"query": question, "choices": ["1", "2"], "gold": 0} for question in questions]
    benchmarks = run_stage(BENCHMARKS, {"files": [made.jsonl(tmp_path / "quiz.jsonl", items)]}, {}, tmp_path / "home")
    assert benchmarks.summary["items_too_short"] == 0
    around = ["".join(sentences(language, seed, 12)) for seed in range(10)]
    whole = questions[3]
    half = next(at for at in range(len(whole) // 2, len(whole)) if plain(whole[:at]) + plain(whole[at:]) == plain(whole))  # between words
    broken = f"{whole[:half]}\n{whole[half:]}"
    given = [
        f"{questions[0]}{around[0]}", f"{around[1]}{questions[1]}{around[5]}", f"{around[2]}{questions[2]}",
        f"{around[3]}\n{broken}\n{around[6]}", f"{around[4]}({questions[4].upper()})",
    ]  # fmt: skip
    documents = made.documents(tmp_path / "documents", [[*given, *around]])
    built = run_stage(DECONTAMINATE, {"mode": "span"}, {"documents": documents, "benchmarks": benchmarks}, tmp_path / "home")
    left = [row["text"] for row in read_rows(built.path / "documents" / "00000.parquet")]
    assert built.summary["items_found"] == 5 and left[5:] == around
    for question, text in zip(questions, left, strict=False):
        assert "".join(plain(question)) not in "".join(plain(text))
    assert "".join(plain("".join(left[:5]))) == "".join(
        plain("".join([around[0], around[1], around[5], *around[2:4], around[6], around[4]]))
    )


def test_items_too_short_to_search_are_counted_and_are_not_clean(tmp_path: Path) -> None:
    """Catches: a short question that counts as clean; a limit that counts characters as words, or a clause as one."""
    questions = {
        "english": ["What is the name of the highest mountain there", "What is the highest mountain"],
        "chinese": ["中华人民共和国的首都是哪座城市", "中国的首都是哪", "水的沸点？"],
    }
    files = [
        made.jsonl(tmp_path / f"{task}.jsonl", [{"query": query, "choices": ["y", "n"], "gold": 0} for query in own])
        for task, own in questions.items()
    ]
    events: list[Event] = []
    benchmarks = run_stage(BENCHMARKS, {"files": files}, {}, tmp_path / "home", events=events)
    assert benchmarks.summary["items_too_short"] == 3
    told = "\n".join(str(event) for event in events)
    assert "english: 1 items are too short" in told and "chinese: 2 items are too short" in told
    documents = made.documents(tmp_path / "documents", [[f"问：{questions['chinese'][0]}？", f"水的沸点？{'填充' * 50}"]])
    rows = list(read_rows(benchmarks.path / "items.parquet"))
    samples = [{"task": row["task"], "item_id": row["item_id"], "metric": "acc", "value": float(len(row["context"]) > 7)} for row in rows]
    write_rows(tmp_path / "base" / "samples.parquet", schema(task="string", item_id="string", metric="string", value="float64"), samples)
    given: dict[str, Any] = {"documents": documents, "mixture": made.mixture(tmp_path / "mix", documents, set()), "benchmarks": benchmarks}
    found = run_stage(CONTAMINATION, {}, given | {"base": made.artifact(tmp_path / "base", "scores", "evaluate@base")}, tmp_path / "home")
    searches = {row["task"]: (row["items"], row["flagged"], row["not_searchable"]) for row in read_rows(found.path / "searches.parquet")}
    assert searches == {"english": (2, 0, 1), "chinese": (3, 1, 2)} and found.summary["items_too_short"] == 3
    scores = {(s["task"], s["subset"]): (s["n"], s["value"]) for s in json.loads((found.path / "scores.json").read_text())}
    assert scores["english", "clean"] == (1, 1.0) and scores["english", "not_searchable"] == (1, 1.0)
    assert (
        scores["chinese", "clean"] == (0, None)
        and scores["chinese", "flagged"] == (1, 1.0)
        and scores["chinese", "not_searchable"] == (2, 0.0)
    )
    (shown, _) = report_section(found).tables
    assert [dict(row) for row in shown.rows][1] == {"task": "chinese", "items": "3", "flagged": "1", "near": "0", "not searchable": "2"}
