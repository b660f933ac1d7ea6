"""The web dashboard on 127.0.0.1: one page, read-only, without script: runs, nodes, artifacts, loss curves, scores.

It opens the index read-only for each page and never blocks a running recipe. Imports no torch.
"""

from __future__ import annotations

import socket
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from dashboards.data import overview
from stages.core.errors import LoamError, StageError
from stages.text.page import render

if TYPE_CHECKING:
    from fastapi import FastAPI

REFRESH_S = 10
BODY = """
<h1>Loam</h1>
<p class="soft">{{ home }}</p>
{% if problem %}<p class="bad">{{ problem }}</p>{% elif not chosen %}<p>No run is recorded yet. Start one with <code>loam run tiny</code>.</p>{% else %}
<h2 id="runs">Runs</h2>
<div class="wide"><table><thead><tr><th>run</th><th>recipe</th><th>state</th><th>started (UTC)</th><th class="number">seconds</th>
<th class="number">built</th><th class="number">cached</th><th>failed</th></tr></thead><tbody>
{% for run in runs %}<tr><td>{% if run.run_id == chosen.run_id %}<b>{{ run.run_id }}</b>{% else %}<a href="/?run={{ run.run_id }}">{{ run.run_id }}</a>{% endif %}</td>
<td>{{ run.recipe }}</td><td class="{{ 'good' if run.state == 'done' else 'wait' if run.state == 'running' else 'bad' }}">{{ run.state }}</td>
<td>{{ run.started }}</td><td class="number">{{ run.seconds if run.seconds is not none else '' }}</td><td class="number">{{ run.built }}</td>
<td class="number">{{ run.cached }}</td><td class="bad">{{ run.failed or '' }}</td></tr>
{% endfor %}</tbody></table></div>
<h2 id="nodes">Nodes of {{ chosen.run_id }}</h2>
<div class="wide"><table><thead><tr><th>node</th><th>state</th><th class="number">seconds</th><th></th></tr></thead><tbody>
{% for node in nodes %}<tr><td>{{ node.node }}</td><td class="{{ node.class }}">{{ node.state }}</td><td class="number">{{ node.seconds }}</td>
<td class="bad">{{ node.message }}</td></tr>{% endfor %}</tbody></table></div>
{% if charts %}<h2 id="loss">Loss</h2>{% for chart in charts %}{{ chart|safe }}{% endfor %}{% endif %}
{% if scores %}<h2 id="scores">Scores</h2>{{ grid(scores, models) }}{% endif %}
{% if artifacts %}<h2 id="artifacts">Artifacts</h2>{{ grid(artifacts, ('rows', 'tokens', 'bytes')) }}{% endif %}
{% endif %}
"""


def make_app(home: Path, nodes: Sequence[str]) -> FastAPI:
    """The application; `nodes` is the road in order."""
    from fastapi import FastAPI
    from fastapi.responses import HTMLResponse

    app = FastAPI(title="Loam", docs_url=None, redoc_url=None, openapi_url=None)

    @app.get("/")
    def page(run: str = "") -> HTMLResponse:
        empty: dict[str, Any] = {
            "home": str(home),
            "runs": [],
            "chosen": None,
            "nodes": [],
            "artifacts": [],
            "charts": [],
            "scores": [],
            "problem": "",
        }
        try:
            values = {**empty, **overview(home, nodes, run)}
        except LoamError as error:
            values = {**empty, "problem": str(error)}
        models = [name for name in (values["scores"][0] if values["scores"] else {}) if name != "metric"]
        running = bool(values["chosen"]) and values["chosen"]["state"] == "running"
        return HTMLResponse(render(BODY, "Loam", models=models, **values), headers={"Refresh": str(REFRESH_S)} if running else {})

    return app


def serve(home: Path, nodes: Sequence[str], port: int) -> None:
    """Serves until interrupted. Raises StageError when the port is taken."""
    import uvicorn

    with bound(port) as listener:
        uvicorn.Server(uvicorn.Config(make_app(home, nodes), log_level="warning")).run(sockets=[listener])


def bound(port: int) -> socket.socket:
    """A socket bound to a port of 127.0.0.1. Raises StageError when the port is taken."""
    listener = socket.socket()
    listener.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        listener.bind(("127.0.0.1", port))
    except OSError:
        listener.close()
        raise StageError(f"Port {port} is taken.", where="127.0.0.1", do="Stop what uses it or choose another with --port.") from None
    return listener
