"""A stage of documents is added between two others by one module and one line; plan, run, trace, lineage and report show it in its place."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.conftest import answered, copy_project, python_in

pytestmark = pytest.mark.long

MODULE = '''
"""synthesize: rewords each document."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path

from stages.record.contract.declaration import Artifact, Context, Outcome, Stage
from stages.corpus.documents.documents import DECISIONS, DOCUMENTS, Ruling, add_record_counts, document_shards, judge_shard
from stages.record.tables.shards import collect, run_shards
from stages.record.settings import StageConfig


class Synthesize(StageConfig):
    """How documents are reworded."""


def reworded(folder: Path, path: Path, meter):
    return judge_shard(path, folder, lambda row: Ruling("unworthy") if "bad" in row["text"] else Ruling(text=row["text"].upper()), {}, meter)


def run(config: Synthesize, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes documents/ and decisions/."""
    paths = document_shards(inputs["documents"].path)
    shards = run_shards(reworded, paths, ctx, "reword", [path.stat().st_size for path in paths])
    for table in ("documents", "decisions"):
        collect(shards, f"{table}.parquet", out)
    counts = add_record_counts([shard.result for shard in shards])
    return Outcome(rows=counts.kept + counts.changed, record_counts=counts)


STAGE = Stage(
    name="synthesize",
    config=Synthesize,
    run=run,
    inputs={"documents": "dedup"},
    passes="documents",
    output="documents",
    tables=(DOCUMENTS, DECISIONS),
    unit="documents",
    does="rewords documents",
    versions=("first version",),
    distributions=("pyarrow",),
)
'''
RECIPE = """
name: toy
seed: 1
runtime: {workers: 1}
import: {extract: texts}
boilerplate: off
filter: off
benchmarks: off
train_tokenizer: off
"""
TEXTS = {"http://a/1": "a text of some words", "http://a/2": "a bad text", "http://a/3": "another text of more words"}


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The project with the new module and the new input of decontaminate."""
    copy = tmp_path_factory.mktemp("tree")
    copy_project(("stages", "flows", "dashboards", "configs"), copy)
    (copy / "stages" / "corpus" / "synthesize.py").write_text(MODULE)
    reader = copy / "stages" / "corpus" / "decontaminate.py"
    text = reader.read_text()
    assert text.count('inputs={"documents": "dedup"') == 1
    reader.write_text(text.replace('inputs={"documents": "dedup"', 'inputs={"documents": "synthesize"'))
    (copy / "toy.yaml").write_text(RECIPE)
    (copy / "texts.jsonl").write_text("".join(json.dumps({"url": url, "text": text}) + "\n" for url, text in TEXTS.items()))
    return copy


def loam(tree: Path, *words: str) -> str:
    return python_in(tree, "-m", "flows.cli", *words, "--home", str(tree / "home")).stdout


def test_it_stands_in_its_place_in_plan_trace_lineage_and_report(tree: Path) -> None:
    loam(tree, "lineage", "import", "extract", "texts.jsonl", "--provenance", "Made for a test.", "--as", "texts")
    before = [step["node"] for step in answered(loam(tree, "plan", "tiny", "--json"))["steps"]]
    assert before[before.index("dedup") : before.index("decontaminate") + 1] == ["dedup", "synthesize", "decontaminate"]
    loam(tree, "run", "toy.yaml")
    traced = answered(loam(tree, "trace", "--url", "http://a/1", "--json"))["documents"][0]
    assert [(row["node"], row["verdict"]) for row in traced["verdicts"]][-3:] == [
        ("dedup", "kept"), ("synthesize", "changed"), ("decontaminate", "kept"),
    ]  # fmt: skip
    (dropped,) = answered(loam(tree, "trace", "--url", "http://a/2", "--json"))["documents"]
    assert (dropped["verdicts"][-1]["node"], dropped["verdicts"][-1]["reason"]) == ("synthesize", "unworthy")
    outcomes = {(row["node"], row["reason"]): row["records"] for row in answered(loam(tree, "trace", "--all", "--json"))["rows"]}
    assert outcomes["synthesize", "unworthy"] == 1
    affected = loam(tree, "lineage", "affected", "--url-pattern", "http://a/%")
    assert "synthesize" in affected
    report = Path(answered(loam(tree, "lineage", "show", "report", "--json"))["path"]) / "report.md"
    rows = [line.split("|")[1].strip() for line in report.read_text().splitlines() if line.startswith("| ")]
    assert rows.index("dedup") < rows.index("synthesize") < rows.index("decontaminate")


def test_it_is_passed_through_where_it_is_off(tree: Path) -> None:
    (tree / "without.yaml").write_text(RECIPE + "synthesize: off\n")
    plan = answered(loam(tree, "plan", "without.yaml", "--json"))
    assert [step["node"] for step in plan["steps"]] == ["extract", "dedup", "decontaminate", "report"]
    assert plan["off"]["synthesize"].startswith("turned off in the recipe")
