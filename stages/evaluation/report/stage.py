"""report: writes one self-contained HTML page and a Markdown summary of a run, from artifacts only.

Each stage declares what the report shows of its artifact (Stage.section). The report compares the models, tabulates the record counts and
renders the page.

Guarantee: every figure on the page is read from an artifact. Only the verdicts on the claims are computed here, each by a test of values
of single items (stages/evaluation/statistics/claims.py). The page has no script, no external file and no date of its own.
Cost: one or two seconds, and 3 ms per validation document for the verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NotRequired, TypedDict

from stages.record.contract.declaration import EVERY_NODE, WITHOUT, Artifact, Context, Outcome, Stage, Summary, seconds_of, unit_of
from stages.record.contract.report_section import LineChart, Section, SectionTable, merged, with_error
from stages.record.settings import StageConfig

COUNTS = ("in", "kept", "changed", "dropped", "characters out")
BASELINES = ("unigram", "kneser_ney_3gram")  # metrics of evaluate, in bits per byte on the same documents


class RecordedScore(TypedDict):
    """An entry of scores.json, as evaluate writes it."""

    task: str
    metric: str
    value: float
    stderr: NotRequired[float | None]
    n: int
    chance: float | None
    gate: bool
    primary: bool
    cut: NotRequired[int]


class SectionLayout(TypedDict):
    """A section as the page template and the Markdown summary take it. charts: SVG elements."""

    heading: str
    paragraphs: tuple[str, ...]
    tables: tuple[SectionTable, ...]
    charts: list[str]


class ReportConfig(StageConfig):
    """Settings of the report stage."""

    title: str = "Report card"
    """Heading of the page."""


def run(config: ReportConfig, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes report.html, report.md, results.json (the rows that `loam run` prints) and verdicts.json.

    Returns:
        The outcome. Its rows are those of the table of results.
    """
    from stages.evaluation.charts.theme import render
    from stages.evaluation.report import report_page
    from stages.evaluation.report.report_page import BODY, markdown
    from stages.evaluation.statistics import claims
    from stages.evaluation.statistics.verdicts import count_outcomes

    evaluated = [node.partition("@")[2] for node, artifact in inputs.items() if artifact.manifest["kind"] == "scores"]
    scores: dict[str, list[RecordedScore]] = {model: _json(inputs[f"evaluate@{model}"], "scores.json") for model in evaluated}
    models = {model: claims.ModelScores(scores[model], _item_values(inputs[f"evaluate@{model}"])) for model in evaluated}
    dpo = inputs["dpo"].summary if "dpo" in inputs else {}
    required = claims.required_claims(models, dpo, ctx.seed)
    compared = claims.comparisons(models, dpo, ctx.seed)
    results = result_rows(scores, dpo)
    found = _sections(inputs, ctx)
    values = {
        "title": config.title,
        "notes": _left_off(ctx.off),
        "models": evaluated,
        "results": results,
        "all_results": result_rows(scores, {}, every_metric=True),
        "verdicts": report_page.section(required, compared),
        "sections": [_laid_out(section) for section in found],
        "cards": [card for section in found for card in section.cards],
        "artifacts": _artifacts(inputs),
        "settings": {node: json.dumps(a.manifest["config"], indent=1, ensure_ascii=False) for node, a in inputs.items()},
        "environment": _environment(inputs),
    }
    (out / "report.html").write_text(render(report_page.MACRO + BODY, config.title, **values), encoding="utf-8")
    (out / "report.md").write_text(markdown(values), encoding="utf-8")
    (out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / "verdicts.json").write_text(report_page.verdicts_json(required, compared, ctx.seed), encoding="utf-8")
    for verdict in required:
        ctx.log(report_page.sentence(verdict))
    counts = {outcome.name.lower(): number for outcome, number in count_outcomes(required).items()}
    return Outcome(rows=len(results), summary={"claims": len(required), **counts})


def result_rows(scores: Mapping[str, Sequence[RecordedScore]], dpo: Summary, every_metric: bool = False) -> list[dict[str, str]]:
    """Returns the table of results: one row per task and metric, and one column per model.

    Args:
        scores: Model -> entries of its scores.json.
        dpo: Summary of the dpo artifact, for rows on the validation pairs; empty adds none.
        every_metric: Whether every metric has a row, or only the primary metric of a task.

    Returns:
        Rows with formatted values. The column "baseline" holds chance accuracy, baselines, the questions that were cut or the number of pairs.
    """
    about = {(s["task"], s["metric"]): s for model in scores for s in scores[model] if (s["primary"] or every_metric) and not _baseline(s)}
    rows = []
    for (task, metric), score in about.items():
        found = {model: next((s for s in scores[model] if (s["task"], s["metric"]) == (task, metric)), None) for model in scores}
        beside = [f"chance {score['chance']:.3f}"] if score["chance"] is not None else []
        beside += [
            f"{_baseline(s)} {s['value']:.3f}"
            for s in scores.get("base", [])
            if s["task"] == task and s["metric"] == f"{_baseline(s)}_{metric}"
        ]
        cut = [f"{model} {one['cut']:,} of {one['n']:,}" for model, one in found.items() if one and one.get("cut")]
        beside += [f"questions cut: {', '.join(cut)}"] if cut else []
        rows.append({"task": task, "metric": metric} | {m: _score(s) for m, s in found.items()} | {"baseline": ", ".join(beside)})
    for name, label in (
        ("reward_accuracy", "reward accuracy"),
        ("reward_margin", "reward margin"),
        ("logprob_accuracy", "log-prob accuracy"),
    ):
        after = dpo.get(f"validation_{name}")
        if after is not None:
            rewarded = name.startswith("reward")  # rewards are relative to the sft model, so the sft model has no reward
            before = "" if rewarded else f"{dpo[f'validation_{name}_before']:.3f}"
            pairs = f"{dpo['validation_pairs']} held-out pairs"
            rows.append({"task": "preferences", "metric": label, "base": "", "sft": before, "dpo": f"{after:.3f}", "baseline": pairs})
    return rows


def _baseline(score: RecordedScore) -> str:
    """Returns the baseline that a score belongs to, such as "unigram", or "" for a score of the model."""
    return next((name for name in BASELINES if score["metric"].startswith(f"{name}_")), "")


def _score(score: RecordedScore | None) -> str:
    return "" if score is None else with_error(score["value"], score.get("stderr"))


def _json(artifact: Artifact, name: str) -> Any:
    return json.loads((artifact.path / name).read_text(encoding="utf-8"))


def _item_values(artifact: Artifact) -> dict[tuple[str, str], dict[str, float]]:
    """Returns (task, metric) -> item -> value of that item."""
    from stages.record.tables.parquet import read_rows

    values: dict[tuple[str, str], dict[str, float]] = {}
    for row in read_rows(artifact.path / "samples.parquet"):
        values.setdefault((row["task"], row["metric"]), {})[row["item_id"]] = row["value"]
    return values


def _sections(inputs: Mapping[str, Artifact], ctx: Context) -> list[Section]:
    """Returns the sections of the report: results, record counts, then what each stage shows of its artifact, in DAG order."""
    shown = [section for role, section_of in ctx.sections.items() if role in inputs and (section := section_of(inputs[role])) is not None]
    seconds = Section("", cards=(("seconds in all nodes", f"{sum(seconds_of(a.manifest) for a in inputs.values()):,.0f}"),))
    counts = Section("Data", tables=(SectionTable(_counts(inputs), numeric=COUNTS),))
    return merged([Section("Results"), counts, *shown, *_parts_off(ctx.off), seconds])


def _left_off(off: Mapping[str, str]) -> tuple[str, ...]:
    """Returns a sentence for each stage of documents that was passed through: what its absence means. They are the report's first lines."""
    return tuple(f"{node} is {why.partition(': ')[0]}." for node, why in off.items() if WITHOUT in why)


def _parts_off(off: Mapping[str, str]) -> list[Section]:
    """Returns a section with the nodes that the recipe leaves off and their reasons; none if every node is on."""
    rows = tuple({"node": node, "why": why} for node, why in off.items())
    return [Section("Parts that are off", tables=(SectionTable(rows),))] if rows else []


def _laid_out(section: Section) -> SectionLayout:
    """Returns a section as values for the page template, with its charts rendered."""
    return {
        "heading": section.heading,
        "paragraphs": section.paragraphs,
        "tables": section.tables,
        "charts": [*map(_drawn, section.charts)],
    }


def _drawn(chart: LineChart) -> str:
    from stages.evaluation.charts.chart import line_chart, thinned

    lines = {name: thinned(points) for name, points in chart.lines.items()}
    return line_chart(lines, chart.title, chart.x_label, chart.y_label)


def _counts(inputs: Mapping[str, Artifact]) -> tuple[dict[str, str], ...]:
    """Returns the record counts of every node that has them, one table row per node."""
    rows = []
    for node, artifact in inputs.items():
        record_counts = artifact.manifest["record_counts"]
        if record_counts:
            dropped = sorted(record_counts["dropped"].items(), key=lambda item: (-item[1], item[0]))
            rows.append(
                {
                    "node": node,
                    "unit": record_counts["unit"],
                    "in": f"{record_counts['rows_in']:,}",
                    "kept": f"{record_counts['kept']:,}",
                    "changed": f"{record_counts['changed']:,}",
                    "dropped": f"{sum(record_counts['dropped'].values()):,}",
                    "characters out": f"{record_counts['chars_out']:,}",
                    "by reason": ", ".join(f"{reason} {count:,}" for reason, count in dropped if count),
                }
            )
    return tuple(rows)


def _artifacts(inputs: Mapping[str, Artifact]) -> list[dict[str, str]]:
    return [
        {
            "node": node,
            "key": a.manifest["key"][:12],
            "digest": a.manifest["digest"][:12],
            "rows": f"{a.manifest['rows']:,}",
            "unit": unit_of(a.manifest),
            "tokens": f"{a.manifest['tokens']:,}" if a.manifest["tokens"] else "",
            "MB": f"{a.manifest['bytes'] / 1e6:,.2f}",
            "seconds": f"{seconds_of(a.manifest):.1f}",
            "built by": f"imported: {a.manifest['imported']['provenance']}" if "imported" in a.manifest else a.manifest["run_id"],
        }
        for node, a in inputs.items()
    ]


def _environment(inputs: Mapping[str, Artifact]) -> dict[str, str]:
    """Returns hardware, code and seed of the first checkpoint that was trained here, and the versions of all deciding packages.

    Without a checkpoint, the first artifact that was made here counts. Imported artifacts count only if all of them are imported.
    """
    trained = [artifact for artifact in inputs.values() if artifact.manifest["kind"] == "checkpoint"] or list(inputs.values())
    first = next((artifact for artifact in trained if "imported" not in artifact.manifest), trained[0])
    about, hardware = first.manifest["environment"], first.manifest["environment"]["hardware"]
    packages = {k: v for a in inputs.values() for k, v in a.manifest["environment"]["packages"].items()}
    return {
        "processor": f"{hardware['processor']}, {hardware['cores']} cores, {hardware['memory_bytes'] / 2**30:.0f} GiB",
        "GPUs": ", ".join(hardware["gpus"]) or "none",
        "ranks": str(first.summary.get("ranks", "none")),
        "Python": about["python"],
        "code": first.manifest["code"]["commit"][:12] + (" with changes" if first.manifest["code"]["dirty"] else ""),
        "seed": str(first.manifest["seed"]),
        "packages": ", ".join(f"{name} {version}" for name, version in sorted(packages.items())),
    }


STAGE = Stage(
    name="report",
    config=ReportConfig,
    run=run,
    inputs={"evaluate@{model}": "evaluate@{model}", **EVERY_NODE},
    summary={"claims": "claims that the report tests", "reached": "claims reached"},
    output="report",
    unit="results",
    does="one HTML page, one Markdown summary",
    versions=(
        "HTML, Markdown and results from the manifests",
        "every verdict by a paired or exact test with its error; a difference within its error no longer counts as reached. A section per "
        "stage, in DAG order, also in the Markdown; record counts of every node that has some",
        "the nodes that the recipe leaves off, with the reasons; the table of artifacts says what their rows are; samples of dropped and kept pages",
        "the folders of the models, and texts that they wrote",
        "benchmark tasks that no model is scored on, with the reasons",
        "how many items of each benchmark are too short to be searched for",
        "how many questions of a task were cut because they are longer than the context",
        "its first lines name the stages of documents that are off, and what that means",
    ),
    distributions=("jinja2", "numpy", "scipy"),
)
