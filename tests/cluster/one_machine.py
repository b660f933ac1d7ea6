"""A process that takes itself for one on a machine of its own: with another boot id and name, and where asked with a flock that other machines do not see.

Usage: python -m tests.cluster.one_machine NAME local|coherent contend|run|build ARGUMENTS
"""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path

from stages.record.contract.errors import LoamError
from stages.record.store import lease, manifest
from stages.record.store.manifest_schema import Manifest

STALE_S = 8.0


def contend(mount: Path, rounds: int) -> None:
    """Takes one lease again and again. Prints how often somebody else was inside, too, and what lease() raised."""
    wrong, crashed, done, mark = 0, list[str](), 0, mount / "inside"
    while done < rounds:
        try:
            with lease.lease(mount / "leases" / "key", "a run"):
                done += 1
                try:
                    os.close(os.open(mark, os.O_CREAT | os.O_EXCL | os.O_WRONLY))
                except FileExistsError:
                    wrong += 1
                    continue
                time.sleep(0.005)
                mark.unlink(missing_ok=True)
        except (OSError, LoamError) as error:
            crashed.append(str(error))
    print(json.dumps([wrong, crashed]))


def build(home: Path, wait: bool) -> None:
    """Builds a toy node. wait: stops between the last look at the lease and the publication until a line arrives."""
    from tests.conftest import run_stage
    from tests.record.toys import WORDS

    real = manifest.publish

    def publish(home: Path, out: Path, record: Manifest, instead_of: object = None) -> object:
        print("publishes", flush=True)
        sys.stdin.readline()
        return real(home, out, record)

    if wait:
        manifest.publish = publish  # type: ignore[assignment]
    print(run_stage(WORDS, {}, {}, home).path.name, flush=True)


def main() -> int:
    name, locks, action, *words = sys.argv[1:]
    lease.boot_id = lambda: f"boot of {name}"
    lease._host = lambda: name
    lease.STALE_S, lease.BEAT_S = STALE_S, 1.0
    if locks == "local":
        own = lease.lock_file
        lease.lock_file = lambda handle, shared=False: own(handle, shared=shared) if not shared or of_this_machine(handle) else True  # type: ignore[assignment]
    try:
        if action == "contend":
            contend(Path(words[0]), int(words[1]))
        elif action == "build":
            build(Path(words[0]), words[1:] == ["wait"])
        else:
            from flows.cli import main as loam

            return loam(words)
    except LoamError as error:
        print(error, flush=True)
        return 1
    return 0


def of_this_machine(handle: int) -> bool:
    """Whether an entry is of this machine: only its locks are seen where flock is local to each machine."""
    holder = lease._parsed(os.pread(handle, lease.RECORD_BYTES, 0))
    return holder is not None and holder["boot_id"] == lease.boot_id()


if __name__ == "__main__":
    sys.exit(main())
