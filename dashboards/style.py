"""The style sheet of the dashboard, for light and dark, from 390 px on.

Guarantee: no external file. Colours that carry a meaning are of the palette of Okabe and Ito (2008), which people with colour-blindness tell apart; each
of them stands beside a word.
"""

from __future__ import annotations

STYLE = """
:root { --ink: #1c2024; --soft: #5b6470; --line: #dfe3e8; --back: #ffffff; --panel: #f5f7f9; --accent: #0072B2;
  --good: #00785a; --bad: #b84a00; --wait: #8a5a00; --cut: #fbe3d4; --add: #d8f0e6; color-scheme: light; }
body.body--dark { --ink: #e6e8eb; --soft: #a3acb8; --line: #343b43; --back: #14171a; --panel: #1d2126; --accent: #56B4E9;
  --good: #4fd1a8; --bad: #ff9a5c; --wait: #f0b429; --cut: #4a2a18; --add: #12382c; color-scheme: dark; }
* { box-sizing: border-box; }
body { font: 15px/1.5 system-ui, sans-serif; color: var(--ink); background: var(--back) !important; }
.nicegui-content { display: block; padding: 0; max-width: 1280px; margin: 0 auto; }
header.top { display: flex; flex-wrap: wrap; gap: 4px 18px; align-items: center; padding: 10px 20px; border-bottom: 1px solid var(--line); }
header.top b { font-size: 18px; } header.top .end { margin-left: auto; display: flex; gap: 8px; align-items: center; }
nav { display: flex; flex-wrap: wrap; gap: 2px; } nav a { padding: 4px 10px; border-radius: 6px; }
nav a.here { background: var(--panel); font-weight: 600; color: var(--ink); }
nav.sub { padding: 8px 20px 0; }
#main { padding: 12px 20px 64px; } #main:focus { outline: none; }
.skip { position: absolute; left: -999px; } .skip:focus { left: 8px; top: 8px; background: var(--back); z-index: 9; padding: 6px; }
a { color: var(--accent); text-decoration: none; } a:hover { text-decoration: underline; }
:focus-visible { outline: 2px solid var(--accent); outline-offset: 1px; }
h1, h2, h3 { font-weight: 600; letter-spacing: 0; } h1 { font-size: 22px; line-height: 1.3; margin: 6px 0 10px; } h2 { font-size: 17px; line-height: 1.3;
  margin: 26px 0 8px; } h3 { font-size: 15px; line-height: 1.4; margin: 16px 0 4px; } summary { cursor: pointer; padding: 8px 0; }
p { margin: 6px 0; max-width: 86ch; overflow-wrap: anywhere; } .soft { color: var(--soft); } .small { font-size: 13px; }
.good { color: var(--good); } .bad { color: var(--bad); } .wait { color: var(--wait); }
.wide { overflow-x: auto; max-width: 100%; }
table.grid { border-collapse: collapse; font-size: 14px; font-variant-numeric: tabular-nums; min-width: 40%; }
table.grid th { text-align: left; color: var(--soft); font-size: 13px; font-weight: 600; white-space: nowrap; }
table.grid th, table.grid td { padding: 4px 14px 4px 0; border-bottom: 1px solid var(--line); vertical-align: top; max-width: 48ch; min-width: 5ch;
  overflow-wrap: break-word; }
table.grid .number { text-align: right; white-space: nowrap; } table.grid tr.here td { background: var(--panel); font-weight: 600; }
pre { font: 13px/1.5 ui-monospace, monospace; background: var(--panel); border-radius: 6px; padding: 10px 12px; margin: 4px 0; white-space: pre-wrap;
  overflow-wrap: anywhere; }
pre.tall { max-height: 560px; overflow: auto; } pre del, pre ins { text-decoration: none; border-radius: 2px; }
pre del { background: var(--cut); } pre ins { background: var(--add); } pre del.line, pre ins.line { display: block; }
pre del.line::before { content: "− "; color: var(--bad); } pre ins.line::before { content: "+ "; color: var(--good); }
pre mark { background: var(--cut); color: inherit; }
.two { display: grid; grid-template-columns: repeat(auto-fit, minmax(min(100%, 440px), 1fr)); gap: 18px; }
.two > * { min-width: 0; overflow-wrap: anywhere; } .two table { overflow-wrap: break-word; }
.side { display: grid; grid-template-columns: minmax(0, 1fr); gap: 18px; } @media (min-width: 1100px) { .side { grid-template-columns: minmax(0, 1fr) 400px; } }
.side > * { min-width: 0; }
.cards { display: grid; grid-template-columns: repeat(auto-fit, minmax(130px, 1fr)); gap: 10px; margin: 10px 0; }
.card { background: var(--panel); border-radius: 8px; padding: 8px 12px; } .card b { display: block; font-size: 19px; line-height: 1.3; overflow-wrap: anywhere; }
.panel { background: var(--panel); border-radius: 8px; padding: 10px 14px; } .panel pre { background: var(--back); }
label { display: inline-flex; align-items: center; gap: 12px; } .bar { display: flex; flex-wrap: wrap; gap: 10px 16px; align-items: center; margin: 6px 0; }
.chart { width: 100%; height: 300px; } .chart.high { height: 620px; }
.graph { overflow-x: auto; border: 1px solid var(--line); border-radius: 8px; padding: 6px; }
.graph svg { display: block; } .graph text { font: 12px system-ui, sans-serif; fill: var(--soft); } .graph text.name { font-weight: 600; font-size: 13px;
  fill: var(--ink); }
.graph text.lane { font-size: 11px; letter-spacing: .06em; paint-order: stroke; stroke: var(--back); stroke-width: 4px; }
.graph .box { fill: var(--panel); stroke: var(--line); stroke-width: 1; }
.graph .edge { fill: none; stroke: var(--soft); stroke-width: 1.2; stroke-linejoin: round; opacity: .6; }
.graph .edge.lit { stroke: var(--accent); stroke-width: 2.2; opacity: 1; }
.graph text.count { font-size: 11px; paint-order: stroke; stroke: var(--back); stroke-width: 4px; }
.graph a:focus-visible { outline: none; } .graph a:focus-visible .box, .graph a.here .box { stroke: var(--accent); stroke-width: 2.5; }
.graph .bar-done { fill: #E69F00; } .graph .mark { fill: #999999; } .graph .dashed .box { stroke-dasharray: 4 3; opacity: .7; }
.graph .built .mark { fill: #009E73; } .graph .cached .mark, .graph .imported .mark, .graph .identical .mark { fill: #56B4E9; }
.graph .running .mark { fill: #E69F00; animation: pulse 1.4s infinite; } .graph .failed .mark, .graph .interrupted .mark { fill: #D55E00; }
@keyframes pulse { 50% { opacity: .25; } } @media (prefers-reduced-motion: reduce) { .graph .running .mark { animation: none; } }
.pack { display: flex; width: 100%; height: 34px; } .pack div { border-right: 2px solid var(--back); color: #fff; font-size: 11px; overflow: hidden;
  padding: 2px 4px; white-space: nowrap; }
.tokens span { border-radius: 3px; padding: 1px 0; } .tokens { line-height: 1.9; }
"""
