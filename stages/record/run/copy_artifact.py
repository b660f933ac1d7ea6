"""Copies an artifact of another home into this one, as an imported artifact.

Guarantee: the artifact is refused unless its manifest keeps the schema and is what its home recorded of it, its key is that of its parts,
its digest is that of its files, every file is a regular one with the recorded bytes, and the list that the digest counts is what its stage
would make of the other files (Stage.fault). The copy keeps key, digest and content, and is published whole or not at all.
Cost: one read of the files, and one write.
"""

from __future__ import annotations

import os
import shutil
import stat
from collections.abc import Sequence
from pathlib import Path
from typing import NoReturn

from stages.record.contract.declaration import Artifact, Stage
from stages.record.contract.errors import RecipeError, VerificationError, of_the_disk
from stages.record.contract.states import NodeState
from stages.record.run.runner import Result, lease_path
from stages.record.store import integrity, manifest, manifest_schema, names, recorded
from stages.record.store.external import sha256_file
from stages.record.store.lease import lease


def copy_artifact(home: Path, node: str, stage: Stage, source: Path, provenance: str) -> Result:
    """Returns a published copy of an artifact, with its key and digest (BUILT), or an equal artifact that the home has (CACHED).

    Raises the errors of `import_artifact`.

    Args:
        home: The home folder, which the caller holds.
        node: The node that the user named.
        stage: Its stage.
        source: The folder of the artifact of another home.
        provenance: Where it comes from, in the user's words.
    """
    theirs = _sound_artifact(node, stage, source)
    with lease(lease_path(home, node, theirs.manifest["key"]), "import"):
        own, damaged = _own_artifacts(home, stage, theirs)
        if own:
            return Result(NodeState.CACHED, own)
        return Result(NodeState.BUILT, _copy(home, stage, theirs, provenance, damaged))


def _sound_artifact(node: str, stage: Stage, source: Path) -> Artifact:
    """Returns the artifact in a folder. Raises VerificationError if its files or the facts in its manifest contradict each other.

    Raises:
        RecipeError: The folder holds no artifact, or that of another node, stage or kind.
    """
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
    files = theirs.manifest["files"]
    if faults := manifest_schema.contradictions(theirs.manifest):
        _refuse_different(source, f"its {faults[0]}")
    if manifest.content_digest(files, theirs.manifest["identity"]) != theirs.manifest["digest"]:
        _refuse_different(source, "the digest is not that of its files")
    _refuse_other_files(source, files)
    return theirs


def _own_artifacts(home: Path, stage: Stage, theirs: Artifact) -> tuple[Artifact | None, Artifact | None]:
    """Compares an artifact of another home with the artifacts of its key in this home.

    Returns:
        The sound artifact that makes a copy needless, or None; and the damaged artifact that the copy would replace, or None.

    Raises:
        VerificationError: The stage is deterministic, and an own artifact of the key has other content.
    """
    damaged, node = None, theirs.manifest["node"]
    for own in map(manifest.as_published, manifest.find_artifacts(home, node, theirs.manifest["key"])):
        if own.manifest["digest"] == theirs.manifest["digest"]:
            same = manifest.content_digest(own.manifest["files"]) == manifest.content_digest(theirs.manifest["files"])
            if same or not manifest.is_imported(own):  # made here, or imported with the same files; others cannot replace it
                if not integrity.check(home, own):
                    return own, None
                damaged = own if same else damaged
        elif stage.deterministic:
            raise VerificationError(
                f"{manifest.artifact_id(own)} has the same key and other content, and {node} is deterministic: one of the two is not "
                "what its key says.",
                where=str(theirs.path),
                do="Do not use it, or find out which is wrong: `loam lineage verify`, and a recipe that builds the node again.",
            )
    return None, damaged


def _copy(home: Path, stage: Stage, theirs: Artifact, provenance: str, damaged: Artifact | None) -> Artifact:
    """Returns a published copy of an artifact. Raises VerificationError if the copied bytes are not those of its manifest.

    Args:
        home: The home folder.
        stage: The stage of the artifact.
        theirs: The artifact of another home.
        provenance: Where it comes from.
        damaged: The artifact of this home that the copy replaces, or None.

    Raises:
        RecipeError: A file cannot be read.
    """
    source, node, files = theirs.path, theirs.manifest["node"], theirs.manifest["files"]
    out = home / "scratch" / f"{node}-{theirs.manifest['key'][:12]}-import"
    shutil.rmtree(out, ignore_errors=True)
    try:
        for file in files:
            (out / file["path"]).parent.mkdir(parents=True, exist_ok=True)
            shutil.copyfile(source / file["path"], out / file["path"], follow_symlinks=False)
        out.mkdir(parents=True, exist_ok=True)
        if manifest.list_files(out) != sorted(files, key=lambda file: Path(file["path"])):  # reads and fsyncs every byte of the copy
            _refuse_different(source, (manifest.verify(theirs) or ["it changed while it was copied"])[0])
        if fault := stage.fault(out) if stage.fault else "":
            _refuse_different(source, fault)
        if faults := recorded.faults(theirs):
            _refuse_different(source, faults[0])
        entry: manifest_schema.ImportedEntry = {
            "provenance": provenance,
            "from": os.fspath(source.absolute()),
            "sha256": sha256_file(source / manifest.NAME),
        }
        if manifest.is_imported(theirs):
            entry["before"] = theirs.manifest["imported"]
        alias = damaged.manifest["alias"] if damaged else f"{node}-{names.next_number(home, node)}"
        replaced = recorded.digests_of(home, node, theirs.manifest["key"])
        record: manifest_schema.Manifest = {**theirs.manifest, "imported": entry, "alias": alias, "replaced": replaced}
        return manifest.publish(home, out, record, damaged)
    except OSError as error:
        if clear := of_the_disk(error, f"while {node} was imported", home):
            raise clear from None
        raise RecipeError(f"A file cannot be read: {error.strerror}.", where=str(error.filename), do="Repair or fetch it.") from None
    finally:
        shutil.rmtree(out, ignore_errors=True)


def _refuse_other(node: str, stage: Stage, theirs: Artifact) -> None:
    """Refuses a folder that holds an artifact of another node, stage or kind.

    Raises:
        RecipeError: The manifest names another one.
    """
    found = theirs.manifest
    if found["node"] != node:
        raise RecipeError(
            f"This is an artifact of {found['node']}, not of {node}.",
            where=str(theirs.path),
            do=f"Import it as {found['node']}; a recipe can use it in place of any node of kind {found['kind']}.",
        )
    for name, stated, wanted in (("stage", found["stage"], stage.name), ("kind", found["kind"], stage.output)):
        if stated != wanted:
            raise RecipeError(
                f"Its manifest says that the {name} is {stated}, but {node} is of the {name} {wanted}.",
                where=str(theirs.path),
                do="Fetch it again; Loam writes no such manifest.",
            )


def _refuse_other_files(source: Path, recorded: Sequence[manifest_schema.FileEntry]) -> None:
    """Raises VerificationError unless the folder holds exactly the recorded files with their sizes, without links or devices."""
    wanted, found = {file["path"]: file["bytes"] for file in recorded}, set()
    for folder, below, files in os.walk(source):
        for name in [*below, *files]:
            path = Path(folder, name)
            status, short = path.lstat(), path.relative_to(source).as_posix()
            if stat.S_ISDIR(status.st_mode) or short == manifest.NAME:
                continue
            if not stat.S_ISREG(status.st_mode):
                _refuse_different(source, f"{short!a} is a link or a device")
            if wanted.get(short) != status.st_size:
                _refuse_different(
                    source,
                    f"{short!a}: " + (f"{status.st_size} bytes, recorded {wanted[short]}" if short in wanted else "not in the manifest"),
                )
            found.add(short)
    if missing := sorted(set(wanted) - found):
        _refuse_different(source, f"{missing[0]!a}: missing")


def _refuse_different(source: Path, what: str) -> NoReturn:
    """Refuses an artifact of another home.

    Raises:
        VerificationError: Always. `what` says how the artifact differs from its manifest.
    """
    raise VerificationError(f"The artifact is not what its manifest says: {what}", where=str(source), do="Fetch it again.")
