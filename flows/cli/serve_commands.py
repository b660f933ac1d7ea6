"""The commands `loam dashboard` and `loam serve`: servers on 127.0.0.1 that run until Ctrl-C and print their URL when they are up."""

from __future__ import annotations

import os
import shlex
from typing import Annotated

from cyclopts import Parameter

from flows.cli.options import COMMON, Command, Common, whole
from flows.cli.printing import answer, say

LAST_PORT = 65_535


def dashboard(
    *,
    port: Annotated[int, whole(0, LAST_PORT), Parameter(help="of 127.0.0.1; 0 takes a free one")] = 8765,
    common: Common = COMMON,
) -> None:
    """Serve the web dashboard on 127.0.0.1 and print the URL that opens it."""
    from dashboards import app
    from flows.pipeline import pipeline, stage_of

    stages = {node.name: stage_of(node) for node in pipeline()}
    app.serve(
        common.folder(),
        stages,
        port,
        lambda url: answer(common, {"url": url}, lambda: say(f"{url}  (Ctrl-C stops it)", flush=True)),
    )


def serve(
    *,
    port: Annotated[int, whole(1, LAST_PORT), Parameter(help="of 127.0.0.1")] = 4200,
    common: Common = COMMON,
) -> int:
    """Serve Prefect (server, process pool, worker) with prefect.yaml deployed.

    Returns:
        The exit code, 0.
    """
    from flows import serve as serving

    home = common.folder()

    def announce(up: serving.Up) -> None:
        def show() -> None:
            say(f"Prefect runs at {up.ui_url}; artifacts go to {home}.")
            say(f"The UI's login asks for {up.login}; it is in {up.profiles}. In another terminal:\n")
            direct = [f"{name}={shlex.quote(value)}" for name, value in os.environ.items() if name.lower() == "no_proxy"]
            say(" ".join([f"  export PREFECT_PROFILES_PATH={shlex.quote(str(up.profiles))} PREFECT_API_URL={up.api_url}", *direct]))
            say("  .venv/bin/prefect deployment run pretrain/full -p recipe=tiny --watch\n\nCtrl-C stops everything.", flush=True)

        answer(common, {"ui_url": up.ui_url, "api_url": up.api_url, "profiles_path": str(up.profiles), "home": str(home)}, show)

    return serving.serve(home, port, announce)


COMMANDS = (
    Command(dashboard, ("loam dashboard", "loam dashboard --port 0")),
    Command(serve, ("loam serve --port 4201",)),
)
