"""Makes a page of one file: body, style, charts and the script that draws them. It needs no network and opens from a disk.

Guarantee: every value is escaped, in the body and in the options of a chart. The page's policy lets only the two scripts and the style sheet of this
project act, by their sha256, and loads nothing. Equal values give equal bytes.
Cost: 1.2 MB for a page with charts, nearly all of it ECharts; a page without one has no script.
"""

from __future__ import annotations

import hashlib
import json
import math
from base64 import b64encode
from dataclasses import dataclass

from stages.evaluation.charts.echarts_text import echarts, license_text
from stages.evaluation.charts.options import ChartOptions, bar_options, line_options
from stages.evaluation.charts.page_style import SCRIPT, STYLE
from stages.record.contract.report_section import BarChart, LineChart

DIGITS = 6
"""Significant digits of a point. The artifacts have all."""
HEIGHTS = ((3, "s"), (8, "m"))
"""Most bars of a chart, and its height in the style sheet."""

MACROS = """
{%- macro grid(rows, numeric=(), css='') -%}
{%- if rows -%}
<div class="wide"><table class="{{ css }}"><thead><tr>{% for name in rows[0] %}<th{% if name in numeric %} class="number"{% endif %}>{{ name }}</th>
{% endfor %}</tr></thead><tbody>{% for row in rows %}<tr>{% for name, value in row.items() %}
<td{% if css %} data-name="{{ name }}"{% endif %} class="{{ 'number' if name in numeric else 'text' if value|string|length > 40 }}">{{ value }}</td>
{%- endfor %}</tr>
{% endfor %}</tbody></table></div>
{%- endif -%}
{%- endmacro -%}
{%- macro figure(chart) -%}
<figure class="chart {{ chart.height }}" tabindex="0" role="img" aria-label="{{ chart.label }}"><script type="application/json">{{ chart.json()|safe }}</script></figure>
{%- endmacro -%}
{%- macro look(log_x=false) -%}
<div class="look" role="group" aria-label="All curves of this page"><label>Smoothing <input type="range" name="smoothing" min="0" max="0.99" step="0.01" value="0">
<output name="said">0</output></label><label><input type="checkbox" name="x"{% if log_x %} checked{% endif %}> log x</label>
<label><input type="checkbox" name="y"> log y</label><span class="soft small">Hover, or the arrow keys, for values; the bar below a chart zooms.</span></div>
{%- endmacro -%}
"""
"""Jinja2 macros for bodies: `grid` shows rows as a table, which css="stack" turns into blocks on a phone; `figure` a chart; `look` the controls."""


@dataclass(frozen=True)
class PageChart:
    """A chart as a page holds it.

    Attributes:
        options: Those of ECharts.
        lines: Whether smoothing and logarithmic axes apply.
        smooth: Numbers of the lines that are smoothed.
        folded: Whether it is shown on demand.
        height: Its class in the style sheet; empty for the usual height.
    """

    options: ChartOptions
    lines: bool
    smooth: tuple[int, ...] = ()
    folded: bool = False
    height: str = ""

    @property
    def label(self) -> str:
        """Its title, and how to read it without a mouse."""
        return f"{self.options['title']['text']}. The arrow keys read its values."

    def json(self) -> str:
        """Returns it for a script element of type application/json: the text cannot end the element."""
        spec = {"options": self.options, "lines": self.lines, "smooth": self.smooth}
        return json.dumps(spec, ensure_ascii=False, allow_nan=False, separators=(",", ":")).replace("<", "\\u003c")


def page_chart(chart: LineChart | BarChart) -> PageChart | None:
    """Returns a chart for a page; None if it has no value. Values that are not finite are left out."""
    if isinstance(chart, BarChart):
        values = {name: value for name, value in chart.values.items() if math.isfinite(value)}
        height = next((css for most, css in HEIGHTS if len(values) <= most), "")
        return PageChart(bar_options(chart.title, values, chart.unit), False, height=height) if values else None
    lines = {
        name: [(_short(x), _short(y)) for x, y in points if math.isfinite(x) and math.isfinite(y)] for name, points in chart.lines.items()
    }
    looks = [look for look, points in zip(chart.looks, lines.values(), strict=False) if points]
    lines = {name: points for name, points in lines.items() if points}
    smooth = tuple(number for number, name in enumerate(lines) if name not in chart.exact)
    options = line_options(chart.title, lines, chart.x_label, looks=looks, wheel=False)
    return PageChart(options, True, smooth, chart.folded) if lines else None


def _short(value: float) -> float:
    return float(f"{value:.{DIGITS}g}")


def render(body: str, page_title: str, **values: object) -> str:
    """Returns a complete page.

    Args:
        body: A Jinja2 template, in which MACROS are defined.
        page_title: The title of the page.
        values: What the template shows. A name that it does not find is an error.
    """
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    inner = environment.from_string(MACROS + body).render(**values)
    drawn = '<figure class="chart' in inner
    scripts = [echarts(), SCRIPT] if drawn else []
    allowed = " ".join(["script-src", *map(_hash, scripts)]) if scripts else "script-src 'none'"
    policy = f"default-src 'none'; {allowed}; style-src {_hash(STYLE)}; base-uri 'none'; form-action 'none'"
    title = environment.from_string("{{ t }}").render(t=page_title)
    elements = "".join(f'<script type="module">{script}</script>\n' for script in scripts)
    notice = f"<!--\n{license_text()}-->\n" if drawn else ""
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8">'
        f'<meta http-equiv="Content-Security-Policy" content="{policy}"><meta name="referrer" content="no-referrer">'
        '<meta name="viewport" content="width=device-width, initial-scale=1">'
        f'<title>{title}</title><style>{STYLE}</style></head><body>\n{inner}\n<p class="hidden" role="status" id="status"></p>\n'
        f"{notice}{elements}</body></html>\n"
    )


def _hash(text: str) -> str:
    """Returns the source of a policy that allows an element with this text."""
    return f"'sha256-{b64encode(hashlib.sha256(text.encode()).digest()).decode()}'"
