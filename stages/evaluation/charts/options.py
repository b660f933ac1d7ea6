"""The options of ECharts for lines that can be zoomed and hovered, bars, and flows: what the dashboard, the report and the pages of sweeps draw.

Guarantee: a name or a value of the home is data of a chart, never the name of an option, a formatter or HTML: labels and tooltips are drawn on the
canvas (renderMode richText).
Cost: linear in the points; `dashboards/curves.py` and `thinned` bound them.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

PALETTE = ("#0072B2", "#E69F00", "#009E73", "#CC79A7", "#56B4E9", "#D55E00", "#999999")
"""Colours of series, in order. Okabe and Ito's without yellow and black, which vanish on one of the two backgrounds."""
AXIS, GRID = "#7d8590", "rgba(128,134,143,.22)"
"""Colours of a chart's text and lines; both are readable on the light and on the dark background."""

ChartOptions = dict[str, Any]
"""Options of ECharts, by name."""
DASHES = ("solid", "dashed", "dotted")
Points = Sequence[tuple[float, float | None]]


def _base(title: str) -> ChartOptions:
    """Returns the options that all charts share."""
    return {
        "color": list(PALETTE),
        "animation": False,
        "textStyle": {"color": AXIS, "fontFamily": "system-ui, sans-serif"},
        "title": {"text": title, "left": 8, "top": 4, "textStyle": {"fontSize": 13, "color": AXIS}},
        "tooltip": {"renderMode": "richText", "confine": True, "backgroundColor": "#22272e", "borderWidth": 0, "textStyle": {"color": "#f0f3f6", "fontSize": 12}},
        "aria": {"enabled": True, "label": {"description": title}},
    }  # fmt: skip


def _axis(kind: str, name: str = "") -> ChartOptions:
    return {
        "type": kind, "name": name, "nameLocation": "middle", "nameGap": 24, "scale": True, "axisLabel": {"color": AXIS, "hideOverlap": True},
        "axisLine": {"lineStyle": {"color": GRID}}, "splitLine": {"lineStyle": {"color": GRID}},
    }  # fmt: skip


def line_options(
    title: str,
    series: Mapping[str, Points],
    x_name: str,
    logs: tuple[bool, bool] = (False, False),
    marks: Mapping[str, float] | None = None,
    looks: Sequence[tuple[int, int]] = (),
    wheel: bool = True,
) -> ChartOptions:
    """Returns the options of a chart with one line per series.

    Args:
        title: Its title.
        series: Name -> points, by rising x. A None is a gap.
        x_name: Name of the x axis.
        logs: Whether x and y are logarithmic.
        marks: Name of an event -> its x.
        looks: Number of the colour and of the dashes of each line; without it, each line has its own colour.
        wheel: Whether the wheel of a mouse zooms. In a page to read it scrolls.
    """
    kinds = ["log" if log else "value" for log in logs]
    cut = [
        [(x, y) for x, y in points if (x > 0 or not logs[0]) and (y is None or y > 0 or not logs[1])] for points in series.values()
    ]  # a logarithmic axis has no place for 0
    whole = all(float(x).is_integer() for points in cut for x, _ in points)
    lines: list[ChartOptions] = [
        {
            "name": name, "type": "line", "data": points, "symbol": "circle", "showSymbol": len(points) < 40, "symbolSize": 5,
            "lineStyle": {"width": 1.6, "type": DASHES[dash % len(DASHES)]}, "color": PALETTE[colour % len(PALETTE)], "connectNulls": True,
        }
        for name, points, (colour, dash) in zip(series, cut, looks or [(n, 0) for n in range(len(series))], strict=True)
    ]  # fmt: skip
    if lines and marks:
        lines[0]["markLine"] = {
            "symbol": "none", "lineStyle": {"type": "dashed", "color": AXIS}, "label": {"fontSize": 10, "color": AXIS, "position": "insideEndTop"},
            "data": [{"name": name, "xAxis": x, "label": {"show": True, "formatter": "{b}"}} for name, x in marks.items()],
        }  # fmt: skip
    return _base(title) | {
        "grid": {"left": 58, "right": 18, "top": 58 if len(series) > 1 else 38, "bottom": 62},
        "legend": {"show": len(series) > 1, "type": "scroll", "top": 24, "left": 8, "right": 8, "textStyle": {"color": AXIS}, "pageTextStyle": {"color": AXIS}},
        "tooltip": _base(title)["tooltip"] | {"trigger": "axis"},
        "xAxis": _axis(kinds[0], x_name) | {"max": "dataMax"} | ({"axisPointer": {"label": {"precision": 0}}} if whole else {}),
        "yAxis": _axis(kinds[1]),
        "dataZoom": [
            *([{"type": "inside", "filterMode": "none"}] if wheel else []),
            {"type": "slider", "height": 12, "bottom": 6, "filterMode": "none", "showDetail": False, "showDataShadow": False, "brushSelect": False,
             "borderColor": GRID, "fillerColor": GRID, "handleStyle": {"color": AXIS}, "moveHandleStyle": {"color": GRID}},
        ],
        "series": lines,
    }  # fmt: skip


def bar_options(title: str, values: Mapping[str, float], unit: str) -> ChartOptions:
    """Returns the options of a chart with one horizontal bar per name, the first on top."""
    names = list(values)
    label_px = min(220, round(7 * max(map(len, names), default=0)))
    return _base(title) | {
        "grid": {"left": label_px + 12, "right": 60, "top": 36, "bottom": 8},
        "xAxis": _axis("value") | {"axisLabel": {"show": False}, "scale": False},
        "yAxis": _axis("category") | {"data": names, "inverse": True, "axisLabel": {"color": AXIS, "fontSize": 11, "width": label_px, "overflow": "truncate"}},
        "series": [{"name": unit, "type": "bar", "barMaxWidth": 18, "data": list(values.values()), "label": {"show": True, "position": "right", "color": AXIS}}],
    }  # fmt: skip


def histogram_options(title: str, bins: Sequence[tuple[str, int]], x_name: str) -> ChartOptions:
    """Returns the options of a chart with one column per bin."""
    return _base(title) | {
        "grid": {"left": 52, "right": 12, "top": 36, "bottom": 46},
        "tooltip": _base(title)["tooltip"] | {"trigger": "axis"},
        "xAxis": _axis("category", x_name) | {"data": [name for name, _ in bins]},
        "yAxis": _axis("value") | {"scale": False},
        "series": [{"name": "documents", "type": "bar", "barCategoryGap": "10%", "data": [count for _, count in bins]}],
    }


def flow_options(title: str, flows: Sequence[tuple[str, str, float]], lost: Sequence[str]) -> ChartOptions:
    """Returns the options of a Sankey chart.

    Args:
        title: Its title.
        flows: (from, to, how many).
        lost: Names of what leaves the flow; they are grey.
    """
    names = list(dict.fromkeys(name for source, target, _ in flows for name in (source, target)))
    kept = [name for name in names if name not in lost]
    colours = {name: PALETTE[number % (len(PALETTE) - 1)] for number, name in enumerate(kept)}
    return _base(title) | {
        "series": [
            {
                "type": "sankey", "nodeAlign": "left", "left": 12, "right": 190, "top": 36, "bottom": 12, "nodeGap": 15, "nodeWidth": 14, "draggable": False,
                "emphasis": {"focus": "adjacency"}, "lineStyle": {"color": "source", "opacity": 0.28},
                "label": {"color": AXIS, "fontSize": 12},
                "data": [{"name": name, "itemStyle": {"color": colours.get(name, PALETTE[-1])}} for name in names],
                "links": [{"source": source, "target": target, "value": value} for source, target, value in flows],
            }
        ]
    }  # fmt: skip
