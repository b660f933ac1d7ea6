"""A Prefect server of our own on 127.0.0.1: for one `loam run`, or standing under `loam serve`.

Why not Prefect's temporary server: it lives in the terminal's process group, so Ctrl-C ends it first and the run then waits
minutes for its answer; and it stays behind when the run is killed. Ours has a session of its own and dies with its parent.
Guarantee: it listens on 127.0.0.1, to clients with its authentication string alone (flows/prefect_app.py), and no other server is ever
given that string. One server per database. The server holds a lock beside its database as long as it lives; the first run of a home gets
<home>/prefect, runs beside it <home>/prefect/beside-2 and so on, which later runs use again.
"""

from __future__ import annotations

import atexit
import os
import signal
import subprocess
import sys
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager, suppress
from itertools import count
from pathlib import Path

from flows.opened_recipe import ROOT
from flows.prefect_access import AUTH, foreign_to, new_auth, private_folder
from flows.prefect_environment import prefect_settings
from stages.core.contract.errors import StageError
from stages.processes import die_with_parent, free_port, lock_file

START_TIMEOUT_S = 180
STOP_TIMEOUT_S = 15
GRACE_S = 1
"""How long a server that ends waits for open connections, of a browser for example."""
LOOK_S = 1.0


def use_server(home: Path) -> None:
    """Puts Prefect's settings into this process's environment, and starts a server unless PREFECT_API_URL names one already.

    Call it before prefect is imported. The server is stopped when the process exits, after Prefect has sent its last log lines.
    Raises StageError when the server that PREFECT_API_URL names refuses us.
    """
    for name, value in prefect_settings(home).items():
        os.environ.setdefault(name, value)
    if given := os.environ.get("PREFECT_API_URL"):
        if foreign_to(given, os.environ):
            del os.environ["PREFECT_PROFILES_PATH"]  # its secret belongs to another server
        _refuse_closed(given)
        return
    port = free_port()
    os.environ[AUTH] = new_auth()
    with _free_database(home) as (folder, lock):
        server = start_server(port, os.environ | {"PREFECT_HOME": str(folder)}, lock)
    atexit.register(stop, [server])  # exit functions run after the threads that send log lines have ended
    wait_until_healthy(port, server)
    os.environ["PREFECT_API_URL"] = api_url(port)


def start_server(port: int, environment: Mapping[str, str], lock: int) -> subprocess.Popen[bytes]:
    """Starts the server process on the database in PREFECT_HOME, whose lock (an open file) it keeps until it ends.

    environment: with PREFECT_API_AUTH_STRING, which the server will ask of its clients.
    """
    application = ["--factory", "flows.prefect_app:create_app", "--app-dir", str(ROOT), "--log-level", "error"]
    listening = ["--host", "127.0.0.1", "--port", str(port), "--timeout-graceful-shutdown", str(GRACE_S)]
    own = {
        "PREFECT_API_URL": api_url(port),
        "PREFECT_SERVER_API_AUTH_STRING": environment[AUTH],
        "PREFECT_SERVER_CORS_ALLOWED_ORIGINS": f"http://127.0.0.1:{port},http://localhost:{port}",
    }
    command = [sys.executable, "-m", "uvicorn", *application, *listening]
    return subprocess.Popen(command, env={**environment, **own}, start_new_session=True, preexec_fn=prepare_child, pass_fds=[lock])


def prepare_child() -> None:
    """In a new child: it dies with us, and hears SIGINT, which a process that a shell, nohup or systemd started in the background does not.

    Prefect's worker turns SIGTERM into SIGINT for itself; where that is ignored, it never ends.
    """
    die_with_parent()
    signal.signal(signal.SIGINT, signal.SIG_DFL)


def _refuse_closed(url: str) -> None:
    """Raises StageError when a server refuses what Prefect's settings have to show; whatever else is wrong with it Prefect says."""
    import httpx
    from prefect.client.orchestration import get_client

    with suppress(httpx.TransportError):
        try:
            with get_client(sync_client=True) as client:
                client.hello()
        except httpx.HTTPStatusError as error:
            if error.response.status_code in (401, 403):
                do = "Give this shell what `loam serve` prints (export PREFECT_PROFILES_PATH=…), or unset PREFECT_API_URL."
                raise StageError("The Prefect server does not accept this shell's credentials.", where=url, do=do) from None


@contextmanager
def main_database(home: Path) -> Iterator[int]:
    """The lock of the home's main database, open while the block runs. Raises StageError when another server has it."""
    with ExitStack() as opened:
        lock = _lock(home / "prefect", opened)
        if lock is None:
            what, do = (
                "Another Prefect server works on this home's database.",
                "Wait until that run or `loam serve` ends, or name another --home.",
            )
            raise StageError(what, where=str(home / "prefect"), do=do)
        yield lock


@contextmanager
def _free_database(home: Path) -> Iterator[tuple[Path, int]]:
    """The first folder whose database no server has, and its lock, open while the block runs."""
    with ExitStack() as opened:
        for number in count(1):
            folder = home / "prefect" / (f"beside-{number}" if number > 1 else "")
            lock = _lock(folder, opened)
            if lock is not None:
                yield folder, lock
                return


def _lock(folder: Path, opened: ExitStack) -> int | None:
    """The server's lock of a folder as an open file; None when another has it."""
    private_folder(folder)  # the server does not make the folder of its database; parameters and log lines are in it
    file = opened.enter_context((folder / "server.lock").open("a"))
    return file.fileno() if lock_file(file.fileno()) else None


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


def end_with_worker() -> None:
    """In a flow's process started by a Prefect worker: when the worker dies, however, the flow ends as if it had been cancelled.

    Without it a killed worker's flow would train on where nobody sees or stops it. Does nothing in `loam run`.
    """
    if os.environ.get("PREFECT__FLOW_RUN_ID"):
        threading.Thread(target=_follow, args=(os.getppid(),), daemon=True).start()


def _follow(worker: int) -> None:
    """Ends this process after its parent; a server that died too would keep it waiting for an answer."""
    while os.getppid() == worker:
        time.sleep(LOOK_S)
    os.kill(os.getpid(), signal.SIGTERM)
    time.sleep(STOP_TIMEOUT_S)
    os._exit(1)
