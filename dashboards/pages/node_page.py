"""The page of a node: what its stage declares, and what the newest runs made of it. Without a node, the list of all nodes."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass

from dashboards.data import NodeRun, node_runs
from dashboards.page import DashboardPage, PageContent, PageVisit
from stages.questions.stage_description import StageDescription, describe
from stages.record.contract.errors import LoamError

TEMPLATE = """
{% set about = content.description %}
{% if not about %}
<h2 id="nodes">Nodes</h2>
<div class="wide"><table><thead><tr><th>node</th><th>makes</th><th></th></tr></thead><tbody>
{% for node in content.nodes %}<tr><td><a href="/node?node={{ node.node|urlencode }}">{{ node.node }}</a></td><td>{{ node.output }}</td>
<td>{{ node.does }}</td></tr>{% endfor %}</tbody></table></div>
{% else %}
<h2 id="node">{{ about.node }}</h2>
<p>{{ about.does }}</p>
<details><summary>Guarantee, cost, source</summary><pre>{{ about.about }}</pre></details>
{% if content.problem %}<p class="bad">{{ content.problem }}</p>{% endif %}
{% if content.runs %}<h2 id="runs">Runs</h2>
<div class="wide"><table><thead><tr><th>run</th><th>state</th><th class="number">seconds</th><th>artifact</th><th class="number">size</th>
<th class="number">tokens</th>
{% for name, meaning in about.summary.items() %}<th class="number" title="{{ meaning }}">{{ name }}</th>{% endfor %}<th></th></tr></thead><tbody>
{% for one in content.runs %}<tr><td><a href="/?run={{ one.run_id|urlencode }}">{{ one.run_id }}</a></td>
<td class="{{ one.line.style }}">{{ one.line.state }}</td><td class="number">{{ one.line.seconds }}</td><td>{{ one.artifact }}</td>
<td class="number">{{ one.size }}</td><td class="number">{{ one.tokens }}</td>
{% for name in about.summary %}<td class="number">{{ one.line.summary.get(name, '') }}</td>{% endfor %}
<td class="bad">{{ one.line.message }}</td></tr>{% endfor %}</tbody></table></div>{% endif %}
<h2 id="inputs">Inputs</h2>
{% if about.inputs %}<div class="wide"><table><thead><tr><th>role</th><th>node</th><th>kind</th><th></th></tr></thead><tbody>
{% for one in about.inputs %}<tr><td>{{ one.role }}</td><td><a href="/node?node={{ one.node|urlencode }}">{{ one.node }}</a></td>
<td>{{ one.kind }}</td><td class="soft">{{ 'optional' if one.optional else '' }}</td></tr>{% endfor %}</tbody></table></div>
{% else %}<p>It reads no other node.</p>{% endif %}
<h2 id="output">Output</h2>
<p>{{ about.output }}{% if about.imports %}; <code>loam lineage import</code> accepts {{ about.imports|join(', ') }} in its place{% endif %}.
{{ 'A forced rebuild must be identical.' if about.deterministic else 'A forced rebuild may differ.' }}</p>
{% for table in about.tables %}<h3>{{ table.name }}, view {{ table.view }}</h3><p class="soft">A row is {{ table.about }}.
{% if table.more %} Further columns: {{ table.more }}.{% endif %}</p>{{ grid(content.columns[table.name]) }}{% endfor %}
{% if about.summary %}<h2 id="summary">Summary</h2>
<div class="wide"><table><tbody>{% for name, meaning in about.summary.items() %}<tr><td>{{ name }}</td><td>{{ meaning }}</td></tr>
{% endfor %}</tbody></table></div>{% endif %}
<h2 id="settings">Settings</h2>{{ grid(content.settings) }}
<h2 id="versions">Versions</h2><ol>{% for change in about.versions %}<li>{{ change }}</li>{% endfor %}</ol>
<p class="soft">Distributions that decide the output: {{ about.distributions|join(', ') or 'none' }}.</p>
{% endif %}
"""


@dataclass(frozen=True, kw_only=True)
class NodeContent(PageContent):
    """The values of the page.

    Attributes:
        nodes: The descriptions of all nodes, for the list.
        description: What the chosen node's stage declares; None for the list.
        runs: The node in the newest runs.
        problem: Why the runs cannot be read; empty if they can.
    """

    nodes: Sequence[StageDescription] = ()
    description: StageDescription | None = None
    runs: Sequence[NodeRun] = ()
    problem: str = ""

    @property
    def columns(self) -> Mapping[str, Sequence[Mapping[str, str]]]:
        """Side table -> its columns, as rows of text."""
        tables = self.description.tables if self.description else ()
        return {table.name: [asdict(column) for column in table.columns] for table in tables}

    @property
    def settings(self) -> Sequence[Mapping[str, str]]:
        """The settings, as rows of text."""
        found = self.description.settings if self.description else ()
        return [{"setting": one.name, "default": one.default or "-", "type": one.type, "meaning": one.about} for one in found]


def content(visit: PageVisit) -> NodeContent:
    """Returns the node that the parameter `node` names; the list of nodes if it is empty or unknown."""
    node = visit.parameters.get("node", "")
    if node not in visit.stages:
        return NodeContent(nodes=[describe(name, visit.stages) for name in visit.stages])
    described = describe(node, visit.stages)
    try:
        return NodeContent(description=described, runs=node_runs(visit.home, node, visit.stages[node]))
    except LoamError as error:  # a home without runs still has declarations to show
        return NodeContent(description=described, problem=str(error))


PAGE = DashboardPage("/node", "Nodes", TEMPLATE, content)
