"""Imports a user's files, or an artifact of another home, as an artifact with stated provenance.

Guarantee: the stage that makes a kind checks the files, so an imported artifact meets the expectations of the rest of the pipeline. It is
published whole or not at all. Importing the same files again finds the artifact cached. An artifact of another home is refused unless its
manifest keeps the schema, its key is that of its parts, its digest is that of its files, every file is a regular one with the recorded
bytes, and the list that the digest counts is what its stage would make of the other files (Stage.fault). It keeps key, digest and content.
All its files count in the keys of artifacts that are made from it. A node never finds an imported artifact as its cached one: it uses an
imported artifact only where a recipe's `import` names it (see runner.find_hit).
Cost: one read of the files, and what the stage writes. The runner does everything else: lease, scratch, record counts, manifest.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import shutil
import stat
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.core.contract.declaration import Artifact, Context, ExternalFile, Importer, Outcome, Stage
from stages.core.contract.errors import LoamError, RecipeError, VerificationError, of_the_disk
from stages.core.contract.runtime import Runtime
from stages.core.contract.secrets import refuse_in_settings
from stages.core.contract.source_code import edited
from stages.core.contract.states import NodeState
from stages.core.contract.strict_json import BadJsonError, read_object
from stages.core.index import database
from stages.core.run import node_job, runner
from stages.core.store import external, integrity, key, manifest, manifest_schema, names, runs
from stages.core.store.external import sha256_file
from stages.core.store.lease import lease
from stages.core.tables.jsonl import base_name
from stages.settings import StageConfig

SHOWN = 8  # bad records named in the message
MAX_PROVENANCE = 4000  # characters


def import_artifact(home: Path, node: str, stage: Stage, paths: Sequence[str], provenance: str, report: runner.Report) -> runner.Result:
    """Returns the artifact of `node` made from files or folders (state BUILT), or the one that exists already (CACHED).

    Args:
        home: The home folder.
        node: The node whose artifact is imported.
        stage: Its stage.
        paths: Files and folders of the user, or one folder of an artifact of another home.
        provenance: Where the files come from and what may be done with them, in the user's words; one line.
        report: Receives events.

    Raises:
        RecipeError: The pipeline could not use the files, or the provenance is missing or not valid.
        VerificationError: An artifact of another home is not what its manifest says.
    """
    if not provenance.strip():
        raise RecipeError(
            "An imported artifact needs its provenance.", where=f"node {node}", do="Say where the files come from: --provenance TEXT."
        )
    refuse_in_settings(provenance, f"loam lineage import {node}", "provenance")
    if not provenance.isprintable() or len(provenance) > MAX_PROVENANCE:
        raise RecipeError(
            f"The provenance is not one line of at most {MAX_PROVENANCE:,} printable characters.",
            where=f"loam lineage import {node}",
            do="Shorten it, and take line breaks and control characters out.",
        )
    with runs.hold_home(home):
        if len(paths) == 1 and _is_artifact(Path(paths[0]), stage):
            result = _import_artifact(home, node, stage, Path(paths[0]), provenance.strip())
        else:
            result = _import_files(home, node, stage, paths, provenance.strip(), report)
        database.update(home)
    return result


def _import_files(home: Path, node: str, stage: Stage, paths: Sequence[str], provenance: str, report: runner.Report) -> runner.Result:
    if stage.importer is None:
        raise RecipeError(
            f"No files of one's own can become the {stage.output} artifact of {node}.",
            where=", ".join(paths),
            do="Name the folder of an artifact of another home (it holds a manifest.json).",
        )
    files = _files(home, node, stage.importer, paths)
    parts = {
        "node": node,
        "version": stage.version,
        "code": edited(stage.name, stage.version, *stage.modules),
        "imported": [f"{file.name}={file.identity}" for file in files],
    }
    taking = replace(stage, run=_taking(stage, stage.importer, files))
    runtime, found = Runtime.model_validate({}), {"imported": files}
    job = node_job.NodeJob(node, taking, StageConfig(), 0, runtime, {}, found, parts, key.key_of(parts), provenance)
    try:
        return runner.run_node(home, job, "", report)
    except LoamError:
        shutil.rmtree(runner.scratch_path(home, job), ignore_errors=True)
        raise


def _files(home: Path, node: str, importer: Importer, paths: Sequence[str]) -> tuple[ExternalFile, ...]:
    """Returns the given files with sha256 and name. The files of a folder are in the order of their paths."""
    wanted = ", ".join(importer.takes)
    found: list[Path] = []
    for path in map(Path, paths):
        if not _is_there(path):
            raise RecipeError(f"There is no file or folder {path}.", where=f"node {node}", do="Give paths on this machine.")
        below = sorted({p for pattern in importer.takes for p in path.glob(pattern) if p.is_file()}) if path.is_dir() else [path]
        if (
            not below
            or not all(p.is_file() for p in below)
            or not all(any(fnmatch.fnmatch(p.name, t.rpartition("/")[2]) for t in importer.takes) for p in below)
        ):
            raise RecipeError(
                f"{path} holds no file that {node} could import." if path.is_dir() else f"{path} is no file that {node} could import.",
                where=os.fspath(path.absolute()),
                do=f"Name files, or a folder that holds them: {wanted}.",
            )
        found += below
    for path in found:
        if fault := next((c for c in path.name if not c.isprintable()), ""):
            raise RecipeError(
                f"The file name {path.name!a} holds {fault!a}, which cannot be shown.", where=f"node {node}", do="Rename the file: a source is named after it."
            )  # fmt: skip
    memory = external.load_memory(home)
    before = dict(memory)
    try:
        files = external.resolve_files([glob.escape(os.fspath(p)) for p in found], memory, f"node {node}")
    except OSError as error:
        raise RecipeError(
            f"A file cannot be read: {error.strerror}.", where=str(error.filename), do="Mend its permissions, or fetch it again."
        ) from None
    if memory != before:
        external.save_memory(home, memory)
    return tuple(replace(file, name=base_name(file)) for file in files)


def _is_there(path: Path) -> bool:
    try:
        return path.exists()
    except (OSError, ValueError):  # the path is too long or contains NUL
        return False


def _taking(
    stage: Stage, importer: Importer, files: tuple[ExternalFile, ...]
) -> Callable[[Any, Mapping[str, Artifact], Path, Context], Outcome]:
    """Returns the import as a stage function for the runner. It finds all bad records before it refuses them."""

    def run(config: Any, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
        first: list[str] = []
        bad = 0

        def drop(reason: str, where: str, record: str) -> None:
            nonlocal bad
            bad += 1
            if bad <= SHOWN:  # a small gzip file can hold a billion bad records
                first.append(f"{where}: {reason}")

        outcome = importer.take(files, out, replace(ctx, drop=drop))
        if bad:
            listed = "".join(f"\n  - {line}" for line in first) + ("\n  - …" if bad > SHOWN else "")
            raise RecipeError(
                f"{bad} records cannot be imported:{listed}", where=f"node {ctx.node}", do="Mend them or take them out of the files."
            )
        if not outcome.rows:
            raise RecipeError("There is nothing to import: the files hold no record.", where=f"node {ctx.node}", do="Look into the files.")
        return outcome

    run.__module__ = stage.run.__module__  # so that the stage's code is recorded
    return run


def _is_artifact(folder: Path, stage: Stage) -> bool:
    """Whether a folder is copied as an artifact.

    If its manifest.json is that of another kind of artifact (an exported model) or of another program, the folder may still hold files to
    import.
    """
    if not _is_there(folder / manifest.NAME):
        return False
    if stage.importer is None:
        return True
    try:
        return read_object(folder / manifest.NAME).get("kind") == stage.output
    except (BadJsonError, OSError):
        return False


def _import_artifact(home: Path, node: str, stage: Stage, source: Path, provenance: str) -> runner.Result:
    """Copies an artifact with its key and digest. Refuses one whose manifest or bytes are not as they should be."""
    try:
        theirs = manifest.read_artifact(source)
    except (VerificationError, OSError) as error:
        what = error.what.partition(": ")[2].rstrip(".") if isinstance(error, VerificationError) else error.strerror
        raise RecipeError(
            f"The manifest.json there is not that of an artifact: {what}.",
            where=str(source),
            do="Name the folder of an artifact, or files.",
        ) from None
    _refuse_other(node, stage, theirs)
    recorded = theirs.manifest["files"]
    if faults := manifest_schema.contradictions(theirs.manifest):
        raise _differs(source, f"its {faults[0]}")
    if manifest.content_digest(recorded, theirs.manifest["identity"]) != theirs.manifest["digest"]:
        raise _differs(source, "the digest is not that of its files")
    _refuse_other_files(source, recorded)
    number = theirs.manifest["key"][:12]
    with lease(runner.lease_path(home, node, theirs.manifest["key"]), "import"):
        broken = None
        for own in manifest.find_artifacts(home, node, theirs.manifest["key"]):
            if own.manifest["digest"] == theirs.manifest["digest"]:
                same = manifest.content_digest(own.manifest["files"]) == manifest.content_digest(recorded)
                if same or not manifest.is_imported(own):  # made here, or imported with the same files; others cannot replace it
                    if not integrity.check(home, own):
                        return runner.Result(NodeState.CACHED, own)
                    broken = own if same else broken
            elif stage.deterministic:
                raise VerificationError(
                    f"{manifest.artifact_id(own)} has the same key and other content, and {node} is deterministic: one of the two is not "
                    "what its key says.",
                    where=str(source),
                    do="Do not use it, or find out which is wrong: `loam lineage verify`, and a recipe that builds the node again.",
                )
        out = home / "scratch" / f"{node}-{number}-import"
        shutil.rmtree(out, ignore_errors=True)
        try:
            for file in recorded:
                (out / file["path"]).parent.mkdir(parents=True, exist_ok=True)
                shutil.copyfile(source / file["path"], out / file["path"], follow_symlinks=False)
            out.mkdir(parents=True, exist_ok=True)
            if manifest.list_files(out) != sorted(recorded, key=lambda file: Path(file["path"])):  # reads and fsyncs every byte of the copy
                raise _differs(source, (manifest.verify(theirs) or ["it changed while it was copied"])[0])
            if fault := stage.fault(out) if stage.fault else "":
                raise _differs(source, fault)
            stated = {"provenance": provenance, "from": os.fspath(source.absolute()), "sha256": sha256_file(source / manifest.NAME)}
            before = {"before": theirs.manifest["imported"]} if manifest.is_imported(theirs) else {}
            alias = broken.manifest["alias"] if broken else f"{node}-{names.next_number(home, node)}"
            record = {**theirs.manifest, "imported": stated | before, "alias": alias}
            return runner.Result(NodeState.BUILT, manifest.publish(home, out, record, broken))
        except OSError as error:
            if clear := of_the_disk(error, f"while {node} was imported", home):
                raise clear from None
            raise RecipeError(f"A file cannot be read: {error.strerror}.", where=str(error.filename), do="Mend or fetch it.") from None
        finally:
            shutil.rmtree(out, ignore_errors=True)


def _refuse_other(node: str, stage: Stage, theirs: Artifact) -> None:
    """Raises RecipeError when a folder holds an artifact of another node, stage or kind."""
    found = theirs.manifest
    if found["node"] != node:
        raise RecipeError(
            f"This is an artifact of {found['node']}, not of {node}.",
            where=str(theirs.path),
            do=f"Import it as {found['node']}; a recipe can use it in place of any node of kind {found['kind']}.",
        )
    for name, wanted in (("stage", stage.name), ("kind", stage.output)):
        if found[name] != wanted:
            raise RecipeError(
                f"Its manifest says that the {name} is {found[name]}, but {node} is of the {name} {wanted}.",
                where=str(theirs.path),
                do="Fetch it again; an artifact of Loam's does not say so.",
            )


def _refuse_other_files(source: Path, recorded: Sequence[Mapping[str, Any]]) -> None:
    """Raises VerificationError unless the folder holds exactly the recorded files with their sizes, without links or devices."""
    wanted, found = {file["path"]: file["bytes"] for file in recorded}, set()
    for folder, below, files in os.walk(source):
        for name in [*below, *files]:
            path = Path(folder, name)
            status, short = path.lstat(), path.relative_to(source).as_posix()
            if stat.S_ISDIR(status.st_mode) or short == manifest.NAME:
                continue
            if not stat.S_ISREG(status.st_mode):
                raise _differs(source, f"{short!a} is a link or a device")
            if wanted.get(short) != status.st_size:
                raise _differs(
                    source,
                    f"{short!a}: " + (f"{status.st_size} bytes, recorded {wanted[short]}" if short in wanted else "not in the manifest"),
                )
            found.add(short)
    if missing := sorted(set(wanted) - found):
        raise _differs(source, f"{missing[0]!a}: missing")


def _differs(source: Path, what: str) -> VerificationError:
    return VerificationError(f"The artifact is not what its manifest says: {what}", where=str(source), do="Fetch it again.")
