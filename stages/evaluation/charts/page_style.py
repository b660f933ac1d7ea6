"""The style sheet and the script of a page that is one file. Both are fixed text: the page's policy names their sha256, so nothing else runs or styles it.

The script draws the charts when they come into view, from the options beside them, and applies smoothing and logarithmic axes to all lines of the page.
A chart can be read with the arrow keys. Smoothing is that of the dashboard (`dashboards/curves.py`, `smoothed`).
"""

from __future__ import annotations

STYLE = """
:root { --ink: #1c2024; --soft: #5b6470; --line: #dfe3e8; --back: #ffffff; --panel: #f5f7f9; --accent: #0072B2;
  --good: #00785a; --bad: #b84a00; color-scheme: light dark; }
@media (prefers-color-scheme: dark) {
  :root { --ink: #e6e8eb; --soft: #a3acb8; --line: #343b43; --back: #14171a; --panel: #1d2126; --accent: #56B4E9; --good: #4fd1a8; --bad: #ff9a5c; }
}
* { box-sizing: border-box; }
html { scroll-padding-top: 60px; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back); margin: 0 auto; max-width: 1180px; padding: 24px 20px 64px;
  overflow-wrap: anywhere; }
h1 { font-size: 26px; line-height: 1.25; margin: 0 0 4px; } h2 { font-size: 19px; margin: 40px 0 8px; } h3 { font-size: 15px; margin: 20px 0 6px; }
p, li { max-width: 80ch; } p { margin: 6px 0; } .soft { color: var(--soft); } .small { font-size: 13px; }
nav { display: flex; flex-wrap: wrap; gap: 2px 14px; padding: 10px 0; margin: 8px 0 0; border-bottom: 1px solid var(--line); font-size: 14px; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 2px; }
.wide { overflow-x: auto; max-width: 100%; }
table { border-collapse: collapse; width: 100%; font-variant-numeric: tabular-nums; font-size: 14px; overflow-wrap: normal; }
th { text-align: left; font-weight: 600; color: var(--soft); font-size: 13px; white-space: nowrap; }
th, td { padding: 5px 14px 5px 0; border-bottom: 1px solid var(--line); vertical-align: top; }
td.number, th.number { text-align: right; white-space: nowrap; } td.text { min-width: 24ch; max-width: 70ch; overflow-wrap: anywhere; white-space: pre-line; }
code, pre { font: 13px/1.5 ui-monospace, monospace; } pre { background: var(--panel); padding: 10px 12px; border-radius: 6px; margin: 4px 0 12px;
  white-space: pre-wrap; overflow-wrap: anywhere; max-height: 420px; overflow-y: auto; }
.good { color: var(--good); } .bad { color: var(--bad); } .verdict b { white-space: nowrap; }
.verdicts { list-style: none; padding: 0; margin: 10px 0; } .verdicts li { border-left: 4px solid var(--line); padding: 4px 12px; margin: 8px 0; max-width: none; }
.verdicts li.good { border-color: var(--good); color: var(--ink); }
.verdicts li.bad { border-color: var(--bad); color: var(--ink); } .verdicts li p { margin: 0; max-width: 110ch; }
.verdicts b { display: inline-block; min-width: 6.5em; }
.cards { display: grid; grid-template-columns: repeat(auto-fill, minmax(150px, 1fr)); gap: 10px; margin: 16px 0; }
.card { background: var(--panel); border-radius: 8px; padding: 10px 12px; } .card b { display: block; font-size: 19px; line-height: 1.3; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 430px), 1fr)); gap: 12px 20px; } .two > * { min-width: 0; }
figure { margin: 6px 0; height: 300px; position: relative; } figure.s { height: 150px; } figure.m { height: 230px; } figure.l { height: 360px; }
.look { position: sticky; top: 0; z-index: 2; background: var(--back); border-bottom: 1px solid var(--line); padding: 8px 0; display: flex; flex-wrap: wrap;
  gap: 4px 20px; align-items: center; font-size: 14px; } .look label { display: inline-flex; gap: 8px; align-items: center; }
.look input { accent-color: var(--accent); } .look input[type=range] { width: 130px; }
details { margin: 8px 0; } summary { cursor: pointer; color: var(--soft); padding: 4px 0; } details details { margin-left: 14px; }
.hidden { position: absolute; width: 1px; height: 1px; overflow: hidden; clip-path: inset(50%); }
@media (max-width: 600px) {
  body { padding: 16px 14px 48px; } h1 { font-size: 22px; } .cards { grid-template-columns: 1fr 1fr; } .card b { font-size: 17px; }
  table.stack thead { display: none; } table.stack tr { display: block; padding: 8px 0; border-bottom: 1px solid var(--line); }
  table.stack td { display: block; border: 0; padding: 1px 0; max-width: none; min-width: 0; text-align: left; white-space: pre-line; }
  table.stack td:first-child { font-weight: 600; } table.stack td:first-child::before { content: none !important; }
  table.stack td::before { content: attr(data-name) ": "; color: var(--soft); } table.stack td:empty { display: none; }
}
@media print { .look, nav { display: none; } figure { break-inside: avoid; } }
"""

SCRIPT = """
const status = document.getElementById("status"), look = document.querySelector(".look");
const field = (name) => look && look.querySelector(`[name=${name}]`);
const figures = [...document.querySelectorAll("figure.chart")].map((element) => ({
  element, chart: null, at: -1, spec: JSON.parse(element.querySelector("script").textContent)}));

function smoothed(points, weight) {
  let mean = 0, mass = 0;
  return points.map(([x, y]) => {
    mean = weight * mean + (1 - weight) * y;
    mass = weight * mass + (1 - weight);
    return [x, Number((mean / mass).toPrecision(6))];
  });
}

function options({options, lines, smooth}) {
  if (!lines || !look) return options;
  const x = field("x").checked, y = field("y").checked, weight = Number(field("smoothing").value);
  const placed = (points) => points.filter((point) => (point[0] > 0 || !x) && (point[1] > 0 || !y));
  return {...options,
    xAxis: {...options.xAxis, type: x ? "log" : "value"},
    yAxis: {...options.yAxis, type: y ? "log" : "value"},
    series: options.series.map((one, number) => ({...one, data: placed(smooth.includes(number) ? smoothed(one.data, weight) : one.data)}))};
}

function draw(one) {
  if (one.chart || !one.element.clientWidth) return;
  one.chart = echarts.init(one.element);
  one.chart.setOption(options(one.spec));
  new ResizeObserver(() => one.chart.resize()).observe(one.element);
}

function read(one, by) {
  const shown = one.chart.getOption(), data = shown.series[0].data, last = data.length - 1;
  one.at = Math.min(last, Math.max(0, one.at + by));
  one.chart.dispatchAction({type: "showTip", seriesIndex: 0, dataIndex: one.at});
  const point = data[one.at], name = one.spec.lines ? `${shown.xAxis[0].name} ${point[0]}` : shown.yAxis[0].data[one.at];
  status.textContent = `${name}: ${one.spec.lines ? point[1] : point}`;
}

const seen = new IntersectionObserver((entries) => {
  for (const entry of entries) if (entry.isIntersecting) draw(figures.find((one) => one.element === entry.target));
}, {rootMargin: "300px"});
for (const one of figures) {
  seen.observe(one.element);
  one.element.addEventListener("keydown", (event) => {
    const by = {ArrowRight: 1, ArrowLeft: -1, ArrowDown: 1, ArrowUp: -1, PageDown: 20, PageUp: -20, Home: -1e9, End: 1e9}[event.key];
    if (by && one.chart) { event.preventDefault(); read(one, by); }
  });
}
if (look) look.addEventListener("input", () => {
  field("said").value = field("smoothing").value;
  for (const one of figures) if (one.chart) one.chart.setOption(options(one.spec), {notMerge: true});
});
addEventListener("beforeprint", () => figures.forEach(draw));
"""
