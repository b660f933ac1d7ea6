"""What a stage reads is what was recorded: the files of its input artifacts against their manifests.

Guarantee: before a node is built, every file of every artifact that it reads has its recorded sha256, none is missing and none was
added; after it, they still have. A file that was compared is remembered by size, times and inode (external.mark_of), never while it is
younger than the clock can tell apart, and so are the files of an artifact that was just published. What changes bytes and leaves all
of these, a failing disk, is found by `loam lineage verify`, which reads everything.
One small file per artifact, <home>/verified/<node>/<folder>.json; it only saves time, and gc removes it with its artifact.
Cost: one stat per file; one read of each file that is not remembered, about 1 GB/s.
"""

from __future__ import annotations

import hashlib
import os
import time
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path

from stages.core.contract.declaration import Artifact
from stages.core.contract.errors import VerificationError
from stages.core.store import external, manifest

TOLD_BYTES = 1 << 30  # from here on a reading is announced
REST_S = 1.5 * external.GRAIN_NS / 1e9
SHOWN = 3  # faults in a message


def check(home: Path, artifact: Artifact, say: Callable[[str], None] = lambda line: None) -> list[str]:
    """What is wrong with an artifact's files, one line each. Reads only what is not remembered; `say` hears when that is much."""
    file = _memory_file(home, artifact)
    memory = external.read_memory(file)
    before = dict(memory)
    unknown = sum(entry["bytes"] for entry in artifact.manifest["files"] if str((artifact.path / entry["path"]).absolute()) not in memory)
    if unknown >= TOLD_BYTES:
        say(f"reads {unknown / 1e9:,.1f} GB of {manifest.artifact_id(artifact)} to compare them with its manifest")
    wrong = manifest.verify(artifact, lambda path: external.remembered_sha256(path, memory))
    if memory != before:
        external.write_memory(file, memory)
    return wrong


def check_anew(home: Path, artifact: Artifact) -> list[str]:
    """The same by reading every byte; what was remembered of a damaged artifact is forgotten."""
    wrong = manifest.verify(artifact)
    if wrong:
        _memory_file(home, artifact).unlink(missing_ok=True)
    return wrong


def remember(home: Path, artifact: Artifact, hashed: Mapping[str, Sequence[int]]) -> None:
    """Remembers the files of an artifact just published. hashed: path -> mark when its sha256 was taken (manifest.list_files).

    Publication changes nothing of a file but the time of its inode: another link to it, in the scratch folder, has gone. A file is as
    young as that, so this waits until the clock can tell a later change apart (30 ms).
    """
    time.sleep(REST_S)
    memory: external.Remembered = {}
    for entry in artifact.manifest["files"]:
        path = (artifact.path / entry["path"]).absolute()
        now, then = external.mark_of(path), hashed[entry["path"]]
        if (now[0], now[1], now[3]) == (then[0], then[1], then[3]) and external.at_rest(now):
            memory[os.fspath(path)] = (now, entry["sha256"])
    external.write_memory(_memory_file(home, artifact), memory)


def forget(home: Path, artifact: str) -> None:
    """Drops what is remembered of "<node>/<folder>", which is being removed."""
    file = home / "verified" / f"{artifact}.json"
    file.unlink(missing_ok=True)
    with suppress(OSError):  # others of the node are remembered
        file.parent.rmdir()


def damaged(artifact: Artifact, wrong: Sequence[str], recipe: str) -> VerificationError:
    """The error to raise for a damaged artifact. recipe: with which it can be built again, a file, a name or a run."""
    more = f" (and {len(wrong) - SHOWN} more)" if len(wrong) > SHOWN else ""
    name = f"{artifact.manifest.get('alias') or artifact.manifest['node']} ({manifest.artifact_id(artifact)})"
    return VerificationError(
        f"{name} is damaged: {'; '.join(wrong[:SHOWN])}{more}.", where=str(artifact.path), do=remedy(artifact, recipe)
    )  # fmt: skip


def remedy(artifact: Artifact, recipe: str) -> str:
    """What makes a damaged artifact whole again."""
    node = artifact.manifest["node"]
    if manifest.is_imported(artifact):
        return f"Take it in again from where it came: `loam lineage import {node} FILES --provenance TEXT`; it keeps its name."
    return f"Build it again: `loam stage {node} {recipe} --force`, then the same command."


def _memory_file(home: Path, artifact: Artifact) -> Path:
    """Where the files of an artifact are remembered, one of another home by the path of its folder."""
    folder = artifact.path.absolute()
    if folder.parent.parent == (home / "artifacts").absolute():
        return home / "verified" / folder.parent.name / f"{folder.name}.json"
    return home / "verified" / "elsewhere" / f"{hashlib.sha256(os.fsencode(folder)).hexdigest()[:16]}.json"
