"""Draws charts in a page of the dashboard. `stages/evaluation/charts/options.py` decides what is in them."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any

from stages.evaluation.charts.options import ChartOptions

if TYPE_CHECKING:
    from nicegui.element import Element


def draw(options: ChartOptions, css: str = "", height_px: int = 0, on_click: Callable[[ChartOptions], object] | None = None) -> Any:
    """Draws a chart.

    Args:
        options: Those of a chart.
        css: More classes.
        height_px: Its height; 0 for that of its class.
        on_click: Called with the name, the value and the series of the point that a visitor clicks.

    Returns:
        The element.
    """
    from nicegui import ui

    chart = ui.echart(dict(options)).classes(f"chart {css}".strip())
    if height_px:
        chart.style(f"height: {height_px}px")
    if on_click:
        chart.on("componentClick", lambda event: on_click(event.args), ["name", "value", "seriesName"])
    chart.props["role"], chart.props["aria-label"] = "img", options["title"]["text"]
    return chart


def redraw(chart: Element, options: ChartOptions) -> None:
    """Shows other options in a chart."""
    chart.props["options"] = dict(options)
    chart.update()
