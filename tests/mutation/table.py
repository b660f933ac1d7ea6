"""Which modules are mutated, and which tests each must fall to.

A module's tests are those named here, the most specific first, then every other test file that imports it by name, the slow ones last. Never the record
of the code's digests (tests/house): any edit of a stage dies there, which proves nothing; nor what starts a server, a browser or the
whole road.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

TRAINED = ("tests/golden/test_trajectory.py", "tests/stages/test_pretrain.py", "tests/stages/test_sft.py", "tests/stages/test_dpo.py")
SLOW = (*TRAINED, "tests/stages/test_reference.py", "tests/stages/test_export.py", "tests/lm/test_launch.py", "tests/lm/test_foreign.py",
        "tests/core/test_foreign.py", "tests/ask/test_what_if_settings.py")  # fmt: skip
"""What starts training ranks, or takes more than some seconds: last, since most mutants die before."""

TABLE: dict[str, tuple[str, ...]] = {
    "core/manifest": ("tests/core/test_manifest_mutants.py", "tests/core/test_key.py", "tests/core/test_integrity.py", "tests/core/test_runner.py",
                      "tests/core/test_adopt.py"),
    "core/key": ("tests/core/test_key_exact.py", "tests/core/test_key.py", "tests/core/test_runner.py", "tests/ask/test_plan.py"),
    "core/external": ("tests/core/test_key.py", "tests/core/test_remote.py", "tests/core/test_runner.py", "tests/ask/test_plan.py"),
    "core/code": ("tests/core/test_code_exact.py", "tests/core/test_code.py"),
    "core/collect": ("tests/ask/test_compare.py", "tests/core/test_adopt.py"),
    "lm/order": ("tests/lm/test_order.py", "tests/stages/test_pretrain.py"),
    "lm/data": ("tests/lm/test_data.py", "tests/lm/test_pairs.py", "tests/stages/test_pretrain.py"),
    "lm/pairs": ("tests/lm/test_pairs.py", "tests/stages/test_dpo.py", "tests/stages/test_reference.py"),
    "lm/trainer": (*TRAINED, "tests/stages/test_reference.py"),
    "lm/engine": TRAINED,
    "lm/session": ("tests/stages/test_pretrain.py", "tests/stages/test_reference.py"),
    "lm/job": ("tests/lm/test_launch.py", *TRAINED),
    "lm/checkpoint": ("tests/golden/test_trajectory.py", "tests/lm/test_foreign.py", "tests/stages/test_pretrain.py", "tests/stages/test_export.py"),
    "lm/objectives": ("tests/lm/test_objectives.py", "tests/stages/test_dpo.py"),
    "mix": ("tests/stages/test_mix.py", "tests/text/test_validation.py"),
    "text/pack": ("tests/text/test_pack.py", "tests/stages/test_mix.py"),
    "text/rows": ("tests/text/test_rows.py", "tests/stages/test_mix.py"),
    "text/ngrams": ("tests/text/test_ngrams_many.py", "tests/text/test_ngrams.py", "tests/stages/test_contamination.py", "tests/stages/test_decontaminate.py"),
    "contamination": ("tests/stages/test_contamination.py", "tests/stages/test_contamination_flags.py"),
    "report": ("tests/stages/test_report_values.py", "tests/stages/test_report.py"),
    "ask/what_if": ("tests/ask/test_what_if.py",),
    "ask/trace": ("tests/ask/test_lineage.py", "tests/ask/test_compare.py"),
    "ask/affected": ("tests/ask/test_compare.py",),
    "ask/plan": ("tests/ask/test_plan_numbers.py", "tests/ask/test_plan.py"),
}  # fmt: skip
"""Module below stages/ -> test files, the most specific first."""

NEVER = (
    "tests/house",
    "tests/flows",
    "tests/chaos",
    "tests/bench",
    "tests/dashboards",
    "tests/mutation",
    "tests/core/test_lineage_fire.py",
)
"""Where no test is taken from by itself: digests of code, servers, browsers, kills for minutes, benchmarks."""


class TableError(Exception):
    """The table and the tree do not fit."""


def list_tests(project: Path, module: str) -> tuple[str, ...]:
    """The test files of a module. Raises TableError when a named one is not there, or one is named that may never be."""
    named = TABLE[module]
    for path in named:
        if not (project / path).exists():
            raise TableError(f"{path}, a test of stages/{module}.py, does not exist: correct tests/mutation/table.py.")
        if path.startswith(NEVER):
            raise TableError(f"{path} may be no test of stages/{module}.py: see NEVER in tests/mutation/table.py.")
    dotted = f"stages.{module.replace('/', '.')}"
    others = (p.relative_to(project).as_posix() for p in sorted((project / "tests").rglob("test_*.py")))
    found = (*named, *(p for p in others if p not in named and not p.startswith(NEVER) and dotted in imported(project / p)))
    return tuple(sorted(found, key=lambda path: path in SLOW))


@cache
def imported(path: Path) -> frozenset[str]:
    """What a test file names in import statements, as dotted names."""
    found: set[str] = set()
    for node in ast.walk(ast.parse(path.read_bytes())):
        if isinstance(node, ast.Import):
            found.update(a.name for a in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module:
            found.update((node.module, *(f"{node.module}.{a.name}" for a in node.names)))
    return frozenset(found)
