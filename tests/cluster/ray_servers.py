"""A Ray of two nodes on loopback: a head and a second raylet. All that runs is ended by its pid, never by `ray stop`, which ends every Ray of the machine.

They are in a network namespace that has loopback alone, because Ray takes the address of the machine where there is another.
Needs root and `ip` (Debian's package iproute2). Without the package ray an environment of its own is made, in which the packages of this one are seen.
"""

from __future__ import annotations

import importlib.util
import os
import secrets
import shutil
import signal
import subprocess
import sys
import sysconfig
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

import psutil

from stages.record.processes import free_port
from tests.conftest import PROJECT, until

STORE_BYTES = 80_000_000


@dataclass(frozen=True)
class Cluster:
    """The servers of one folder, whose path is short: those of Ray's sockets have at most 107 bytes."""

    folder: Path
    python: Path
    token: str
    port: int

    @property
    def namespace(self) -> str:
        return self.folder.name

    @property
    def address(self) -> str:
        return f"127.0.0.1:{self.port}"

    @property
    def environment(self) -> dict[str, str]:
        """What servers and clients need."""
        return {
            "RAY_AUTH_MODE": "token", "RAY_AUTH_TOKEN": self.token, "RAY_USAGE_STATS_ENABLED": "0",
            "RAY_raylet_start_wait_time_s": "300",  # 60 were not enough on two busy cores
        }  # fmt: skip

    @property
    def before(self) -> tuple[str, ...]:
        """The words that run a Python with Ray in the namespace."""
        return ("ip", "netns", "exec", self.namespace, str(self.python))

    def start(self) -> None:
        run("ip", "netns", "add", self.namespace)
        run("ip", "netns", "exec", self.namespace, "ip", "link", "set", "lo", "up")
        self.node("--head", f"--port={self.port}", "--include-dashboard=false", f"--temp-dir={self.folder}")
        self.node(f"--address={self.address}")

    def node(self, *words: str) -> None:
        common = ("--node-ip-address=127.0.0.1", "--num-cpus=2", f"--object-store-memory={STORE_BYTES}", "--disable-usage-stats")
        run(*self.before, "-m", "ray.scripts.scripts", "start", *words, *common, variables=self.environment)

    def processes(self) -> list[psutil.Process]:
        """All that runs in the namespace, the oldest first."""
        found = []
        for pid in run("ip", "netns", "pids", self.namespace).split():
            with suppress(psutil.Error):
                found.append(psutil.Process(int(pid)))
        return sorted(found, key=lambda process: process.create_time())

    def raylets(self) -> list[psutil.Process]:
        """The raylets, the head's first."""
        return [process for process in self.processes() if process.name() == "raylet" and process.status() != psutil.STATUS_ZOMBIE]

    def stop_all(self) -> None:
        for process in self.processes():
            with suppress(psutil.Error):
                process.send_signal(signal.SIGKILL)
        until(lambda: not self.processes(), 30)
        run("ip", "netns", "delete", self.namespace)
        shutil.rmtree(self.folder, ignore_errors=True)


def run(*words: str, variables: dict[str, str] | None = None) -> str:
    done = subprocess.run(words, env=os.environ | (variables or {}), capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, f"{' '.join(words)}: {done.stdout}{done.stderr}"
    return done.stdout


def made_cluster(folder: Path, environment_folder: Path) -> Cluster:
    """The cluster, before it is started. environment_folder: where Ray is installed if this environment has none."""
    return Cluster(folder, python_with_ray(environment_folder), secrets.token_hex(32), free_port())


def missing() -> str:
    """Why no cluster can be started here; empty if one can."""
    if os.geteuid() != 0 or not shutil.which("ip"):
        return "it needs root and Debian's package iproute2 (`apt-get install iproute2`) for a network namespace"
    name = f"loamtry{os.getpid()}"
    if subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False).returncode:
        return "this machine makes no network namespace (`ip netns add` fails); a container needs the capability SYS_ADMIN"
    run("ip", "netns", "delete", name)
    return ""


def python_with_ray(folder: Path) -> Path:
    """This Python if it has Ray, else that of a new environment with the pinned Ray over the packages of this one."""
    if importlib.util.find_spec("ray"):
        return Path(sys.executable)
    run(sys.executable, "-m", "venv", str(folder))
    own = Path(run(str(folder / "bin/python"), "-c", "import sysconfig; print(sysconfig.get_path('purelib'))").strip())
    (own / "packages.pth").write_text("".join(f"{sysconfig.get_path(kind)}\n" for kind in ("purelib", "platlib")))
    run(
        str(folder / "bin/python"),
        "-m",
        "pip",
        "install",
        "--quiet",
        "--disable-pip-version-check",
        "-c",
        str(PROJECT / "constraints.txt"),
        "ray",
    )
    return folder / "bin/python"
