"""The report's page (a Jinja2 body for stages/text/web/theme, after verdict_section.MACRO) and its Markdown summary. Strings only."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

BODY = """
<h1>{{ title }}</h1>
<p class="soft">From raw crawl to evaluated checkpoint. Every figure was read from the artifacts listed at the end.</p>
<div class="cards">{% for name, value in cards %}<div class="card"><b>{{ value }}</b><span class="soft small">{{ name }}</span></div>{% endfor %}</div>

<h2 id="results">Results</h2>
{{ grid(results, ('base', 'sft', 'dpo')) }}
<h3>What the models had to show</h3>
<p>{{ verdicts.claims_count }}</p>
{{ verdict_table(verdicts.claims) }}
<details><summary>Further comparisons, not required: {{ verdicts.comparisons_count }}</summary>{{ verdict_table(verdicts.comparisons) }}</details>
<p class="soft small">{{ verdicts.note }}</p>
<details><summary>Every metric</summary>{{ grid(all_results, ('base', 'sft', 'dpo')) }}</details>
<p class="soft small">± is one standard error. Scores of tasks by lm-eval {{ harness.lm_eval }}, 0-shot; base answers the raw question, sft and dpo
are asked through the chat template. Bits per byte over whole held-out documents, context {{ harness.max_length }} tokens.</p>

<h2 id="contamination">Scores with and without overlap</h2>
<p>{% for name, value in contamination.summary.items() %}{{ name }}: {{ value }}{% if not loop.last %} · {% endif %}{% endfor %}</p>
<details><summary>Every score on all items, on the clean subset and on the flagged subset</summary>{{ grid(contamination.scores, ('score', 'items')) }}</details>

<h2 id="training">Training</h2>
{% for chart in charts %}{{ chart|safe }}{% endfor %}
<details><summary>Figures</summary>{{ grid(training, ('value',)) }}</details>

<h2 id="data">Data</h2>
{{ grid(funnel, ('in', 'kept', 'changed', 'dropped', 'characters out')) }}
<h3>Mixture</h3>
{{ grid(mixture, ('weight', 'tokens available', 'tokens in the mixture', 'epochs in the mixture', 'epochs trained')) }}

<h2 id="artifacts">Artifacts</h2>
{{ grid(artifacts, ('rows', 'tokens', 'MB', 'seconds')) }}

<h2 id="environment">Environment</h2>
<div class="wide"><table><tbody>{% for name, value in environment.items() %}<tr><th>{{ name }}</th><td>{{ value }}</td></tr>{% endfor %}</tbody></table></div>
<details><summary>Settings of every node, defaults written out</summary>
{% for node, text in settings.items() %}<h3>{{ node }}</h3><pre>{{ text }}</pre>{% endfor %}</details>
"""


def markdown(values: Mapping[str, Any]) -> str:
    """The short form: cards, results, verdicts, data, mixture."""
    parts = [f"# {values['title']}", "", *(f"- {name}: {value}" for name, value in values["cards"]), "", "## Results", ""]
    verdicts = values["verdicts"]
    parts += [table(values["results"]), "", "## What the models had to show", ""]
    parts += [verdicts["claims_count"], "", table(verdicts["claims"]), "", "## Further comparisons, not required", ""]
    parts += [verdicts["comparisons_count"], "", table(verdicts["comparisons"]), ""]
    parts += [verdicts["note"], "", "## Data", "", table(values["funnel"]), "", "## Mixture", "", table(values["mixture"]), ""]
    return "\n".join(parts)


def table(rows: Sequence[Mapping[str, str]]) -> str:
    """Rows as a Markdown table; a pipe inside a cell is escaped.

    >>> print(table([{"a": "1", "b": "x|y"}]))
    | a | b |
    |---|---|
    | 1 | x\\\\|y |
    """
    if not rows:
        return "(none)"
    head = f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}"
    body = (f"| {' | '.join(str(v).replace('|', chr(92) + '|') for v in row.values())} |" for row in rows)
    return "\n".join([head, *body])
