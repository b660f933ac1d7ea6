"""`loam serve`: Prefect server, process pool and worker on 127.0.0.1, with prefect.yaml deployed. Stops them all by pid.

Children stay in this process group and die with this process (PR_SET_PDEATHSIG), so nothing is left behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from pathlib import Path

from dashboards.app import bound
from flows.environment import prefect_settings
from flows.session import ROOT
from stages.core.errors import StageError

START_TIMEOUT_S = 180
POOL = "loam"


def serve(home: Path, port: int) -> int:
    """Runs until interrupted or terminated; returns 0. Raises StageError when the port is taken or the server does not start."""
    url = f"http://127.0.0.1:{port}/api"
    bound(port).close()  # refuses a taken port before anything starts
    (home / "prefect").mkdir(parents=True, exist_ok=True)  # the server does not make the folder of its database
    environment = {**os.environ, **prefect_settings(home), "PREFECT_API_URL": url, "LOAM_HOME": str(home), "LOAM_ROOT": str(ROOT)}
    children: list[subprocess.Popen[bytes]] = []
    previous = signal.signal(signal.SIGTERM, _interrupt)
    try:
        children.append(_start(["server", "start", "--host", "127.0.0.1", "--port", str(port), "--log-level", "WARNING"], environment))
        _wait_until_healthy(url, children[0])
        _call(["work-pool", "create", POOL, "--type", "process", "--overwrite"], environment)
        _call(["--no-prompt", "deploy", "--all"], environment)
        children.append(_start(["worker", "start", "--pool", POOL, "--name", "loam"], environment))
        print(f"Prefect runs at http://127.0.0.1:{port}; artifacts go to {home}. In another terminal:\n")
        print(f"  export PREFECT_API_URL={url}")
        print("  .venv/bin/prefect deployment run pretrain/full -p recipe=tiny --watch\n\nCtrl-C stops everything.", flush=True)
        while all(child.poll() is None for child in children):
            time.sleep(0.5)
        raise StageError(
            "The Prefect server or worker ended by itself.", where=url, do="Read its last lines above and start `loam serve` again."
        )
    except KeyboardInterrupt:
        return 0
    finally:
        signal.signal(signal.SIGTERM, previous)
        _stop(children)


def _start(words: list[str], environment: dict[str, str]) -> subprocess.Popen[bytes]:
    return subprocess.Popen([sys.executable, "-m", "prefect", *words], env=environment, cwd=ROOT, preexec_fn=_die_with_parent)


def _call(words: list[str], environment: dict[str, str]) -> None:
    done = subprocess.run([sys.executable, "-m", "prefect", *words], env=environment, cwd=ROOT, capture_output=True, text=True, check=False)
    if done.returncode:
        raise StageError(f"`prefect {' '.join(words)}` failed.", do=f"Its last words: {(done.stderr or done.stdout).strip()[-800:]}")


def _stop(children: list[subprocess.Popen[bytes]]) -> None:
    """Worker first, then server; those that do not end in time are killed."""
    for child in reversed(children):
        child.terminate()
        try:
            child.wait(timeout=15)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def _wait_until_healthy(url: str, server: subprocess.Popen[bytes]) -> None:
    import httpx

    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(f"{url}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.3)
    raise StageError(
        "The Prefect server did not start.",
        where=url,
        do="Read its lines above; a full disk or a damaged prefect folder in the home are common.",
    )


def _interrupt(number: int, frame: object) -> None:
    raise KeyboardInterrupt


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
