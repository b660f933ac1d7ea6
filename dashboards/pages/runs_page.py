"""The first page: all runs, and of the chosen run its nodes, loss curves, scores and artifacts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from dashboards.data import MAX_RUNS, ShownNode, artifact_lines, chosen_run, loss_charts, node_lines, score_lines
from dashboards.page import DashboardPage, PageContent, PageVisit
from stages.questions.lineage import RunRow, run_rows
from stages.record.contract.states import RunState

TEMPLATE = """
{% set chosen = content.chosen %}
{% if not chosen %}<p>No run is recorded yet. Start one with <code>loam run tiny</code>.</p>{% else %}
<h2 id="runs">Runs</h2>
<div class="wide"><table><thead><tr><th>run</th><th>number</th><th>name</th><th>recipe</th><th>state</th><th>started (UTC)</th><th class="number">seconds</th>
<th class="number">built</th><th class="number">cached</th><th>failed</th></tr></thead><tbody>
{% for run in content.runs %}<tr>
<td>{% if run.run_id == chosen.run_id %}<b>{{ run.run_id }}</b>
{%- else %}<a href="/?run={{ run.run_id|urlencode }}">{{ run.run_id }}</a>{% endif %}</td>
<td>{{ run.alias }}</td><td>{{ run.name }}</td>
<td>{{ run.recipe }}</td><td class="{{ 'good' if run.state == 'done' else 'wait' if run.state == 'running' else 'bad' }}">{{ run.state }}</td>
<td>{{ run.started }}</td><td class="number">{{ run.seconds if run.seconds is not none else '' }}</td><td class="number">{{ run.built }}</td>
<td class="number">{{ run.cached }}</td><td class="bad">{{ run.failed or '' }}</td></tr>
{% endfor %}</tbody></table></div>
<h2 id="nodes">Nodes of {{ chosen.alias }}{% if chosen.name %} ({{ chosen.name }}){% endif %}</h2>
<div class="wide"><table><thead><tr><th>node</th><th>state</th><th class="number">seconds</th><th>summary</th><th></th></tr></thead><tbody>
{% for node in content.nodes %}<tr><td><a href="/node?node={{ node.node|urlencode }}">{{ node.node }}</a></td>
<td class="{{ node.style }}">{{ node.state }}</td><td class="number">{{ node.seconds }}</td>
<td class="small">{% for name, value in node.summary.items() %}{{ name }} {{ value }}{% if not loop.last %} · {% endif %}{% endfor %}</td>
<td class="bad">{{ node.message }}</td></tr>{% endfor %}</tbody></table></div>
{% if content.charts %}<h2 id="loss">Loss</h2>{% for chart in content.charts %}{{ chart|safe }}{% endfor %}{% endif %}
{% if content.scores %}<h2 id="scores">Scores</h2>{{ grid(content.scores, content.models) }}{% endif %}
{% if content.artifacts %}<h2 id="artifacts">Artifacts</h2>{{ grid(content.artifacts, ('rows', 'tokens', 'bytes')) }}{% endif %}
{% endif %}
"""


@dataclass(frozen=True, kw_only=True)
class RunsContent(PageContent):
    """The values of the page. chosen: the run that the page shows; None if there is no run. charts: SVG."""

    runs: Sequence[RunRow] = ()
    chosen: RunRow | None = None
    nodes: Sequence[ShownNode] = ()
    artifacts: Sequence[Mapping[str, str]] = ()
    charts: Sequence[str] = ()
    scores: Sequence[Mapping[str, str]] = ()

    @property
    def models(self) -> tuple[str, ...]:
        """The models that have scores: the columns of numbers."""
        return tuple(name for name in (self.scores[0] if self.scores else ()) if name != "metric")


def content(visit: PageVisit) -> RunsContent:
    """Returns the run that the parameter `run` names by id, alias or given name; the newest run if it is empty or unknown."""
    runs = run_rows(visit.home)
    if not runs:
        return RunsContent()
    chosen = chosen_run(runs, visit.parameters.get("run", ""))
    return RunsContent(
        live=chosen["state"] == RunState.RUNNING,
        runs=runs[:MAX_RUNS],
        chosen=chosen,
        nodes=node_lines(visit.home, visit.stages, chosen["run_id"]),
        artifacts=artifact_lines(visit.home, chosen["run_id"]),
        charts=loss_charts(visit.home, chosen["run_id"]),
        scores=score_lines(visit.home, chosen["run_id"]),
    )


PAGE = DashboardPage("/", "Runs", TEMPLATE, content)
