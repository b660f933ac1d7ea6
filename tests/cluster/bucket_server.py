"""An S3 server that obeys If-None-Match: ministack of PyPI on loopback, in an environment of its own, because its botocore is not the pinned one."""

from __future__ import annotations

import os
import subprocess
import urllib.request
import venv
from dataclasses import dataclass
from pathlib import Path

from stages.record.processes import free_port
from tests.conftest import until

RELEASE = "ministack==1.5.33"


@dataclass
class BucketServer:
    """The server, with its environment and its data below a folder."""

    folder: Path
    server: subprocess.Popen[bytes] | None = None
    address: str = ""

    def start(self) -> None:
        command = self._installed()
        port = free_port()
        self.address = f"http://127.0.0.1:{port}"
        with (self.folder / "server.log").open("ab") as log:
            variables = {"BIND_HOST": "127.0.0.1", "GATEWAY_PORT": str(port), "SERVICES": "s3"}
            self.server = subprocess.Popen([command], cwd=self.folder, env=os.environ | variables, stdout=log, stderr=log)
        until(self._answers, 120)

    def _installed(self) -> Path:
        venv.create(self.folder / "venv", with_pip=True)
        python = self.folder / "venv" / "bin" / "python"
        done = subprocess.run(
            [python, "-m", "pip", "install", "--quiet", "--disable-pip-version-check", RELEASE],
            capture_output=True,
            text=True,
            check=False,
            timeout=600,
        )
        assert done.returncode == 0, done.stderr[-2000:]
        return python.with_name("ministack")

    def _answers(self) -> bool:
        try:
            with urllib.request.urlopen(self.address, timeout=5):
                return True
        except OSError as error:
            return hasattr(error, "code")

    def stop(self) -> None:
        if self.server:
            self.server.terminate()
            self.server.wait(timeout=60)
