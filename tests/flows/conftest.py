"""A Prefect server that several tests share."""

from __future__ import annotations

import os
from collections.abc import Iterator

import pytest

from flows.prefect_access import AUTH, new_auth
from flows.prefect_environment import prefect_settings
from flows.prefect_server import api_url, main_database, start_server, stop, wait_until_healthy
from stages.processes import free_port


@pytest.fixture(scope="session")
def standing_server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[dict[str, str]]:
    """Variables for runs that use one standing server. Each saves the seconds of a server and a database of its own."""
    home, port = tmp_path_factory.mktemp("server"), free_port()
    own = prefect_settings(home) | {AUTH: new_auth()}
    plain = {name: value for name, value in os.environ.items() if not name.startswith("PREFECT_")}
    with main_database(home) as lock:
        server = start_server(port, plain | own, lock)
    wait_until_healthy(port, server)
    yield own | {"PREFECT_API_URL": api_url(port)}
    stop([server])


@pytest.fixture
def on_standing_server(standing_server: dict[str, str], monkeypatch: pytest.MonkeyPatch) -> None:
    """The runs that a test starts use the standing server."""
    for name, value in standing_server.items():
        monkeypatch.setenv(name, value)
