"""A Prefect server of our own on 127.0.0.1: for one `loam run`, or standing under `loam serve`.

Why not Prefect's temporary server: it lives in the terminal's process group, so Ctrl-C ends it first and the run then waits
minutes for its answer; and it stays behind when the run is killed. Ours has a session of its own and dies with its parent.
"""

from __future__ import annotations

import atexit
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Mapping, Sequence
from pathlib import Path

from flows.environment import prefect_settings
from stages.core.errors import StageError

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 15


def use_server(home: Path) -> None:
    """Puts Prefect's settings into this process's environment, and starts a server unless PREFECT_API_URL names one already.

    Call it before prefect is imported. The server is stopped when the process exits, after Prefect has sent its last log lines.
    """
    for name, value in prefect_settings(home).items():
        os.environ.setdefault(name, value)
    if os.environ.get("PREFECT_API_URL"):
        return
    port = free_port()
    server = start_server(port, os.environ, home)
    atexit.register(stop, [server])  # exit functions run after the threads that send log lines have ended
    wait_until_healthy(port, server)
    os.environ["PREFECT_API_URL"] = api_url(port)


def start_server(port: int, environment: Mapping[str, str], home: Path) -> subprocess.Popen[bytes]:
    """Starts the server process; its database lies in <home>/prefect."""
    (home / "prefect").mkdir(parents=True, exist_ok=True)  # the server does not make the folder of its database
    application = ["--factory", "prefect.server.api.server:create_app", "--log-level", "error"]
    command = [sys.executable, "-m", "uvicorn", *application, "--host", "127.0.0.1", "--port", str(port)]
    return subprocess.Popen(command, env=dict(environment), start_new_session=True, preexec_fn=die_with_parent)


def wait_until_healthy(port: int, server: subprocess.Popen[bytes]) -> None:
    """Returns when the API answers. Raises StageError when the server ends or takes too long."""
    import httpx

    end = time.monotonic() + START_TIMEOUT_S
    while time.monotonic() < end and server.poll() is None:
        try:
            if httpx.get(f"{api_url(port)}/health", timeout=2).status_code == 200:
                return
        except httpx.TransportError:
            pass
        time.sleep(0.2)
    do = "Read its lines above; a full disk or a damaged prefect folder in the home are common."
    raise StageError("The Prefect server did not start.", where=api_url(port), do=do)


def stop(children: Sequence[subprocess.Popen[bytes]]) -> None:
    """Ends processes, the last started first; those that do not end in time are killed."""
    for child in reversed(children):
        child.terminate()
        try:
            child.wait(timeout=STOP_TIMEOUT_S)
        except subprocess.TimeoutExpired:
            child.kill()
            child.wait()


def api_url(port: int) -> str:
    """Where a server on this port answers."""
    return f"http://127.0.0.1:{port}/api"


def free_port() -> int:
    """A port of 127.0.0.1 that nobody listens on now."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def die_with_parent() -> None:
    """Runs in a new child: SIGTERM reaches it when its parent ends, however that ends."""
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGTERM)  # PR_SET_PDEATHSIG
