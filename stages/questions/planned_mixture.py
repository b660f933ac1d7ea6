"""Says how many tokens and epochs a mixture has per phase, source and bucket, before anything is packed or trained.

Guarantee: read-only. Where mix is not built, its own function computes the table from the counts in the tokens artifact, so mix delivers the
same numbers.
Cost: that of reading the spans, half a second per million documents; more than MOST documents are not read.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import TYPE_CHECKING

from stages.questions.planned_ranges import REFUSED
from stages.record.contract.declaration import Artifact
from stages.record.contract.recipe import Recipe
from stages.tokens.mix.mix_settings import COLUMN_FOLDERS, divisions_of

if TYPE_CHECKING:
    from stages.tokens.mix.mix_settings import Mix

MOST = 20_000_000
"""Documents of which a plan reads the spans: ten seconds."""
Row = tuple[str, str]


def mixture_table(recipe: Recipe, built: Mapping[str, Artifact | None], reads: Mapping[str, str]) -> list[Row]:
    """Returns rows (source, or phase with source and bucket; tokens and epochs).

    Args:
        recipe: The recipe.
        built: Node of the plan -> its artifact; None where it is not built, and then the table may be one row that says what is missing.
        reads: Role -> node of the inputs that mix has in this plan.
    """
    mix = built.get("mix")
    if mix is not None:
        described = json.loads((mix.path / "mix.json").read_text(encoding="utf-8"))
        shares = described["shares"]
        if any(one["phase"] or one["bucket"] for one in shares):
            return [_row(one["phase"], one["source"], one["bucket"], one["train_tokens"], one["available_tokens"]) for one in shares]
        return [_row(None, name, "", one["train_tokens"], one["available_tokens"]) for name, one in described["sources"].items()]
    settings = recipe.sections.get("mix")
    if settings is None or "mix" not in built or "tokens" not in reads:
        return []
    return _counted(settings, recipe.seed, built, reads)  # type: ignore[arg-type]  # the section mix is a Mix


def _counted(settings: Mix, seed: int, built: Mapping[str, Artifact | None], reads: Mapping[str, str]) -> list[Row]:
    """Returns the table that mix will make, or one row that says why it is not known."""
    from stages.tokens.mix.mixture_plan import MixtureError, mixture_rows, read_plan

    tokens = built[reads["tokens"]]
    tables = [role for role in COLUMN_FOLDERS if role in reads and any(divisions_of(settings))]
    missing = [reads[role] for role in ("tokens", *tables) if built[reads[role]] is None]
    if tokens is None or missing:
        return [("mixture", f"tokens and epochs per source are known after {' and '.join(missing)}")]
    documents = int(tokens.summary.get("documents") or 0)
    if documents > MOST:
        return [("mixture", f"of {documents:,} documents; a plan reads at most {MOST:,}, so mix computes tokens and epochs per source")]
    folders = [found.path / COLUMN_FOLDERS[role] for role in tables if (found := built[reads[role]]) is not None]
    try:
        plan = read_plan(settings, tokens.path, folders, seed)
    except MixtureError as error:
        return [("mixture", f"{REFUSED}{error} ({error.where}) {error.do}")]
    rows = mixture_rows(plan)
    several = any(row.phase or row.bucket for row in rows)
    return [_row(row.phase if several else None, row.source, row.bucket, row.planned_tokens, row.available_tokens) for row in rows]


def _row(phase: int | None, source: str, bucket: str, tokens: int, available: int) -> Row:
    name = f"source {source}" if phase is None else f"phase {phase + 1}, source {source}{f', {bucket}' if bucket else ''}"
    return name, f"{tokens:,} of {available:,} tokens, {tokens / available:.2f} epochs"
