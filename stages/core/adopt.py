"""Taking in what Loam did not make: files of a user, or an artifact of another home, as an artifact with its provenance stated.

Guarantee: the stage that makes a kind checks the files, so an adopted artifact is what the rest of the road expects; published whole
or not at all; the same files again are a hit. An artifact of another home is compared with its manifest and keeps key, digest and
content. Cost: one read of the files, and what the stage writes. Everything else is the runner's: lease, scratch, books, manifest.
"""

from __future__ import annotations

import fnmatch
import glob
import os
import re
import shutil
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from stages.core import external, integrity, key, lineage, manifest, names, runner, runs
from stages.core.code import edited
from stages.core.errors import LoamError, RecipeError, VerificationError
from stages.core.external import sha256_file
from stages.core.lease import lease
from stages.core.recipe import Runtime
from stages.core.secrets import refuse_in_settings
from stages.core.stage import Adoption, Artifact, Context, ExternalFile, Outcome, Stage, StageConfig

SHOWN = 8  # bad records named in the message


def adopt(home: Path, node: str, stage: Stage, paths: Sequence[str], provenance: str, report: runner.Report) -> runner.Result:
    """The artifact of `node` made from files or folders (state "done"), or the one that is there already ("cached").

    provenance: where the files come from and what may be done with them, in the user's words. Raises RecipeError where the road could
    not use the files, VerificationError where an artifact of another home is not what its manifest says.
    """
    if not provenance.strip():
        raise RecipeError(
            "An adopted artifact needs its provenance.", where=f"node {node}", do="Say where the files come from: --provenance TEXT."
        )
    refuse_in_settings(provenance, f"loam lineage adopt {node}", "provenance")
    with runs.hold_home(home):
        if len(paths) == 1 and _is_artifact(Path(paths[0]), stage):
            result = _adopt_artifact(home, node, Path(paths[0]), provenance.strip())
        else:
            result = _adopt_files(home, node, stage, paths, provenance.strip(), report)
        lineage.update(home)
    return result


def _adopt_files(home: Path, node: str, stage: Stage, paths: Sequence[str], provenance: str, report: runner.Report) -> runner.Result:
    if stage.adopt is None:
        raise RecipeError(
            f"No files of one's own can become the {stage.output} artifact of {node}.",
            where=", ".join(paths),
            do="Name the folder of an artifact of another home (it holds a manifest.json).",
        )
    files = _files(home, node, stage.adopt, paths)
    parts = {
        "node": node,
        "version": stage.version,
        "code": edited(stage.name, stage.version, stage.run.__module__),
        "adopted": [f"{file.name}={file.identity}" for file in files],
    }
    taking = replace(stage, run=_taking(stage, stage.adopt, files))
    runtime, found = Runtime.model_validate({}), {"adopted": files}
    job = runner.Job(node, taking, StageConfig(), 0, runtime, {}, found, parts, key.key_of(parts), provenance)
    try:
        return runner.run_node(home, job, "", report)
    except LoamError:
        shutil.rmtree(runner.scratch_path(home, job), ignore_errors=True)
        raise


def _files(home: Path, node: str, adoption: Adoption, paths: Sequence[str]) -> tuple[ExternalFile, ...]:
    """The files meant, each identified by sha256 and named; those of a folder in the order of their paths."""
    wanted = ", ".join(adoption.takes)
    found: list[Path] = []
    for path in map(Path, paths):
        if not path.exists():
            raise RecipeError(f"There is no file or folder {path}.", where=f"node {node}", do="Give paths on this machine.")
        below = sorted({p for pattern in adoption.takes for p in path.glob(pattern) if p.is_file()}) if path.is_dir() else [path]
        if not below or not all(any(fnmatch.fnmatch(p.name, t.rpartition("/")[2]) for t in adoption.takes) for p in below):
            raise RecipeError(
                f"{path} holds no file that {node} could adopt." if path.is_dir() else f"{path} is no file that {node} could adopt.",
                where=os.fspath(path.absolute()),
                do=f"Name files, or a folder that holds them: {wanted}.",
            )
        found += below
    memory = external.load_memory(home)
    before = dict(memory)
    files = external.resolve_files([glob.escape(os.fspath(p)) for p in found], memory, f"node {node}")
    if memory != before:
        external.save_memory(home, memory)
    return tuple(replace(file, name=file.uri.rpartition("/")[2]) for file in files)


def _taking(
    stage: Stage, adoption: Adoption, files: tuple[ExternalFile, ...]
) -> Callable[[Any, Mapping[str, Artifact], Path, Context], Outcome]:
    """The adoption as the runner runs a stage; all bad records are found before it refuses."""

    def run(config: Any, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
        bad: list[str] = []
        outcome = adoption.take(files, out, replace(ctx, drop=lambda reason, where, record: bad.append(f"{where}: {reason}")))
        if bad:
            listed = "".join(f"\n  - {line}" for line in bad[:SHOWN]) + ("\n  - …" if len(bad) > SHOWN else "")
            raise RecipeError(
                f"{len(bad)} records cannot be adopted:{listed}", where=f"node {ctx.node}", do="Mend them or take them out of the files."
            )
        if not outcome.rows:
            raise RecipeError("There is nothing to adopt: the files hold no record.", where=f"node {ctx.node}", do="Look into the files.")
        return outcome

    run.__module__ = stage.run.__module__  # the code that is recorded is the stage's
    return run


def _is_artifact(folder: Path, stage: Stage) -> bool:
    """Whether a folder is to be copied as an artifact; one of another kind (an exported model) may hold the files for this one."""
    if not (folder / manifest.NAME).is_file():
        return False
    found = manifest.read_artifact(folder).manifest
    return stage.adopt is None or (isinstance(found, dict) and found.get("kind") == stage.output)


def _adopt_artifact(home: Path, node: str, source: Path, provenance: str) -> runner.Result:
    """A copy of an artifact with its key and digest; refused when a byte differs from its manifest."""
    theirs = manifest.read_artifact(source)
    _refuse_other(node, theirs)
    recorded = theirs.manifest["files"]
    if manifest.content_digest(recorded, theirs.manifest["identity"]) != theirs.manifest["digest"]:
        raise _differs(source, "the digest is not that of its files")
    number = theirs.manifest["key"][:12]
    with lease(runner.lease_path(home, node, theirs.manifest["key"]), "adopt"):
        broken = None
        for own in manifest.find_artifacts(home, node, theirs.manifest["key"]):
            if own.manifest["digest"] == theirs.manifest["digest"]:
                if not integrity.check(home, own):
                    return runner.Result("cached", own)
                broken = own
        out = home / "scratch" / f"{node}-{number}-adopt"
        shutil.rmtree(out, ignore_errors=True)
        try:
            shutil.copytree(source, out)
            if manifest.list_files(out) != recorded:  # reads and fsyncs every byte of the copy
                raise _differs(source, (manifest.verify(theirs) or ["it changed while it was copied"])[0])
            stated = {"provenance": provenance, "from": os.fspath(source.absolute()), "sha256": sha256_file(source / manifest.NAME)}
            before = {"before": theirs.manifest["adopted"]} if "adopted" in theirs.manifest else {}
            alias = broken.manifest["alias"] if broken else f"{node}-{names.next_number(home, node)}"
            record = {**theirs.manifest, "adopted": stated | before, "alias": alias}
            return runner.Result("done", manifest.publish(home, out, record, broken))
        finally:
            shutil.rmtree(out, ignore_errors=True)


def _refuse_other(node: str, theirs: Artifact) -> None:
    """Raises when a folder's manifest is not one of Loam's, or is that of another node."""
    found = theirs.manifest
    lacking = [name for name in ("node", "kind", "key", "digest", "files", "identity", "inputs") if name not in found]
    if lacking or not all(re.fullmatch("[0-9a-f]{64}", str(found[name])) for name in ("key", "digest")):
        raise RecipeError(
            "The manifest.json there is not that of an artifact" + (f": it has no {lacking[0]}." if lacking else "."),
            where=str(theirs.path),
            do="Name the folder of an artifact, or files.",
        )
    if found["node"] != node:
        raise RecipeError(
            f"This is an artifact of {found['node']}, not of {node}.",
            where=str(theirs.path),
            do=f"Adopt it as {found['node']}; a recipe can use it in place of any node of kind {found['kind']}.",
        )


def _differs(source: Path, what: str) -> VerificationError:
    return VerificationError(f"The artifact is not what its manifest says: {what}", where=str(source), do="Fetch it again.")
