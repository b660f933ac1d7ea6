"""The process of a worker on a cluster: `python -m stages.record.engines.worker JOBS --element I --of N --digest D --attempt NAME`.

It makes every N-th of the shards in the file JOBS, beginning with the I-th; those that exist are left.
Guarantee: jobs of another digest than the driver wrote, another code and other versions of packages are refused before any work. A shard that
fails leaves an error file, and does not keep the others from being made.
Cost: the imports of the stage, once per element.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import pickle
import sys
import traceback
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from stages.record.contract.environment import all_packages
from stages.record.contract.errors import LoamError
from stages.record.contract.source_code import code_digest

if TYPE_CHECKING:
    from stages.record.tables.shards import ShardJob

REFUSED = 2  # exit code: what this worker would compute may not be what the driver expects
FAILED = ".error.json"


@dataclass(frozen=True)
class Bundle:
    """What the driver gives its workers: the jobs by number, and what decides their bytes.

    Attributes:
        jobs: Number of the shard -> job.
        module: The module of the jobs' function.
        code: Digest of the module and all that it imports.
        packages: Installed distribution -> version.
    """

    jobs: dict[int, ShardJob[Any, Any]]
    module: str
    code: str
    packages: dict[str, str]

    def unfit(self) -> str:
        """Returns why this process may not run the jobs; empty if it may."""
        if (own := code_digest(self.module)) != self.code:
            return f"the code of {self.module} is another one here ({own[:16]}, the driver has {self.code[:16]})"
        here = all_packages()
        other = sorted(name for name in here.keys() | self.packages.keys() if here.get(name) != self.packages.get(name))
        return "" if not other else f"versions differ: {', '.join(other[:5])}"


def main(words: list[str]) -> int:
    """Returns the exit code: 0, 1 if a shard failed, REFUSED."""
    parser = argparse.ArgumentParser(prog="python -m stages.record.engines.worker")
    parser.add_argument("jobs", type=Path)
    for name, kind in (("--element", int), ("--of", int), ("--digest", str), ("--attempt", str)):
        parser.add_argument(name, type=kind, required=True)
    given = parser.parse_args(words)
    data = given.jobs.read_bytes()
    if hashlib.sha256(data).hexdigest() != given.digest:  # before a byte of it is unpickled
        return _refuse(given, "the file of the jobs is not the one that the driver wrote")
    bundle: Bundle = pickle.loads(data)
    if why := bundle.unfit():
        return _refuse(given, why)
    failed = False
    for _, job in sorted(bundle.jobs.items())[given.element :: given.of]:
        if job.folder.exists():
            continue  # an earlier attempt made it
        try:
            job.attempt(given.attempt)
        except Exception as error:  # noqa: BLE001 - recorded for the driver, which raises it; it does not keep the other shards from being made
            failed = True
            said = [type(error).__name__, error.what, error.where, error.do] if isinstance(error, LoamError) else []
            record = {"said": said, "text": f"{type(error).__name__}: {error}", "traceback": traceback.format_exc()}
            job.folder.with_name(f"{job.folder.name}.{given.attempt}{FAILED}").write_text(json.dumps(record), encoding="utf-8")
            traceback.print_exc()
    return int(failed)


def _refuse(given: argparse.Namespace, why: str) -> int:
    """Returns the exit code, after writing a file that the driver reads."""
    (given.jobs.parent / f"refused.{given.attempt}{FAILED}").write_text(json.dumps({"why": why}), encoding="utf-8")
    print(f"refused: {why}", file=sys.stderr)  # noqa: T201 - the log of an element
    return REFUSED


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
