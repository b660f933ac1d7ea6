"""The page of the report (a Jinja2 body for stages/evaluation/charts/theme.py, after verdict_section.MACRO) and its Markdown summary.

It handles strings only.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

BODY = """
<h1>{{ title }}</h1>
<p class="soft">From raw crawl to evaluated checkpoint. Every figure was read from the artifacts listed at the end.</p>
<div class="cards">{% for name, value in cards %}<div class="card"><b>{{ value }}</b><span class="soft small">{{ name }}</span></div>{% endfor %}</div>
{% for note in notes %}<p><b>{{ note }}</b></p>{% endfor %}

{% if results %}
<h2 id="results">Results</h2>
{{ grid(results, models) }}
<h3>What the models had to show</h3>
<p>{{ verdicts.claims_count }}</p>
{{ verdict_table(verdicts.claims) }}
<details><summary>Further comparisons, not required: {{ verdicts.comparisons_count }}</summary>{{ verdict_table(verdicts.comparisons) }}</details>
<p class="soft small">{{ verdicts.note }}</p>
<details><summary>Every metric</summary>{{ grid(all_results, models) }}</details>
{% endif %}
{% for section in sections %}
{% if section.heading and section.heading != 'Results' and (section.paragraphs or section.tables or section.charts) %}
<h2 id="{{ section.heading|lower|replace(' ', '-') }}">{{ section.heading }}</h2>
{% endif %}
{% for paragraph in section.paragraphs %}<p{% if section.heading == 'Results' %} class="soft small"{% endif %}>{{ paragraph }}</p>{% endfor %}
{% for chart in section.charts %}{{ chart|safe }}{% endfor %}
{% for table in section.tables %}
{% if table.folded %}<details><summary>{{ table.title }}</summary>{{ grid(table.rows, table.numeric) }}</details>{% else %}
{% if table.title %}<h3>{{ table.title }}</h3>{% endif %}
{{ grid(table.rows, table.numeric) }}{% endif %}
{% endfor %}
{% endfor %}

<h2 id="artifacts">Artifacts</h2>
{{ grid(artifacts, ('rows', 'tokens', 'MB', 'seconds')) }}

<h2 id="environment">Environment</h2>
<div class="wide"><table><tbody>{% for name, value in environment.items() %}<tr><th>{{ name }}</th><td>{{ value }}</td></tr>{% endfor %}</tbody></table></div>
<details><summary>Settings of every node, defaults written out</summary>
{% for node, text in settings.items() %}<h3>{{ node }}</h3><pre>{{ text }}</pre>{% endfor %}</details>
"""


def markdown(values: Mapping[str, Any]) -> str:
    """Returns the short form: cards, notes, results and verdicts if there are results, and the parts of each section that are not folded."""
    parts = [f"# {values['title']}", "", *(f"- {name}: {value}" for name, value in values["cards"])]
    parts += [line for note in values["notes"] for line in ("", f"**{note}**")]
    if values["results"]:
        verdicts = values["verdicts"]
        parts += ["", "## Results", "", table(values["results"]), "", "## What the models had to show", ""]
        parts += [verdicts["claims_count"], "", table(verdicts["claims"]), "", "## Further comparisons, not required", ""]
        parts += [verdicts["comparisons_count"], "", table(verdicts["comparisons"]), "", verdicts["note"]]
    return "\n".join([*parts, "", *(line for section in values["sections"] for line in _section(section))])


def _section(section: Mapping[str, Any]) -> list[str]:
    """Returns the lines of a section without charts and folded tables; no lines if nothing remains."""
    tables = [shown for shown in section["tables"] if not shown.folded]
    level = "##" if section["heading"] == "Results" else "###"  # the tables of the results stand beside those of the verdicts
    blocks = [
        *section["paragraphs"],
        *(f"{level} {shown.title}\n\n{table(shown.rows)}" if shown.title else table(shown.rows) for shown in tables),
    ]
    heading = [f"## {section['heading']}"] if section["heading"] != "Results" else []  # markdown() has already written this heading
    return [line for block in [*heading, *blocks] for line in (block, "")] if blocks else []


def table(rows: Sequence[Mapping[str, str]]) -> str:
    r"""Returns rows as a Markdown table. A cell is one line, and what would be a link, an image, HTML or a cell of its own is escaped.

    >>> print(table([{"a": "1", "b": "x|y"}, {"a": "# 2", "b": "![z](w)\n<b>"}]))
    | a | b |
    |---|---|
    | 1 | x\|y |
    | # 2 | !\[z\](w) \<b> |
    """
    if not rows:
        return "(none)"
    head = f"| {' | '.join(rows[0])} |\n|{'---|' * len(rows[0])}"
    body = (f"| {' | '.join(_cell(str(v)) for v in row.values())} |" for row in rows)
    return "\n".join([head, *body])


def _cell(text: str) -> str:
    return re.sub(r"[|<\[\]]", r"\\\g<0>", " ".join(text.split()))
