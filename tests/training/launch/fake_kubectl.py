"""A kubectl for tests: `create` starts each pod of a JobSet or TrainJob as a process of this machine, `get` says what an API server says, `delete` kills.

It keeps its objects in $FAKE_KUBERNETES. It knows nothing of the agents, and reads only what a cluster reads of the manifest.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from typing import Any

import psutil


def pods_of(manifest: dict[str, Any]) -> tuple[int, list[str]]:
    """Returns (number of pods, command) of an object."""
    spec = manifest["spec"]
    if manifest["kind"] == "TrainJob":
        return spec["trainer"]["numNodes"], spec["trainer"]["command"]
    (replicated,) = spec["replicatedJobs"]
    (container,) = replicated["template"]["spec"]["template"]["spec"]["containers"]
    return replicated["template"]["spec"]["completions"], container["command"]


def main(words: list[str]) -> int:
    """Returns the exit code of kubectl."""
    root = Path(os.environ["FAKE_KUBERNETES"])
    if "down" in (root / "mode").read_text():
        sys.stderr.write("Unable to connect to the server: connection refused\n")
        return 1
    if words[0] == "create":
        manifest = json.load(sys.stdin)
        name = manifest["metadata"]["name"]
        (root / f"{name}.yaml").write_text(json.dumps(manifest))
        if manifest["spec"].get("suspend") or "quota" in (root / "mode").read_text():
            sys.stderr.write("Error from server (Forbidden): exceeded quota: gpus\n")
            return 1
        count, command = pods_of(manifest)
        local = [word.replace(f"{name}-node-0-0.{name}:", "127.0.0.1:").replace(f"{name}-node-0-", "localhost #") for word in command]
        local = [word.replace(' --address "localhost #$JOB_COMPLETION_INDEX.' + name + '"', " --address localhost") for word in local]
        pids = []
        for index in range(count):
            own = os.environ | {"JOB_COMPLETION_INDEX": str(index)}
            pids.append(
                subprocess.Popen(
                    local, env=own, start_new_session=True, stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
                ).pid
            )
        (root / name).write_text(json.dumps(pids))
        return 0
    name = words[2].partition("/")[2]
    if words[0] == "get" and not name:
        return 0
    if not (root / name).is_file():
        return 0  # --ignore-not-found
    pids = json.loads((root / name).read_text())
    running = [pid for pid in pids if psutil.pid_exists(pid) and psutil.Process(pid).status() != psutil.STATUS_ZOMBIE]
    if words[0] == "get":
        ended = [] if running else [{"type": "Completed", "status": "True"}]
        sys.stdout.write(json.dumps({"status": {"conditions": ended}}))
        return 0
    for pid in running:
        with suppress(ProcessLookupError):
            os.killpg(pid, signal.SIGKILL)
    (root / name).unlink()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
