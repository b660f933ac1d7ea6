"""Draws line charts as SVG text: axes, ticks, grid and direct labels. No script, no external file, readable in light and dark mode.

Guarantee: the same points give the same bytes.
Cost: linear in the points. Reduce them first with `thinned`.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from html import escape

Points = Sequence[tuple[float, float]]
COLOURS = ("#2f6fb2", "#c4622d", "#3d8f5f", "#8a5aa8")
LEFT, RIGHT, TOP, BOTTOM = 56, 110, 28, 40


def line_chart(series: Mapping[str, Points], title: str, x_label: str, y_label: str, width: int = 720, height: int = 280) -> str:
    """Returns an SVG with one line per series. Points with a value that is not finite are left out; without any point the result is "".

    Args:
        series: Label -> (x, y) points of its line.
        title: Title of the chart.
        x_label: Label of the x axis.
        y_label: Label of the y axis.
        width: Width of the view box, in SVG units.
        height: Height of the view box, in SVG units.
    """
    lines = {name: [(x, y) for x, y in points if math.isfinite(x) and math.isfinite(y)] for name, points in series.items()}
    lines = {name: points for name, points in lines.items() if points}
    if not lines:
        return ""
    xs = [x for points in lines.values() for x, _ in points]
    ys = [y for points in lines.values() for _, y in points]
    x_ticks, y_ticks = ticks(min(xs), max(xs)), ticks(min(ys), max(ys))
    x_low, x_high = min(xs), max(max(xs), min(xs) + 1e-9)
    y_low, y_high = min(y_ticks[0], min(ys)), max(y_ticks[-1], max(ys))

    def place(x: float, y: float) -> tuple[float, float]:
        across = (x - x_low) / (x_high - x_low) if x_high > x_low else 0.5
        up = (y - y_low) / (y_high - y_low) if y_high > y_low else 0.5
        return LEFT + across * (width - LEFT - RIGHT), height - BOTTOM - up * (height - TOP - BOTTOM)

    parts = [
        f'<svg class="chart" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(title)}" xmlns="http://www.w3.org/2000/svg">'
    ]
    parts.append(f'<text class="title" x="{LEFT}" y="16">{escape(title)}</text>')
    for tick in y_ticks:
        _, y = place(x_low, tick)
        parts.append(f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{y:.1f}" y2="{y:.1f}"/>')
        parts.append(f'<text class="tick" text-anchor="end" x="{LEFT - 6}" y="{y + 4:.1f}">{number(tick)}</text>')
    for tick in (t for t in x_ticks if x_low <= t <= x_high):
        x, _ = place(tick, y_low)
        parts.append(f'<text class="tick" text-anchor="middle" x="{x:.1f}" y="{height - BOTTOM + 16}">{number(tick)}</text>')
    parts.append(f'<text class="axis" text-anchor="middle" x="{(LEFT + width - RIGHT) / 2:.0f}" y="{height - 6}">{escape(x_label)}</text>')
    parts.append(f'<text class="axis" text-anchor="middle" transform="translate(13 {height / 2:.0f}) rotate(-90)">{escape(y_label)}</text>')
    parts.extend(_curves(lines, place, width))
    return "".join([*parts, "</svg>"])


def _curves(lines: Mapping[str, Points], place: object, width: int) -> list[str]:
    """Returns the lines, each with a label at its end. Labels that would overlap are moved apart."""
    assert callable(place)
    parts, labels = [], []
    for (name, points), colour in zip(lines.items(), COLOURS * len(lines), strict=False):
        path = " ".join(f"{x:.1f},{y:.1f}" for x, y in (place(*point) for point in points))
        if len(points) == 1:
            x, y = place(*points[0])
            parts.append(f'<circle cx="{x:.1f}" cy="{y:.1f}" r="3" fill="{colour}"/>')
        parts.append(f'<polyline fill="none" stroke="{colour}" stroke-width="1.6" points="{path}"/>')
        labels.append([place(*points[-1])[1], name, colour])
    labels.sort()
    for before, after in zip(labels, labels[1:], strict=False):
        after[0] = max(after[0], before[0] + 14)
    parts.extend(
        f'<text class="label" x="{width - RIGHT + 6}" y="{y + 4:.1f}" style="fill: {colour}">{escape(str(name))}</text>'
        for y, name, colour in labels
    )
    return parts


def ticks(low: float, high: float, about: int = 5) -> list[float]:
    """Returns round values (steps of 1, 2 or 5 times a power of ten) that span low to high.

    >>> ticks(0, 10)
    [0.0, 2.0, 4.0, 6.0, 8.0, 10.0]
    """
    if high <= low:
        return [low]
    raw = (high - low) / about
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(power * m for m in (1, 2, 5, 10) if power * m >= raw * 0.999)
    first = math.floor(low / step)
    last = math.ceil(high / step)
    return [round(i * step, 12) for i in range(first, last + 1)]


def thinned(points: Points, most: int = 300) -> list[tuple[float, float]]:
    """Returns about `most` points or fewer: the mean of each group of neighbours, and the last point unchanged."""
    if len(points) <= most:
        return list(points)
    size = math.ceil(len(points) / most)
    groups = [points[i : i + size] for i in range(0, len(points), size)]
    return [(sum(x for x, _ in g) / len(g), sum(y for _, y in g) / len(g)) for g in groups[:-1]] + [points[-1]]


def number(value: float) -> str:
    """Returns a tick label: "0.5", "1,000", "2e-05".

    >>> number(1000.0), number(0.25)
    ('1,000', '0.25')
    """
    if value != 0 and (abs(value) < 1e-3 or abs(value) >= 1e7):
        return f"{value:.0e}"
    return f"{value:,.0f}" if float(value).is_integer() else f"{value:,.4g}"
