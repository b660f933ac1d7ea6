"""Finds settings that are valid alone but contradict each other, when a recipe is read and before any work.

A check that depends on settings alone belongs in a config class. If it needs several sections, it belongs here. A stage checks what
depends on the data. The checks cover only the nodes that run, not those that are off or that an imported artifact makes unnecessary.
Cost: negligible.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any

from flows.off_nodes import causes, left_out
from flows.pipeline import downstream, models, pipeline, skipped_nodes
from stages.questions.planned_ranges import pretraining_phases
from stages.record.contract.errors import RecipeError
from stages.record.contract.recipe import Recipe
from stages.record.contract.recipe_errors import following, refuse_all
from stages.record.settings import StageConfig
from stages.record.store.external import external_fields

Sections = Mapping[str, Any]
"""node -> config. The config classes of the stages are not imported here, so a config is typed as Any."""
Fault = tuple[str, str, str]
"""(what is wrong, which setting, what to do)"""


def refuse_contradictions(recipe: Recipe) -> None:
    """Refuses a recipe whose settings contradict each other. All contradictions are one RecipeError."""
    twice = [
        RecipeError(f"{node} is imported and turned off.", where=f"{recipe.source}: {node}", do=f"Remove import.{node} or `{node}: off`.")
        for node in recipe.off
        if node in recipe.imports
    ]
    refuse_all(twice, recipe.source)
    without = left_out(recipe)
    away = skipped_nodes(without)
    running = {node: config for node, config in recipe.sections.items() if node not in away}
    faults = [*_unread_sources(recipe, away), *_faults(running, without.off, recipe.runtime)]
    refuse_all([RecipeError(what, where=f"{recipe.source}: {setting}", do=do) for what, setting, do in faults], recipe.source)


def _unread_sources(recipe: Recipe, away: Collection[str]) -> Iterator[Fault]:
    """Yields sections that name something to read, beside an import that makes their node unnecessary."""
    for node in (node for node in recipe.sections if node in away and node in recipe.beside_imports):
        config = recipe.sections[node]
        if type(config).off is StageConfig.off or config.off:  # it reads other nodes, or nothing is named
            continue
        instead = [f"import.{other.name}" for other in downstream(node) if other.name in recipe.imports]
        named = dict.fromkeys(f"{node}.{field.partition('.')[0]}" for field, _, files in external_fields(config) if files)
        setting, imports = " and ".join(named) or node, " and ".join(instead)
        if instead:
            yield (
                f"{setting} would not be read: {node} does not run because of {imports}.",
                f"{setting}, {imports}",
                f"Remove {setting}, or remove {imports}.",
            )


def _faults(running: Sections, off: Mapping[str, str], runtime: Any) -> Iterator[Fault]:
    yield from _no_classifier(running, off)
    yield from _no_signals(running, off)
    yield from _no_baselines(running, off)
    yield from _no_replay(running, off)
    yield from _no_tasks(running, off)
    yield from _batches(running, runtime)
    yield from _schedules(running)
    yield from _second_reading(running)
    yield from _too_few_pairs(running)
    yield from _unknown_sources(running)
    yield from _no_documentation(running, off)
    yield from _leaking_split(running)
    yield from _copies_out_of_sight(running)


def _no_classifier(running: Sections, off: Mapping[str, str]) -> Iterator[Fault]:
    if "filter" in running and running["filter"].quality.min_score is not None and "train_quality" in off:
        yield (
            "There is no classifier to score documents with.",
            "filter.quality.min_score",
            "Name texts as train_quality.positives or a model as train_quality.model, or set it to null.",
        )


def _no_signals(running: Sections, off: Mapping[str, str]) -> Iterator[Fault]:
    for node in (node for node in pipeline() if node.name in running):
        for role, setting, signal in running[node.name].needed_signals:
            if (read := node.inputs[role]) in off:
                yield (
                    f"It needs {signal}, which {read} stores, and {read} is off.",
                    f"{node.name}.{setting}",
                    f"Turn {read} on, or remove {signal} from {node.name}.{setting}.",
                )


def _copies_out_of_sight(running: Sections) -> Iterator[Fault]:
    if "filter" not in running or "dedup" not in running:
        return
    if both := sorted(set(running["filter"].url.remove) & set(running["dedup"].remove_copies_of)):
        yield (
            f"The filter removes {both[0]} before dedup can find its copies, which would stay.",
            "filter.url.remove, dedup.remove_copies_of",
            "Name it in dedup.remove_copies_of alone: it removes the pages too.",
        )


def _batches(running: Sections, runtime: Any) -> Iterator[Fault]:
    training = [node for node in models().values() if node in running]
    ranks, device = runtime.ranks, ("nodes x " if runtime.nodes > 1 else "") + ("gpus" if runtime.gpus else "cpu_ranks")
    together = ranks * runtime.micro_batch_size
    for node in training:
        continued = getattr(running[node], "continue_from", None)  # then steps of the ramp may be behind; the stage checks those ahead
        ramp = (("batch_ramp: global_batch_size", one.global_batch_size) for one in (() if continued else running[node].batch_ramp))
        for field, batch in (*ramp, ("global_batch_size", running[node].global_batch_size)):
            if batch % together:
                yield (
                    f"{node}.{field} {batch:,} is not divisible by runtime.{device} {ranks:,} x runtime.micro_batch_size "
                    f"{runtime.micro_batch_size:,} = {together:,}.",
                    f"{node}.{field.partition(':')[0]}",
                    f"Change one of them, for example {node}.{field}={-(-batch // together) * together}.",
                )
        yield from _early_end(node, running[node])


def _early_end(node: str, config: Any) -> Iterator[Fault]:
    steps, ramp = config.budget.steps, config.batch_sizes[-1].first_step
    if steps is not None and steps <= ramp and not config.budget.partial:
        yield (
            f"{node}.budget.steps {steps:,} ends before {node}.batch_ramp, which takes {ramp:,} steps.",
            f"{node}.budget, {node}.batch_ramp",
            f"Train for longer, shorten the ramp, or say {node}.budget.partial=true.",
        )


def _schedules(running: Sections) -> Iterator[Fault]:
    """Yields schedules that are longer than a budget in tokens. The sequence lengths turn tokens into steps; epochs depend on the data."""
    from stages.training.data.phases import planned_phases

    if "mix" not in running:
        return
    for node in models().values():
        if node not in running or running[node].budget.tokens is None or getattr(running[node], "continue_from", None):
            continue  # the batches of the steps before a continued run decide how many steps the tokens are; pretrain checks it
        config, mix = running[node], running["mix"]
        try:
            sizes = config.batch_sizes  # only pretrain reads the ranges of the mixture; all sequences of the others have one length
            phases = pretraining_phases(sizes, mix) if node == "pretrain" else planned_phases(mix.seq_len, sizes)
        except ValueError as error:
            yield str(error), f"mix.phases, {node}.global_batch_size", "Change one of them."
            continue
        steps, lengths = config.budget.in_steps(phases), {phase.seq_len for phase in phases}
        if fault := config.schedule.fault(steps, config.warmup_of(steps)):
            most = f"{'up to ' if len(lengths) > 1 else ''}{max(lengths):,}"
            yield (
                f"{node}.budget.tokens {config.budget.tokens:,} is {steps:,} steps of {config.global_batch_size:,} sequences of {most} tokens: {fault}.",
                f"{node}.warmup_steps, {node}.schedule, {node}.budget",
                following(node, fits) if (fits := config.fitting(steps)) else "Change one of them.",
            )


def _second_reading(running: Sections) -> Iterator[Fault]:
    """Yields a budget in epochs that reads a mixture with phases again. Whether one in steps or tokens does, only the packed mixture shows."""
    if "mix" not in running or "pretrain" not in running:
        return
    epochs, phases = running["pretrain"].budget.epochs, len(getattr(running["mix"], "phases", ()))
    if phases > 1 and epochs is not None and epochs > 1:
        yield (
            f"pretrain.budget.epochs is {epochs:g}, but a mixture with {phases} phases is read at most once.",
            "pretrain.budget.epochs, mix.phases",
            "Set pretrain.budget.epochs=1, and give the phases the tokens of the whole training.",
        )


def _too_few_pairs(running: Sections) -> Iterator[Fault]:
    if "reference" not in running or "dpo" not in running:
        return
    pairs, batch = running["reference"].max_pairs, running["dpo"].global_batch_size
    if pairs is not None and pairs < batch:
        yield (
            f"reference.max_pairs {pairs:,} is less than one batch of dpo, which has {batch:,} pairs.",
            "reference.max_pairs",
            "Score more pairs, or lower dpo.global_batch_size.",
        )


def _unknown_sources(running: Sections) -> Iterator[Fault]:
    """Yields names of sources that the crawl does not make. If the crawl runs, its settings name every source."""
    if "crawl" not in running:
        return
    crawl = running["crawl"]
    known = crawl.source_names
    named = []
    if "mix" in running:
        named.append(("mix.weights", running["mix"].named_sources))
    if "dedup" in running and not running["dedup"].against:
        named.append(("dedup.source_priority", running["dedup"].source_priority))
    for setting, sources in named:
        for unknown in [source for source in sources if source not in known][:1]:
            do = f"The sources are: {', '.join(known)} (crawl.source, crawl.sources, crawl.site.source and crawl.docs.source name them)."
            yield f"{setting} names {unknown[:80]!r}, which is not a source of the crawl.", setting, do


def _no_baselines(running: Sections, off: Mapping[str, str]) -> Iterator[Fault]:
    gone = next((node for node in ("mix", "encode") if node in off), "")
    for node, config in running.items():
        if gone and node.startswith("evaluate@") and config.baselines:
            yield (
                f"{node}.baselines counts training tokens, but {gone} is off ({off[gone]}).",
                f"{node}.baselines",
                f"Set {node}.baselines to false, or turn {gone} on.",
            )


def _no_tasks(running: Sections, off: Mapping[str, str]) -> Iterator[Fault]:
    for node, config in running.items():
        if "benchmarks" in off and node.startswith("evaluate@") and config.plain_tasks:
            yield (
                f"{node}.plain_tasks names tasks, but benchmarks is off ({off['benchmarks']}).",
                f"{node}.plain_tasks",
                f"Remove {node}.plain_tasks, or turn benchmarks on.",
            )


def _no_replay(running: Sections, off: Mapping[str, str]) -> Iterator[Fault]:
    gone = [node for node in ("mix", "encode") if node in off]
    if not gone or "sft" not in running or not running["sft"].replay:
        return
    why = {cause: off[cause].partition(": ")[0] for node in gone for cause in causes(node, off)}
    ways = {cause: f"turn on {cause}" for cause in why}
    if "crawl" in ways and "crawl.warcs" in off["crawl"]:  # it is not turned off: it has nothing to read
        ways["crawl"] = "give documents (crawl.warcs, crawl.sources, crawl.site or crawl.docs)"
    yield (
        f"sft.replay trains on pretraining sequences again, but {' and '.join(gone)} {'are' if gone[1:] else 'is'} off "
        f"({'; '.join(f'{cause}: {what}' for cause, what in why.items())}).",
        "sft.replay",
        f"Set sft.replay to 0, or {' and '.join(ways.values())}, or import {' and '.join(gone)}; of a model that Loam trained, those it was made from.",
    )


def _no_documentation(running: Sections, off: Mapping[str, str]) -> Iterator[Fault]:
    if "benchmarks" not in off and ("benchmarks" not in running or running["benchmarks"].docstrings is not None):
        return
    for node in ("conversations", "preferences"):
        if node in running and running[node].docstrings is not None:
            yield (
                f"{node}.docstrings needs the answers that benchmarks reads from documentation, but benchmarks.docstrings is not set.",
                f"{node}.docstrings",
                f"Set benchmarks.docstrings, or set {node}.docstrings to null and name files.",
            )


def _leaking_split(running: Sections) -> Iterator[Fault]:
    """Yields a split that leaks.

    Both splits sample by the same hash of the answer, so the larger share contains the answers of the smaller.
    """
    if "conversations" not in running or "preferences" not in running:
        return
    chats, pairs = running["conversations"].validation_frac, running["preferences"].validation_frac
    if chats < pairs:
        yield (
            f"preferences holds {pairs:g} of the answers out, conversations only {chats:g}: sft would train on answers that dpo is measured on.",
            "conversations.validation_frac",
            f"Set conversations.validation_frac to {pairs:g} or more.",
        )
