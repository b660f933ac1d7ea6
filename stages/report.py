"""report: one self-contained HTML page and a Markdown summary of a run, written from manifests and side tables only.

Guarantee: every figure on the page is read from an artifact; nothing is computed anew but the verdicts on the claims, each by a test
of values of single items (stages/text/basics/claims). No script, no outside file, no date of its own.
Cost: a second or two, and 3 ms per validation document for the verdicts.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from stages.core.contract.declaration import Artifact, Context, Outcome, Stage, StageConfig

MODELS = ("base", "sft", "dpo")
DATA_NODES = ("crawl", "extract", "filter", "dedup", "decontaminate", "benchmarks", "conversations", "preferences")
BASELINES = ("unigram", "kneser_ney_3gram")  # of evaluate, in bits per byte on the same documents
TRAINING_NODES = ("pretrain", "sft", "dpo")
INPUTS = {
    "benchmarks": "benchmarks", "crawl": "warc", "extract": "documents", "train_quality": "classifier", "filter": "documents",
    "dedup": "documents", "decontaminate": "documents", "train_tokenizer": "tokenizer", "encode": "tokens", "mix": "mixture",
    "conversations": "conversations", "preferences": "preferences", "pretrain": "checkpoint", "sft": "checkpoint",
    "reference": "logprobs", "dpo": "checkpoint", "export@base": "model", "export@sft": "model", "export@dpo": "model",
    "evaluate@base": "scores", "evaluate@sft": "scores", "evaluate@dpo": "scores", "contamination": "contamination",
}  # fmt: skip


class ReportConfig(StageConfig):
    """The report has one setting."""

    title: str = "Report card"
    """Heading of the page."""


def run(config: ReportConfig, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes report.html, report.md, results.json (the rows that `loam run` prints) and verdicts.json."""
    from stages.text.basics import claims
    from stages.text.basics.verdicts import count_outcomes
    from stages.text.web import verdict_section
    from stages.text.web.report_page import BODY, markdown
    from stages.text.web.theme import render

    scores = {model: _json(inputs[f"evaluate@{model}"], "scores.json") for model in MODELS}
    models = {model: claims.ModelScores(scores[model], _item_values(inputs[f"evaluate@{model}"])) for model in MODELS}
    required = claims.required_claims(models, inputs["dpo"].summary, ctx.seed)
    compared = claims.comparisons(models, inputs["dpo"].summary, ctx.seed)
    results = result_rows(scores, inputs["dpo"].summary)
    values = {
        "title": config.title,
        "results": results,
        "all_results": result_rows(scores, {}, every_metric=True),
        "verdicts": verdict_section.section(required, compared),
        "cards": _cards(inputs),
        "funnel": _funnel(inputs),
        "mixture": _mixture(inputs),
        "charts": _charts(inputs),
        "training": _training(inputs),
        "contamination": _contamination(inputs["contamination"]),
        "harness": _json(inputs["evaluate@sft"], "harness.json"),
        "artifacts": _artifacts(inputs),
        "settings": {node: json.dumps(a.manifest["config"], indent=1, ensure_ascii=False) for node, a in inputs.items()},
        "environment": _environment(inputs),
    }
    (out / "report.html").write_text(render(verdict_section.MACRO + BODY, config.title, **values), encoding="utf-8")
    (out / "report.md").write_text(markdown(values), encoding="utf-8")
    (out / "results.json").write_text(json.dumps(results, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    (out / "verdicts.json").write_text(verdict_section.verdicts_json(required, compared, ctx.seed), encoding="utf-8")
    for verdict in required:
        ctx.log(verdict_section.sentence(verdict))
    counts = {outcome.name.lower(): number for outcome, number in count_outcomes(required).items()}
    return Outcome(rows=len(results), summary={"claims": len(required), **counts})


def result_rows(scores: Mapping[str, list[dict[str, Any]]], dpo: Mapping[str, Any], every_metric: bool = False) -> list[dict[str, str]]:
    """One row per task with its primary metric (or with every metric), a column per model, chance or baselines beside it."""
    about = {(s["task"], s["metric"]): s for model in MODELS for s in scores[model] if (s["primary"] or every_metric) and not _baseline(s)}
    rows = []
    for (task, metric), score in about.items():
        found = {model: next((s for s in scores[model] if (s["task"], s["metric"]) == (task, metric)), None) for model in MODELS}
        beside = [f"chance {score['chance']:.3f}"] if score["chance"] is not None else []
        beside += [
            f"{_baseline(s)} {s['value']:.3f}" for s in scores["base"] if s["task"] == task and s["metric"] == f"{_baseline(s)}_{metric}"
        ]
        rows.append({"task": task, "metric": metric} | {m: _score(s) for m, s in found.items()} | {"beside it": ", ".join(beside)})
    for name, label in (
        ("reward_accuracy", "reward accuracy"),
        ("reward_margin", "reward margin"),
        ("logprob_accuracy", "log-prob accuracy"),
    ):
        after = dpo.get(f"validation_{name}")
        if after is not None:
            rewarded = name.startswith("reward")  # rewards are relative to the sft model, so it has none of its own
            before = "" if rewarded else f"{dpo[f'validation_{name}_before']:.3f}"
            pairs = f"{dpo['validation_pairs']} held-out pairs"
            rows.append({"task": "preferences", "metric": label, "base": "", "sft": before, "dpo": f"{after:.3f}", "beside it": pairs})
    return rows


def _baseline(score: Mapping[str, Any]) -> str:
    """The baseline that a score belongs to ("unigram"), empty for the model's own."""
    return next((name for name in BASELINES if score["metric"].startswith(f"{name}_")), "")


def _score(score: Mapping[str, Any] | None) -> str:
    if score is None:
        return ""
    spread = f" ± {score['stderr']:.3f}" if score.get("stderr") else ""
    return f"{score['value']:.3f}{spread}"


def _json(artifact: Artifact, name: str) -> Any:
    return json.loads((artifact.path / name).read_text(encoding="utf-8"))


def _item_values(artifact: Artifact) -> dict[tuple[str, str], dict[str, float]]:
    """(task, metric) -> item -> the value of that item alone."""
    from stages.core.tables.parquet import read_rows

    values: dict[tuple[str, str], dict[str, float]] = {}
    for row in read_rows(artifact.path / "samples.parquet"):
        values.setdefault((row["task"], row["metric"]), {})[row["item_id"]] = row["value"]
    return values


def _cards(inputs: Mapping[str, Artifact]) -> list[tuple[str, str]]:
    """The run in six figures."""
    kept, pretrain = inputs["decontaminate"].manifest, inputs["pretrain"].summary
    return [
        ("documents after cleaning", f"{kept['rows']:,}"),
        ("tokens in the corpus", f"{inputs['encode'].manifest['tokens']:,}"),
        ("parameters", f"{pretrain['parameters']:,}"),
        ("tokens trained on", f"{pretrain['tokens']:,}"),
        ("training FLOPs", f"{pretrain['flops']:.2e}"),
        ("seconds in all nodes", f"{sum(_seconds(a) for a in inputs.values()):,.0f}"),
    ]


def _funnel(inputs: Mapping[str, Artifact]) -> list[dict[str, str]]:
    """The books of every data node that has some."""
    rows = []
    for node in (name for name in DATA_NODES if name in inputs):
        books = inputs[node].manifest["books"]
        if books:
            dropped = sorted(books["dropped"].items(), key=lambda item: (-item[1], item[0]))
            rows.append(
                {
                    "node": node,
                    "unit": books["unit"],
                    "in": f"{books['rows_in']:,}",
                    "kept": f"{books['kept']:,}",
                    "changed": f"{books['changed']:,}",
                    "dropped": f"{sum(books['dropped'].values()):,}",
                    "characters out": f"{books['chars_out']:,}",
                    "by reason": ", ".join(f"{reason} {count:,}" for reason, count in dropped if count),
                }
            )
    return rows


def _mixture(inputs: Mapping[str, Artifact]) -> list[dict[str, str]]:
    mix = _json(inputs["mix"], "mix.json")
    trained = inputs["pretrain"].summary["passes"]
    return [
        {
            "source": source,
            "weight": f"{numbers['weight']:.3f}",
            "tokens available": f"{numbers['available_tokens']:,}",
            "tokens in the mixture": f"{numbers['train_tokens']:,}",
            "epochs in the mixture": f"{numbers['epochs']:.2f}",
            "epochs trained": f"{numbers['epochs'] * trained:.2f}",
        }
        for source, numbers in mix["sources"].items()
    ]


def _charts(inputs: Mapping[str, Artifact]) -> list[str]:
    from stages.core.tables.parquet import read_rows
    from stages.text.web.chart import line_chart, thinned

    charts = []
    for node in TRAINING_NODES:
        rows = list(read_rows(inputs[node].path / "metrics.parquet", ["step", "loss", "validation_loss"]))
        train = [(float(r["step"]), r["loss"]) for r in rows if r["loss"] is not None]
        validation = [(float(r["step"]), r["validation_loss"]) for r in rows if r["validation_loss"] is not None]
        charts.append(line_chart({"train": thinned(train), "validation": validation}, f"{node}: loss by step", "step", "loss"))
    return charts


def _training(inputs: Mapping[str, Artifact]) -> list[dict[str, str]]:
    rows = []
    for node in TRAINING_NODES:
        for name, value in inputs[node].summary.items():
            rows.append({"node": node, "figure": name.replace("_", " "), "value": _figure(value)})
    return rows


def _contamination(artifact: Artifact) -> dict[str, Any]:
    """Scores on all items, on those without overlap, and on those with; and how many items were flagged."""
    rows = []
    for score in _json(artifact, "scores.json"):
        value = "" if score["value"] is None else _score(score)
        rows.append({k: str(score[k]) for k in ("model", "task", "metric", "subset")} | {"score": value, "items": f"{score['n']:,}"})
    return {"scores": rows, "summary": {name.replace("_", " "): _figure(value) for name, value in artifact.summary.items()}}


def _artifacts(inputs: Mapping[str, Artifact]) -> list[dict[str, str]]:
    return [
        {
            "node": node,
            "key": a.manifest["key"][:12],
            "digest": a.manifest["digest"][:12],
            "rows": f"{a.manifest['rows']:,}",
            "tokens": f"{a.manifest['tokens']:,}" if a.manifest["tokens"] else "",
            "MB": f"{a.manifest['bytes'] / 1e6:,.2f}",
            "seconds": f"{_seconds(a):.1f}",
            "built by": f"adopted: {a.manifest['adopted']['provenance']}" if "adopted" in a.manifest else a.manifest["run_id"],
        }
        for node, a in inputs.items()
    ]


def _environment(inputs: Mapping[str, Artifact]) -> dict[str, str]:
    """Where the first model trained here was trained, and every package version that decided bytes."""
    trained = next((node for node in TRAINING_NODES if "adopted" not in inputs[node].manifest), "pretrain")
    manifest = inputs[trained].manifest
    about, hardware = manifest["environment"], manifest["environment"]["hardware"]
    packages = {k: v for a in inputs.values() for k, v in a.manifest["environment"]["packages"].items()}
    return {
        "processor": f"{hardware['processor']}, {hardware['cores']} cores, {hardware['memory_bytes'] / 2**30:.0f} GiB",
        "GPUs": ", ".join(hardware["gpus"]) or "none",
        "ranks": str(inputs[trained].summary["ranks"]),
        "Python": about["python"],
        "code": manifest["code"]["commit"][:12] + (" with changes" if manifest["code"]["dirty"] else ""),
        "seed": str(manifest["seed"]),
        "packages": ", ".join(f"{name} {version}" for name, version in sorted(packages.items())),
    }


def _seconds(artifact: Artifact) -> float:
    from datetime import datetime

    return (datetime.fromisoformat(artifact.manifest["ended"]) - datetime.fromisoformat(artifact.manifest["started"])).total_seconds()


def _figure(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e6 else f"{value:.3e}"
    return f"{value:,}" if isinstance(value, int) else str(value)


STAGE = Stage(
    name="report",
    config=ReportConfig,
    run=run,
    inputs=INPUTS,
    output="report",
    versions=(
        "HTML, Markdown and results from the manifests",
        "every verdict by a paired or exact test with its error; a difference within its error no longer counts as reached",
    ),
    distributions=("jinja2", "numpy", "scipy"),
    optional=(
        "crawl",
        "extract",
        "train_quality",
        "filter",
        "dedup",
        "reference",
        "export@base",
        "export@sft",
        "export@dpo",
    ),  # it only lists them
)
