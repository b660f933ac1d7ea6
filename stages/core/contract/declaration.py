"""The contract between a stage and the runner: config, inputs, outcome, context, and the record that declares a stage.

A stage is a plain function `run(config, inputs, out, ctx) -> Outcome`. It reads published artifacts (`inputs`, by role),
writes files into the folder `out`, and touches nothing else but `ctx.scratch`. The runner does the rest: key, cached or missing,
record counts, manifest, publication, index. Everything that decides the bytes is in config, seed, inputs and the named
distributions; everything in `ctx.runtime` must not change the bytes of a data stage.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from pydantic import AfterValidator, Field

from stages.core.contract.report_section import SectionOf
from stages.core.contract.secrets import without_secrets
from stages.core.contract.side_table import SideTable
from stages.core.store.names import name_fault
from stages.settings import StageConfig

if TYPE_CHECKING:
    from stages.core.contract.recipe import Runtime


@dataclass(frozen=True)
class External:
    """Marks a config field whose values name things outside the home folder. They enter the key by content, in the order of the field.

    files: paths, globs or fsspec URIs; resolved to `ExternalFile`s, keyed by sha256, a remote one with a strong ETag by ETag and size.
    packages: installed distributions ("stdlib" is the running Python); keyed by their names and versions.
    artifacts: published artifacts that are no input of the pipeline, by name ("dedup-3") or folder; keyed by their digest.
    named: the name decides the output too (a task is named after its file; a cluster names the corpus that holds the kept document), so
    it enters the key: of a file the base name, of an artifact "<node>/<folder>". A file that is read by its ending, or that bad_records.jsonl
    can name, is a named one.
    """

    form: Literal["files", "packages", "artifacts"]
    named: bool = False


NotEmpty = Annotated[str, Field(min_length=1)]
ExternalFiles = Annotated[tuple[NotEmpty, ...], External("files")]
NamedFiles = Annotated[tuple[NotEmpty, ...], External("files", named=True)]
Packages = Annotated[tuple[NotEmpty, ...], External("packages")]
NamedArtifacts = Annotated[tuple[NotEmpty, ...], External("artifacts", named=True)]


def _a_name(value: str) -> str:
    if fault := name_fault(value):
        raise ValueError(
            f"the name {ascii(value)[:80]} {fault}; use letters a-z, digits, '.', '_' and '-', a letter or digit first, at most 64"
        )
    return value


Name = Annotated[str, AfterValidator(_a_name)]
"""A name by the one rule of stages/core/store/names."""


@dataclass(frozen=True)
class ExternalFile:
    """One resolved external input. `identity` is what enters the key: "sha256:…", "etag:…:<bytes>" or "artifact:<digest>".

    uri: of an artifact, its folder.
    name: the base name of a file, or "<node>/<folder>" of an artifact, where it enters the key too (External.named), else empty.
    """

    uri: str
    bytes: int
    identity: str
    name: str = ""

    @property
    def sha256(self) -> str:
        """Hex digest of the content; of the identity where that is an ETag (the bytes were not read)."""
        import hashlib

        kind, _, value = self.identity.partition(":")
        return value if kind == "sha256" else hashlib.sha256(self.identity.encode()).hexdigest()


@dataclass(frozen=True)
class RecordCounts:
    """What came in and what became of it. rows_in = kept + changed + dropped, and the same in characters.

    chars_removed is what changing kept rows took away (negative where it added). The runner refuses record counts that do not balance.
    """

    unit: str = "documents"
    rows_in: int = 0
    kept: int = 0
    changed: int = 0
    dropped: Mapping[str, int] = field(default_factory=dict)
    chars_in: int = 0
    chars_out: int = 0
    chars_removed: int = 0
    chars_dropped: Mapping[str, int] = field(default_factory=dict)

    def imbalance(self) -> str:
        """A sentence that says what does not balance; empty when the record counts balance."""
        rows = self.kept + self.changed + sum(self.dropped.values())
        if rows != self.rows_in:
            return f"{self.rows_in} {self.unit} in, but kept {self.kept} + changed {self.changed} + dropped {sum(self.dropped.values())} = {rows}"
        chars = self.chars_out + self.chars_removed + sum(self.chars_dropped.values())
        if chars != self.chars_in:
            return (
                f"{self.chars_in} characters in, but out {self.chars_out} + removed {self.chars_removed} "
                f"+ dropped {sum(self.chars_dropped.values())} = {chars}"
            )
        return ""

    def __add__(self, other: RecordCounts) -> RecordCounts:
        return RecordCounts(
            unit=self.unit,
            rows_in=self.rows_in + other.rows_in,
            kept=self.kept + other.kept,
            changed=self.changed + other.changed,
            dropped=_merged(self.dropped, other.dropped),
            chars_in=self.chars_in + other.chars_in,
            chars_out=self.chars_out + other.chars_out,
            chars_removed=self.chars_removed + other.chars_removed,
            chars_dropped=_merged(self.chars_dropped, other.chars_dropped),
        )


@dataclass(frozen=True)
class Outcome:
    """What a stage tells the runner when it is done.

    rows, tokens: size of the artifact in its own unit. record counts: None where no records are kept or dropped.
    summary: scalar results for the metric table, the report and `lineage show` (plain numbers and strings).
    identity: names of the files in `out` over which the digest is taken; empty means all files (a warc
    artifact's digest leaves out dates, so it names only its list of records).
    """

    rows: int = 0
    tokens: int = 0
    record_counts: RecordCounts | None = None
    summary: Mapping[str, float | int | str | None] = field(default_factory=dict)
    identity: tuple[str, ...] = ()


@dataclass(frozen=True)
class Artifact:
    """A published artifact: `path` is its folder, `manifest` the parsed manifest.json."""

    path: Path
    manifest: Mapping[str, Any]

    @property
    def summary(self) -> Mapping[str, Any]:
        return self.manifest["summary"]


@dataclass(frozen=True)
class Context:
    """What a running stage may use besides its config and inputs. Frozen; made by the runner.

    progress(done, total, unit, note): how far the stage is; call it as often as you like, the runner thins it out.
    log(line): one line for the user. Numbers over time go into a side table (metrics.parquet), the result into Outcome.summary.
    drop(reason, where, record): a record that cannot be read; counted, kept in bad_records.jsonl, fails the stage past
    the recipe's `max_bad_records`. files(field): the resolved files of an external field ("warcs").
    scratch: a folder that survives a kill and is handed back when the stage is started again with the same key and code.
    sections: role -> what the report shows of that input (Stage.sections); empty for a stage that does not read every node.
    """

    node: str
    seed: int
    runtime: Runtime
    scratch: Path
    progress: Callable[..., None]
    log: Callable[[str], None]
    drop: Callable[[str, str, str], None]
    files: Callable[[str], tuple[ExternalFile, ...]]
    sections: Mapping[str, SectionOf] = field(default_factory=dict)

    def child_environment(self) -> dict[str, str]:
        """This process's variables without credentials: for a process that needs none, and whose output nobody cleans."""
        return without_secrets(os.environ)


@dataclass(frozen=True)
class Importer:
    """How a stage's kind of artifact is made of files that a user brings.

    takes: patterns of the files it looks for below a given folder (pathlib's: "*.json" there, "**/*.parquet" at any depth).
    take(files, out, ctx): checks the files and writes the artifact into `out`; `ctx.drop` counts and names a record that cannot be
    taken, and one such record refuses the whole import. Raises RecipeError where the pipeline could not use the files.
    """

    takes: tuple[str, ...]
    take: Callable[[tuple[ExternalFile, ...], Path, Context], Outcome]


EVERY_NODE = {"{node}": "{node}"}
"""As inputs: every other node, in DAG order, under its own name as role. Optional, but for nodes that nothing else reads."""


@dataclass(frozen=True)
class Stage:
    """The declaration of a stage, the last statement of its module: `STAGE = Stage(...)`.

    The DAG, the index's views, the report's sections and the README's table follow from it (flows/pipeline.py).

    inputs: role -> node that it reads. "{model}" in a role or node stands for every model (in a stage that is `per_model`, for its own),
    "{checkpoint}" in a `per_model` stage for the node that trains the model, "{node}" for every node (EVERY_NODE).
    output: the kind of artifact; an imported artifact can stand in for a node of the same kind. versions: one line per change of behaviour,
    the newest last; their number is the stage's version and enters the key. distributions: installed distributions whose version decides
    the output's bytes.
    deterministic: True for a data stage (a forced rebuild must be identical), False for training on floating point.
    optional: roles that may be absent, when an imported artifact stands in for everything else that needs them.
    import: how files of a user become an artifact of this stage; None where only artifacts of another home can be imported.
    fault: what is wrong with the files in a folder that an artifact of another home consists of, as a phrase, "" where nothing is; for a
    stage whose digest counts a list that it makes of the other files.
    uses_gpus: whether the stage computes on the GPUs that runtime.gpus gives it; such stages run one at a time on a machine.
    does: what the stage does, as one line of the README's table. tables: its side tables, which the index shows as views.
    section: its part of the report; None where it has none. model: the name of the model that its checkpoint is; "" of none.
    per_model: whether it runs once for every model, as node "<stage>@<model>".
    sections: role -> section function, for a stage that reads every node; flows/pipeline.py fills it in, a module leaves it out.
    """

    name: str
    config: type[StageConfig]
    run: Callable[[Any, Mapping[str, Artifact], Path, Context], Outcome]
    inputs: Mapping[str, str]
    output: str
    versions: tuple[str, ...]
    distributions: tuple[str, ...] = ()
    deterministic: bool = True
    uses_gpus: bool = False
    optional: tuple[str, ...] = ()
    importer: Importer | None = None
    fault: Callable[[Path], str] | None = None
    does: str = ""
    tables: tuple[SideTable, ...] = ()
    section: SectionOf | None = None
    model: str = ""
    per_model: bool = False
    sections: Mapping[str, SectionOf] = field(default_factory=dict)

    @property
    def version(self) -> int:
        return len(self.versions)

    @property
    def modules(self) -> tuple[str, ...]:
        """The modules whose code makes the artifact: the stage's own and those of the sections that it shows."""
        return tuple(sorted({self.run.__module__, *(section.__module__ for section in self.sections.values())}))


def _merged(a: Mapping[str, int], b: Mapping[str, int]) -> dict[str, int]:
    return {k: a.get(k, 0) + b.get(k, 0) for k in sorted({*a, *b})}
