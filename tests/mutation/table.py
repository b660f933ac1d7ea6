"""Which modules are mutated, and which tests each must fall to.

A module's tests are those named here, the most specific first, then every other test file that imports it by name and is not slow; the slow
ones only where they are named, and last. Never the rules about sources (tests/architecture), which say nothing of what code
does; nor what starts a server, a browser or the whole pipeline.
"""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

TRAINED = ("tests/golden/test_trajectory.py", "tests/stages/test_pretrain.py", "tests/stages/test_sft.py", "tests/stages/test_dpo.py")
SLOW = (*TRAINED, "tests/stages/test_reference.py", "tests/stages/test_export.py", "tests/lm/ranks/test_launch.py", "tests/lm/infer/test_import_model.py",
        "tests/core/tables/test_import_documents.py", "tests/queries/test_what_if_settings.py")  # fmt: skip
"""What starts training ranks, or takes more than some seconds: last, since most mutants die before."""

TABLE: dict[str, tuple[str, ...]] = {
    "core/store/manifest": ("tests/core/store/test_manifest_mutants.py", "tests/core/test_durability.py", "tests/core/store/test_key.py",
                            "tests/core/store/test_integrity.py",
                            "tests/core/run/test_runner.py", "tests/core/run/test_import_artifact.py"),
    "core/store/key": ("tests/core/store/test_key_exact.py", "tests/core/store/test_key.py", "tests/core/run/test_runner.py", "tests/queries/test_plan.py"),
    "core/store/key_record": ("tests/core/store/test_key_exact.py", "tests/core/store/test_key.py"),
    "core/store/external": ("tests/core/store/test_key.py", "tests/core/store/test_remote.py", "tests/core/run/test_runner.py", "tests/queries/test_plan.py"),
    "core/contract/source_code": ("tests/core/contract/test_source_code.py",),
    "core/run/gc": ("tests/queries/test_compare.py", "tests/core/run/test_import_artifact.py"),
    "lm/data/order": ("tests/lm/data/test_order.py", "tests/lm/data/test_order_oracle.py", "tests/lm/data/test_phases.py"),
    "lm/data/phases": ("tests/lm/data/test_phases.py",),
    "lm/data/reader": ("tests/lm/data/test_reader.py", "tests/lm/data/test_rank_slices.py", "tests/lm/data/test_pairs.py", "tests/stages/test_pretrain.py"),
    "lm/data/pairs": ("tests/lm/data/test_pairs.py", "tests/stages/test_dpo.py", "tests/stages/test_reference.py"),
    "lm/data/replayed_sequences": ("tests/lm/data/test_replayed_sequences.py",),
    "task_scores": ("tests/stages/test_evaluate.py", "tests/stages/test_evaluate_cuts.py"),
    "lm/infer/lm_eval_model": ("tests/lm/infer/test_harness.py", "tests/stages/test_evaluate_chats.py"),
    "mixture_sequences": ("tests/stages/test_sft_replay.py", "tests/stages/test_pretrain.py"),
    "lm/train/trainer": TRAINED,
    "lm/train/continuation": ("tests/lm/train/test_continuation.py", "tests/stages/test_continued_training.py"),
    "lm/checkpoints/receipt": ("tests/lm/checkpoints/test_receipt.py", "tests/queries/test_receipts.py"),
    "lm/train/replay": ("tests/lm/train/test_blame.py", "tests/stages/test_training_identity.py"),
    "lm/checkpoints/snapshot_folders": ("tests/lm/checkpoints/test_snapshots.py", "tests/lm/train/test_continuation.py"),
    "training_replay": ("tests/stages/test_training_replay.py", "tests/stages/test_training_identity.py"),
    "core/replays/replay_run": ("tests/core/replays/test_replay_run.py",),
    "text/match/suffix_array": ("tests/text/match/test_verbatim.py", "tests/stages/test_text_index.py"),
    "text/match/verbatim": ("tests/text/match/test_verbatim.py",),
    "text/match/example_texts": ("tests/stages/test_text_index.py", "tests/queries/test_trace_text_examples.py"),
    "text/match/quotes": ("tests/text/match/test_quotes.py",),
    "held_out_quotes": ("tests/stages/test_held_out_quotes.py",),
    "text_index": ("tests/stages/test_text_index.py",),
    "queries/tracing/outcomes": ("tests/queries/test_trace_tuning.py", "tests/queries/test_outcomes.py"),
    "queries/tracing/trace_text": ("tests/queries/test_trace_text.py", "tests/queries/test_trace_text_examples.py"),
    "queries/tracing/token_range": ("tests/queries/test_token_range.py", "tests/queries/test_trace_text.py"),
    "queries/tracing/indexed_texts": ("tests/queries/test_trace_text_indexes.py", "tests/queries/test_trace_text.py"),
    "queries/tracing/span_examples": ("tests/queries/test_trace_text_examples.py",),
    "queries/receipts": ("tests/queries/test_receipts.py",),
    "core/run/named_checkpoint": ("tests/stages/test_continued_training.py",),
    "lm/train/training_step": (*TRAINED, "tests/lm/train/test_step_guard.py"),
    "lm/train/forward_only": (*TRAINED, "tests/stages/test_reference.py"),
    "lm/train/starting_weights": TRAINED,
    "lm/zero/engine": TRAINED,
    "lm/zero/engine_state": ("tests/lm/zero/test_engine_start.py", *TRAINED),
    "lm/zero/deepspeed_settings": ("tests/lm/zero/test_engine_settings.py",),
    "lm/zero/stage_one": ("tests/lm/zero/test_stages.py", "tests/golden/test_stage_one.py"),
    "lm/zero/stage_three": ("tests/lm/zero/test_stages.py", *TRAINED),
    "lm/train/machine_memory": ("tests/lm/train/test_machine_memory.py",),
    "lm/model/training_memory": ("tests/lm/model/test_training_memory.py",),
    "lm/train/training_run": ("tests/stages/test_pretrain.py", "tests/stages/test_reference.py"),
    "lm/train/job": ("tests/lm/ranks/test_launch.py", *TRAINED),
    "lm/checkpoints/snapshot_writer": ("tests/lm/checkpoints/test_snapshot_writer.py",),
    "lm/checkpoints/checkpoint": ("tests/golden/test_trajectory.py", "tests/lm/infer/test_import_model.py", "tests/stages/test_export.py"),
    "lm/model/loss": ("tests/lm/model/test_loss.py", "tests/stages/test_dpo.py"),
    "lm/model/loss_dpo": ("tests/lm/model/test_loss.py", "tests/lm/train/test_trainer.py", "tests/stages/test_dpo.py"),
    "lm/model/attention": ("tests/lm/model/test_attention.py", "tests/lm/model/test_llama.py"),
    "lm/model/linear_cross_entropy": ("tests/lm/model/test_linear_cross_entropy.py", "tests/lm/model/test_loss.py"),
    "lm/model/rope": ("tests/lm/model/test_rope.py", "tests/lm/test_formulas.py", "tests/lm/model/test_llama.py"),
    "lm/optimizers/muon_step": ("tests/lm/optimizers/test_muon_step.py",),
    "lm/checkpoints/rewinds": ("tests/lm/train/test_rewinds.py",),
    "lm/checkpoints/snapshots": ("tests/lm/checkpoints/test_snapshots.py",),
    "lm/ranks/stall": ("tests/lm/ranks/test_stall.py",),
    "lm/train/blame": ("tests/lm/train/test_blame.py",),
    "lm/measures/judged_step": ("tests/lm/train/test_blame.py",),
    "core/replays/blame_node": ("tests/stages/test_blamed_steps.py",),
    "lm/train/step_guard": ("tests/lm/train/test_step_guard.py",),
    "lm/zero/update_gate": ("tests/lm/measures/test_step_figures.py", "tests/lm/train/test_step_guard.py"),
    "lm/measures/step_figures": ("tests/lm/measures/test_step_figures.py",),
    "lm/measures/update_ratio": ("tests/lm/measures/test_update_ratio.py",),
    "lm/measures/greedy_samples": ("tests/lm/measures/test_greedy_samples.py",),
    "lm/data/prefetch": ("tests/lm/data/test_prefetch.py",),
    "lm/model/dial": ("tests/lm/model/test_dial.py", "tests/stages/test_depth.py"),
    "queries/trials/scaling_fit": ("tests/queries/trials/test_scaling_fit.py",),
    "queries/trials/planned_size": ("tests/queries/trials/test_planned_size.py",),
    "lm/model/peak_flops": ("tests/lm/model/test_peak_flops.py",),
    "core/trackers/tracker": ("tests/core/trackers/test_trackers.py",),
    "core/trackers/tensorboard_tracker": ("tests/core/trackers/test_trackers.py",),
    "core/trackers/wandb_tracker": ("tests/core/trackers/test_trackers.py",),
    "text/tokenizer/llama_split": ("tests/text/tokenizer/test_llama_split.py",),
    "text/tokenizer/word_counts": ("tests/text/tokenizer/test_word_counts.py",),
    "text/tokenizer/pair_table": ("tests/text/tokenizer/test_pair_table.py",),
    "text/tokenizer/merge_steps": ("tests/text/tokenizer/test_merge_learner.py",),
    "text/tokenizer/merge_learner": ("tests/text/tokenizer/test_merge_learner.py",),
    "text/tokenizer/bpe_training": ("tests/text/tokenizer/test_bpe.py", "tests/text/tokenizer/test_merge_learner.py"),
    "text/tokenizer/vocabulary_use": ("tests/text/tokenizer/test_vocabulary_use.py",),
    "word_tables": ("tests/stages/test_word_tables.py",),
    "vocabulary_report": ("tests/stages/test_vocabulary_report.py",),
    "text/tokenizer/token_bytes": ("tests/text/tokenizer/test_token_bytes.py",),
    "text/tokenizer/token_engine": ("tests/text/tokenizer/test_token_engine.py", "tests/stages/test_encode.py"),
    "text/tokenizer/engine_check": ("tests/text/tokenizer/test_engine_check.py", "tests/stages/test_encode.py"),
    "text/tokenizer/canaries": ("tests/stages/test_canary_files.py",),
    "canary_files": ("tests/stages/test_canary_files.py",),
    "encode": ("tests/stages/test_encode.py", "tests/stages/test_encode_wide.py"),
    "training_texts": ("tests/stages/test_pretrain.py", "tests/stages/test_sft.py"),
    "lm/schedules/schedule": ("tests/lm/schedules/test_schedule.py", "tests/lm/test_formulas.py"),
    "lm/schedules/schedule_wsd": ("tests/lm/schedules/test_schedule.py",),
    "mix": ("tests/stages/test_mix.py", "tests/stages/test_mix_phases.py", "tests/stages/test_mix_repeats.py",
            "tests/text/tokens/test_validation.py", "tests/stages/test_report_values.py"),
    "text/tokens/packing": ("tests/text/tokens/test_packing.py", "tests/stages/test_mix.py"),
    "text/tokens/mix_settings": ("tests/text/tokens/test_mixture_plan.py", "tests/text/tokens/test_buckets.py", "tests/stages/test_mix.py"),
    "text/tokens/mixture_plan": ("tests/text/tokens/test_mixture_plan.py", "tests/stages/test_mix_phases.py"),
    "text/tokens/source_weights": ("tests/text/tokens/test_source_weights.py",),
    "text/tokens/buckets": ("tests/text/tokens/test_buckets.py",),
    "text/tokens/blocks": ("tests/text/tokens/test_blocks.py",),
    "queries/planned_mixture": ("tests/queries/test_planned_mixture.py",),
    "text/tokens/spans": ("tests/text/tokens/test_spans.py", "tests/stages/test_mix.py"),
    "text/match/ngrams": ("tests/text/match/test_ngrams_many.py", "tests/text/match/test_ngrams.py", "tests/stages/test_contamination.py",
                          "tests/stages/test_decontaminate.py"),
    "contamination": ("tests/stages/test_contamination.py", "tests/stages/test_contamination_flags.py", "tests/stages/test_report_values.py"),
    "text/basics/verdicts": ("tests/text/basics/test_verdicts.py",),
    "text/basics/sequential_test": ("tests/text/basics/test_sequential_test.py", "tests/queries/trials/test_paired_verdict.py"),
    "queries/trials/matched_sides": ("tests/queries/trials/test_matched_sides.py", "tests/queries/trials/test_paired_verdict.py"),
    "queries/trials/paired_verdict": ("tests/queries/trials/test_paired_verdict.py",),
    "text/basics/claims": ("tests/text/basics/test_claims.py",),
    "report": ("tests/stages/test_report_values.py", "tests/stages/test_report.py"),
    "queries/what_if": ("tests/queries/test_what_if.py",),
    "queries/tracing/trace_start": ("tests/queries/test_trace_start.py", "tests/queries/test_trace_continued.py", "tests/queries/test_trace.py"),
    "queries/tracing/trace": ("tests/queries/test_trace_continued.py", "tests/queries/test_lineage.py", "tests/queries/test_compare.py"),
    "queries/tracing/document_rows": ("tests/queries/test_document_rows.py", "tests/queries/test_trace_continued.py"),
    "queries/tracing/drop_evidence": ("tests/queries/test_trace_evidence.py", "tests/queries/test_trace_hostile.py"),
    "queries/tracing/rule_thresholds": ("tests/queries/test_rule_thresholds.py", "tests/queries/test_trace_evidence.py"),
    "queries/tracing/trace_lines": ("tests/queries/test_trace_hostile.py", "tests/queries/test_trace_evidence.py"),
    "queries/affected": ("tests/queries/test_affected.py", "tests/queries/test_compare.py"),
    "queries/planned_ranges": ("tests/queries/test_planned_ranges.py", "tests/queries/test_plan_numbers.py"),
    "queries/plan": ("tests/queries/test_plan_misses.py", "tests/queries/test_plan.py"),
    "queries/training_size": ("tests/queries/test_plan_numbers.py",),
}  # fmt: skip
"""Module below stages/ -> test files, the most specific first."""

NEVER = (
    "tests/architecture",
    "tests/flows",
    "tests/chaos",
    "tests/bench",
    "tests/dashboards",
    "tests/mutation",
    "tests/core/index/test_database_fire.py",
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
    left_out = (*named, *SLOW)
    found = (*named, *(p for p in others if p not in left_out and not p.startswith(NEVER) and dotted in imported(project / p)))
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
