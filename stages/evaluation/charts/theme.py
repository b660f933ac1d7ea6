"""The theme of the report and of the dashboard: one style sheet and the page around a body. No script, no external file."""

from __future__ import annotations

STYLE = """
:root { --ink: #1c2024; --soft: #5d6672; --line: #dfe3e8; --back: #ffffff; --panel: #f6f7f9; --good: #2c7a4b; --bad: #b3372f; --wait: #8a6d1d; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #9aa4b0; --line: #32383f; --back: #16191d; --panel: #1e2227; --good: #63c38a; --bad: #ef8079; --wait: #d9b65c; }
}
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 0 auto; max-width: 1120px; padding: 28px 24px 64px; }
h1 { font-size: 26px; margin: 0 0 4px; } h2 { font-size: 18px; margin: 40px 0 10px; } h3 { font-size: 15px; margin: 20px 0 6px; }
p, li { max-width: 76ch; } .soft { color: var(--soft); } .small { font-size: 13px; }
.wide { overflow-x: auto; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 13px; white-space: nowrap; }
th, td { padding: 5px 12px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap; }
code, pre { font: 13px/1.45 ui-monospace, monospace; } pre { background: var(--panel); padding: 12px; border-radius: 6px; overflow-x: auto; white-space: pre-wrap; }
.good { color: var(--good); } .bad { color: var(--bad); } .wait { color: var(--wait); }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(155px, 1fr)); gap: 12px; margin: 20px 0; }
.card { background: var(--panel); border-radius: 8px; padding: 12px 14px; } .card b { display: block; font-size: 22px; line-height: 1.25; }
svg.chart { width: 100%; max-width: 900px; height: auto; display: block; margin: 8px 0; }
svg.chart text { font: 12px system-ui, sans-serif; fill: var(--soft); } svg.chart text.title { font-weight: 600; fill: var(--ink); }
svg.chart text.label { font-weight: 600; } svg.chart .grid { stroke: var(--line); stroke-width: 1; }
details { margin: 10px 0; } summary { cursor: pointer; color: var(--soft); }
a { color: inherit; }
"""

MACROS = """
{%- macro grid(rows, numeric=()) -%}
{%- if rows -%}
<div class="wide"><table><thead><tr>{% for name in rows[0] %}<th{% if name in numeric %} class="number"{% endif %}>{{ name }}</th>{% endfor %}</tr></thead>
<tbody>{% for row in rows %}<tr>{% for name, value in row.items() %}<td{% if name in numeric %} class="number"{% endif %}>{{ value }}</td>{% endfor %}</tr>
{% endfor %}</tbody></table></div>
{%- endif -%}
{%- endmacro -%}
"""


def render(body: str, page_title: str, **values: object) -> str:
    """Returns a complete HTML page from a Jinja2 body template. Values are escaped; the template marks charts as safe."""
    import jinja2

    environment = jinja2.Environment(autoescape=True, undefined=jinja2.StrictUndefined, trim_blocks=True, lstrip_blocks=True)
    inner = environment.from_string(MACROS + body).render(**values)
    return (
        '<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><meta name="viewport" content="width=device-width, initial-scale=1">'
        f"<title>{environment.from_string('{{ t }}').render(t=page_title)}</title><style>{STYLE}</style></head><body>\n{inner}\n</body></html>\n"
    )
