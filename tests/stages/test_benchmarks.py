from __future__ import annotations

import gzip
import json
from pathlib import Path
from typing import Any, cast

import pytest
from pydantic import JsonValue

from stages.corpus.text.ngrams import find, load_index
from stages.examples.benchmarks.stage import STAGE, unscored_section
from stages.examples.benchmarks.tasks import format_of
from stages.examples.items.benchmark_task import COMPLETE, WHAT, ItemRow
from stages.examples.items.held_out import normalised, read_described
from stages.record.contract.declaration import Artifact
from stages.record.contract.errors import RecipeError, StageError
from stages.record.tables.parquet import read_rows
from tests.conftest import run_stage
from tests.made.benches import ITEMS
from tests.made.variants import Data
from tests.stages import made

PACKAGE = "pydantic"
QUESTIONS = [
    {"query": f"Which number is {i}, if you count from nothing?", "choices": ["none", str(i), "all"], "gold": 1} for i in range(30)
]


def items_of(artifact: Artifact, task: str) -> list[ItemRow]:
    return [cast(ItemRow, row) for row in read_rows(artifact.path / "items.parquet") if row["task"] == task]


def tasks_of(artifact: Artifact) -> dict[str, dict[str, JsonValue]]:
    return {task["name"]: task for task in json.loads((artifact.path / "tasks.json").read_text())}


def test_files_become_tasks_named_by_the_file(tmp_path: Path) -> None:
    files = [
        made.jsonl(tmp_path / "arc.v2.jsonl", QUESTIONS),
        made.jsonl(tmp_path / "gsm8k.jsonl", [{"question": "How many?", "answer": "#### 4"}]),
    ]
    artifact = run_stage(STAGE, {"files": files, "max_scored_items": 10}, {}, tmp_path / "home")
    tasks = tasks_of(artifact)
    assert list(tasks) == ["arc", "gsm8k"]
    assert tasks["arc"]["chance"] == pytest.approx(1 / 3, abs=1e-6)
    assert (tasks["arc"]["metric"], tasks["arc"]["scored_items"], tasks["arc"]["items"], tasks["arc"]["gate"]) == (
        "acc_norm",
        10,
        30,
        False,
    )
    assert (tasks["gsm8k"]["metric"], tasks["gsm8k"]["scored_items"]) == (None, 0) and "not scored" in str(tasks["gsm8k"]["description"])
    assert sum(row["scored"] for row in items_of(artifact, "arc")) == 10
    assert len({row["item_id"] for row in items_of(artifact, "arc")}) == 30
    assert items_of(artifact, "gsm8k")[0]["texts"] == ["How many?", "How many? #### 4"]
    assert artifact.manifest["record_counts"]["kept"] == 31
    section = unscored_section(artifact)
    assert section and [dict(row) for table in section.tables for row in table.rows] == [
        {"task": "gsm8k", "items": "1", "why": "indexed for decontamination, not scored: its answers are generated and parsed, not chosen"}
    ]
    assert STAGE.section is unscored_section
    assert unscored_section(run_stage(STAGE, {"files": files[:1]}, {}, tmp_path / "home")) is None


def test_a_parquet_file_gives_the_items_of_the_same_rows_in_json_lines(tmp_path: Path) -> None:
    """With lists and objects, as the official files of ARC and MMLU have them. A row that cannot be read is a bad record in both."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    arc = [
        {"id": f"q{n}", "question": f"What is {n}?", "choices": {"text": ["one", "two"], "label": ["A", "B"]}, "answerKey": "AB"[n % 2]}
        for n in range(9)
    ]
    mmlu = [{"question": f"And {n}?", "subject": "sums", "choices": ["a", "b", "c", "d"], "answer": n % 4} for n in range(9)]
    mmlu[3]["answer"] = 9
    found = []
    for ending in ("parquet", "jsonl"):
        folder = tmp_path / ending
        folder.mkdir()
        for name, rows in (("arc", arc), ("mmlu", mmlu)):
            if ending == "jsonl":
                made.jsonl(folder / f"{name}.jsonl", rows)
            else:
                pq.write_table(pa.Table.from_pylist(rows), folder / f"{name}.parquet")
        config = {"files": [str(folder / f"*.{ending}")], "min_words": 2, "max_bad_records": 1}
        artifact = run_stage(STAGE, config, {}, tmp_path / "home")
        found.append((items_of(artifact, "arc"), items_of(artifact, "mmlu"), artifact.manifest["record_counts"]))
    assert found[0] == found[1] and len(found[0][0]) == 9 and len(found[0][1]) == 8 and found[0][2]["dropped"] == {"bad_record": 1}


def test_the_scored_items_do_not_depend_on_their_order(tmp_path: Path) -> None:
    scored = []
    for name, records in (("a", QUESTIONS), ("b", QUESTIONS[::-1])):
        artifact = run_stage(
            STAGE, {"files": [made.jsonl(tmp_path / name / "q.jsonl", records)], "max_scored_items": 7}, {}, tmp_path / "home"
        )
        scored.append({row["context"] for row in items_of(artifact, "q") if row["scored"]})
    assert scored[0] == scored[1] and len(scored[0]) == 7


def test_held_out_answers_are_honest(tmp_path: Path) -> None:
    artifact = run_stage(STAGE, {"docstrings": {"packages": [PACKAGE], "items": 40}}, {}, tmp_path)
    counts = read_described([PACKAGE])[1]
    tasks = tasks_of(artifact)
    assert tasks[COMPLETE]["gate"] and not tasks[WHAT]["gate"]
    assert {t["metric"] for t in tasks.values()} == {"acc_mutual_info"} and {t["chance"] for t in tasks.values()} == {0.25}
    complete, what = items_of(artifact, COMPLETE), items_of(artifact, WHAT)
    assert len(complete) == len(what) == 40
    assert [row["texts"] for row in complete] == [row["texts"] for row in what]
    for row in [*complete, *what]:
        assert counts[normalised(row["texts"][0])] == 1
        assert len(set(row["choices"])) == 4 and row["choices"][row["gold"]] == row["answer"]
    for row in complete:
        assert f"{row['context'].removeprefix('Complete: ')} {row['answer']}" == row["texts"][0]
    assert {row["gold"] for row in complete} == {0, 1, 2, 3}


def test_broken_items_are_counted_past_the_limit_they_fail(tmp_path: Path) -> None:
    path = tmp_path / "q.jsonl"
    path.write_text("\n".join([json.dumps(QUESTIONS[0]), "{", json.dumps(QUESTIONS[1] | {"gold": 9}), json.dumps(QUESTIONS[2])]))
    artifact = run_stage(STAGE, {"files": [str(path)], "max_bad_records": 2}, {}, tmp_path / "home")
    assert artifact.manifest["record_counts"]["dropped"] == {"bad_record": 2} and artifact.manifest["rows"] == 2
    with pytest.raises(StageError, match="the line is not JSON") as caught:
        run_stage(STAGE, {"files": [str(path)]}, {}, tmp_path / "home")
    assert "q.jsonl:2" in str(caught.value) and "benchmarks.max_bad_records" in str(caught.value)


def test_an_unknown_format_lists_the_known_ones(tmp_path: Path) -> None:
    path = made.jsonl(tmp_path / "sst.jsonl", [{"sentence": "x", "label": 1}])
    with pytest.raises(StageError, match="sst.jsonl has a format that Loam does not know: its fields are sentence, label") as caught:
        run_stage(STAGE, {"files": [path]}, {}, tmp_path / "home")
    assert "query/choices/gold; ctx/endings/label; context/continuation" in str(caught.value)


@pytest.mark.parametrize(("record", "message", "do"), [
    ({"instruction": "a", "input": "", "output": "b"}, "holds chats in the format alpaca, not benchmark items: its fields are instruction, input, output.",
     "Name the file in conversations.files."),
    ({"prompt": "a", "chosen": "b", "rejected": "c"}, "holds preference pairs in the format prompt_pair, not benchmark items: its fields are prompt,",
     "Name the file in preferences.files."),
])  # fmt: skip
def test_chats_and_pairs_are_sent_to_their_own_node(tmp_path: Path, record: dict[str, Any], message: str, do: str) -> None:
    path = made.jsonl(tmp_path / "mine.jsonl", [record])
    with pytest.raises(StageError, match=f"mine.jsonl {message}") as caught:
        run_stage(STAGE, {"files": [path]}, {}, tmp_path / "home")
    assert caught.value.do == do


def test_a_file_that_resembles_a_format_gets_the_line_to_write(tmp_path: Path) -> None:
    records = [
        {"problem": f"Which number follows the number {n} if you count by one?", "options": [str(n), str(n + 1)], "label": "B"}
        for n in range(20)
    ]
    config: dict[str, Any] = {"files": [made.jsonl(tmp_path / "next.jsonl", records)]}
    with pytest.raises(
        StageError, match="next.jsonl has a format that Loam does not know: its fields are problem, options, label"
    ) as caught:
        run_stage(STAGE, config, {}, tmp_path / "home")
    line = "{next: {question: problem, answer: label}}"
    assert f"It looks like question/options/answer without 'question', 'answer'. Write benchmarks.fields: {line}. " in str(caught.value)
    config |= {"fields": {"next": {"question": "problem", "answer": "label"}}}
    artifact = run_stage(STAGE, config, {}, tmp_path / "home")
    task = tasks_of(artifact)["next"]
    assert (task["format"], task["kind"], task["metric"], task["chance"]) == ("question/options/answer", "multiple_choice", "acc_norm", 0.5)
    assert [row["answer"] for row in items_of(artifact, "next")] == [str(n + 1) for n in range(20)]
    assert artifact.manifest["key_parts"]["config"]["fields"] == config["fields"]


def test_a_question_with_choices_is_not_read_as_a_question_with_an_answer(tmp_path: Path) -> None:
    records = [
        {"question": f"Which is the number after {n} if you count by one?", "choices": ["none", str(n + 1)], "answer": 1} for n in range(20)
    ]
    artifact = run_stage(STAGE, {"files": [made.jsonl(tmp_path / "next.jsonl", records)]}, {}, tmp_path / "home")
    assert tasks_of(artifact)["next"]["format"] == "question/choices/answer" and items_of(artifact, "next")[3]["answer"] == "4"
    doubtful = [
        {name if name != "choices" else "alternatives": value for name, value in record.items()} | {"answer": "4"} for record in records
    ]
    config: dict[str, Any] = {"files": [made.jsonl(tmp_path / "doubt.jsonl", doubtful)]}
    with pytest.raises(StageError, match="A record of doubt.jsonl can be read as question/answer and as question/choices/answer") as caught:
        run_stage(STAGE, config, {}, tmp_path / "home")
    assert "doubt.jsonl:1" in str(caught.value) and "Write benchmarks.fields: {doubt: ONE OF THESE}" in str(caught.value)
    config |= {"fields": {"doubt": {"question": "question", "answer": "answer"}}}
    assert tasks_of(run_stage(STAGE, config, {}, tmp_path / "home"))["doubt"]["format"] == "question/answer"


def test_a_mapping_for_no_task_of_no_format_or_of_no_field_is_refused(tmp_path: Path) -> None:
    config: dict[str, Any] = {"files": [made.jsonl(tmp_path / "q.jsonl", QUESTIONS)]}
    with pytest.raises(RecipeError, match="No benchmark file makes the task 'p'") as caught:
        run_stage(STAGE, config | {"fields": {"p": {"query": "question"}}}, {}, tmp_path / "home")
    assert "Name one of the tasks: q." in str(caught.value)
    with pytest.raises(RecipeError, match="fields of q: no format has the fields quary; the formats are query/choices/gold; "):
        run_stage(STAGE, config | {"fields": {"q": {"quary": "problem"}}}, {}, tmp_path / "home")
    with pytest.raises(
        StageError, match="q.jsonl has no field 'question', which benchmarks.fields names; it has query, choices, gold"
    ) as caught:
        run_stage(STAGE, config | {"fields": {"q": {"query": "question"}}}, {}, tmp_path / "home")
    assert "Correct benchmarks.fields.q." in str(caught.value) and "q.jsonl:1" in str(caught.value)


def test_an_empty_file_a_missing_file_and_two_of_one_name(tmp_path: Path) -> None:
    with pytest.raises(StageError, match="q.jsonl holds no benchmark item\\."):
        run_stage(STAGE, {"files": [made.jsonl(tmp_path / "q.jsonl", [])]}, {}, tmp_path / "home")
    bad = {"files": [made.jsonl(tmp_path / "bad.jsonl", [record | {"gold": 7} for record in QUESTIONS])], "max_bad_records": 1000}
    with pytest.raises(
        StageError, match="bad.jsonl holds no benchmark item that can be read: the field 'gold' does not number one of the 3"
    ):
        run_stage(STAGE, bad, {}, tmp_path / "home")
    with pytest.raises(RecipeError, match="file does not exist"):
        run_stage(STAGE, {"files": [str(tmp_path / "none.jsonl")]}, {}, tmp_path / "home")
    files = [made.jsonl(tmp_path / name / "q.jsonl", QUESTIONS) for name in "ab"]
    with pytest.raises(RecipeError, match="Two benchmark files make the task 'q'") as caught:
        run_stage(STAGE, {"files": files}, {}, tmp_path / "home")
    assert str(tmp_path / "a" / "q.jsonl") in str(caught.value) and str(tmp_path / "b" / "q.jsonl") in str(caught.value)
    own = {"files": [made.jsonl(tmp_path / "docs_what.jsonl", QUESTIONS)], "docstrings": {"packages": ["stdlib"]}}
    with pytest.raises(RecipeError, match="benchmarks.docstrings and a file make the task 'docs_what'"):
        run_stage(STAGE, own, {}, tmp_path / "home")
    with pytest.raises(RecipeError, match="my task.*holds ' '"):
        run_stage(STAGE, {"files": [made.jsonl(tmp_path / "my task.jsonl", QUESTIONS)]}, {}, tmp_path / "home")


def test_the_index_of_ngrams_is_published_and_never_empty(tmp_path: Path) -> None:
    artifact = run_stage(STAGE, {"files": [made.jsonl(tmp_path / "q.jsonl", QUESTIONS)]}, {}, tmp_path / "home")
    index = load_index(artifact.path / "index")
    (match,) = find(index, "So: WHICH number - is 7 if you count from nothing")
    assert match.item_id == items_of(artifact, "q")[7]["item_id"]
    assert (artifact.summary["item_texts"], artifact.summary["item_texts_too_short"]) == (60, 0)
    short = {"files": [made.jsonl(tmp_path / "s.jsonl", [{"context": "too", "continuation": "short"}])]}
    message = "There is no benchmark item to look for: .*none of the 2 texts of 1 items has 8 words"
    with pytest.raises(StageError, match=message) as caught:
        run_stage(STAGE, short, {}, tmp_path / "home")
    assert "lower benchmarks.min_words" in str(caught.value)
    with pytest.raises(RecipeError, match="min_words is 20, more than ngram_words 13"):
        run_stage(STAGE, short | {"min_words": 20}, {}, tmp_path / "home")


def test_too_few_answers_are_refused(tmp_path: Path) -> None:
    with pytest.raises(StageError, match=r"The packages have \d+ answers of 5 to 30 words that occur once; the recipe requires 100000"):
        run_stage(STAGE, {"docstrings": {"packages": [PACKAGE], "items": 100_000}}, {}, tmp_path)


PLAIN = {"query/choices/gold", "ctx/endings/label", "context/continuation", "context_options/continuation/gold", "question/answer",
         "prompt/canonical_solution"}  # fmt: skip
REAL_ITEMS = {"arc_challenge": 1172, "arc_easy": 2376, "commonsense_qa": 1221, "copa": 100, "gsm8k_test": 1319, "lambada_openai": 5153,
              "openbook_qa": 500, "winogrande": 1267, "HumanEval": 164, "hellaswag_val": 10042}  # fmt: skip


def test_whole_files_are_read(tmp_path: Path, data: Data) -> None:
    """Covers the formats of llm-foundry, HellaSwag, GSM8K and HumanEval, compressed and uncompressed."""
    names = data.expected(made=["programs", "endings"], real=["HumanEval", "hellaswag_val"])
    files = [str(data.part("bench") / name) for name in ("*.jsonl", *(f"{name}.jsonl.gz" for name in names))]
    artifact = run_stage(STAGE, {"files": files, "max_scored_items": 50}, {}, tmp_path)
    tasks = tasks_of(artifact)
    assert {name: task["items"] for name, task in tasks.items()} == data.expected(made=ITEMS, real=REAL_ITEMS)
    unscored = data.expected(made={"sums", "pronouns", "programs"}, real={"gsm8k_test", "winogrande", "HumanEval"})
    assert {name for name, task in tasks.items() if not task["scored_items"]} == unscored
    with_lines = [path for path in data.part("bench").glob("*.jsonl*") if path.name.partition(".")[0] in tasks]
    assert {str(task["format"]) for task in tasks.values()} == PLAIN
    for path in with_lines:
        record = json.loads(read_text(path).partition("\n")[0])
        assert (form := format_of(record, {})) and form.name == tasks[path.name.partition(".")[0]]["format"]


def read_text(path: Path) -> str:
    return (gzip.decompress(path.read_bytes()) if path.suffix == ".gz" else path.read_bytes()).decode()
