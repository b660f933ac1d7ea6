"""Finds the exported model that a name means, and says whether it chats or completes texts.

Guarantee: read-only.
Cost: some queries of the index and one manifest. The weights are not read.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from stages.questions.tracing.trace_start import newest_artifact
from stages.record.contract.declaration import Artifact
from stages.record.contract.errors import RecipeError
from stages.record.index import database, lookup
from stages.record.store import manifest

MODEL = "model"
"""The kind of an exported model."""
EXPORT_FIRST = "Run a recipe up to an export first, for example `loam run tiny --until export@dpo`."


@dataclass(frozen=True)
class ExportedModel:
    """A model in the format of Hugging Face.

    Attributes:
        artifact: The artifact of export.
        name: What the DAG calls the model: base, sft or dpo.
        checkpoint: Id of the artifact with the weights that were exported, "<node>/<folder>".
        tokenizer: Id of the artifact of its tokenizer.
        chats: Whether it was tuned on conversations. It then answers messages, else it continues a text.
    """

    artifact: Artifact
    name: str
    checkpoint: str
    tokenizer: str
    chats: bool

    @property
    def alias(self) -> str:
        """The alias of the artifact, for example "export@dpo-1"."""
        return str(self.artifact.manifest["alias"])


def find_model(home: Path, name: str, models: Mapping[str, str]) -> ExportedModel:
    """Returns the exported model that a name means.

    Args:
        home: The home folder.
        name: A model of the DAG, an export by any name, a checkpoint, for its newest export, or a run, for its best model. Empty for the best
            model of the newest run that has one.
        models: Model -> the node that trains it, from the first trained to the best.

    Raises:
        RecipeError: There is no such model.
    """
    best_first = [f"export@{model}" for model in reversed([*models])]
    if name in models:
        name = f"export@{name}"
    if name and (run := lookup.find_run(home, name)):
        found = _of_run(home, run, best_first)
        where = f"run {name}"
    elif name:
        found = _export_of(home, str(lookup.latest_artifact(home, name)["artifact_id"]))
        where = name
    else:
        found, where = newest_artifact(home, best_first), str(home)
    if not found:
        raise RecipeError("There is no exported model.", where=where, do=EXPORT_FIRST)
    return _opened(manifest.read_artifact(home / "artifacts" / found), models)


def _of_run(home: Path, run: str, best_first: list[str]) -> str:
    """Returns the id of the best exported model of a run; empty if it has none. run: its id."""
    sql = (
        "SELECT artifact_id FROM node_run JOIN artifact USING (artifact_id) WHERE node_run.run_id = $1 AND list_contains($2, artifact.node) "
        "ORDER BY list_position($2, artifact.node) LIMIT 1"
    )
    found = database.query(home, sql, [run, best_first])[1]
    return str(found[0][0]) if found else ""


def _export_of(home: Path, artifact: str) -> str:
    """Returns the id of an export itself, or of the newest export of a checkpoint; empty for anything else. artifact: an id."""
    sql = (
        "SELECT a.artifact_id FROM artifact a LEFT JOIN edge ON child = a.artifact_id AND role = 'checkpoint' LEFT JOIN run ON run.run_id = a.run_id "
        f"WHERE a.kind = $2 AND $1 IN (a.artifact_id, parent) ORDER BY coalesce(run.seq, 0) DESC, {lookup.alias_number('a.alias')} DESC LIMIT 1"
    )
    found = database.query(home, sql, [artifact, MODEL])[1]
    return str(found[0][0]) if found else ""


def _opened(artifact: Artifact, models: Mapping[str, str]) -> ExportedModel:
    inputs = artifact.manifest["inputs"]
    checkpoint, tokenizer = inputs["checkpoint"]["artifact"], inputs["tokenizer"]["artifact"]
    name = artifact.manifest["node"].partition("@")[2]
    return ExportedModel(artifact, name, checkpoint, tokenizer, chats=name != next(iter(models)))
