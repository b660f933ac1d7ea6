"""What a client of `loam serve` needs, read from the profiles file whose path it prints: no test knows the secret from elsewhere."""

from __future__ import annotations

import os
import time
import tomllib
from pathlib import Path
from typing import Any

import httpx

from flows.prefect_access import AUTH, profiles_path


def client_environment(home: Path) -> dict[str, str]:
    """The variables of a shell after `export PREFECT_PROFILES_PATH=…` and nothing else of Prefect's."""
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    return plain | {"PREFECT_HOME": str(home.parent / "client"), "DO_NOT_TRACK": "1", "PREFECT_PROFILES_PATH": str(profiles_path(home))}


def password(home: Path) -> tuple[str, str]:
    """User and password of the server."""
    user, _, word = _profile(home)[AUTH].partition(":")
    return user, word


def api(home: Path) -> str:
    """Where the server answers."""
    return _profile(home)["PREFECT_API_URL"]


BUSY_TRIES = 10


def ask(home: Path, method: str, path: str, body: Any = None) -> Any:
    """The server's answer to a request with the password.

    503 is Prefect's answer when its SQLite database was locked for too long; nothing was written then. Its own client asks again too.
    """
    for _ in range(BUSY_TRIES):
        answer = httpx.request(method, f"{api(home)}/{path}", json=body, auth=password(home), timeout=60)
        if answer.status_code != httpx.codes.SERVICE_UNAVAILABLE:
            break
        time.sleep(1)
    answer.raise_for_status()
    return answer.json() if answer.content else None


def _profile(home: Path) -> dict[str, str]:
    return dict(tomllib.loads(profiles_path(home).read_text(encoding="utf-8"))["profiles"]["loam"])
