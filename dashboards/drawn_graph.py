"""Draws a graph of nodes as SVG: boxes in lanes, with links, and curves between them. No HTML is made of a text; the keyboard reaches each box.

Guarantee: the same nodes and edges give the same picture.
Cost: linear in the edges, and a walk over the graph for each of them.
"""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from dashboards.page import tag

BOX_W, BOX_H, GAP_X, GAP_Y, LANE_H = 144, 50, 33, 26, 22
"""Sizes of a box, of the space between two, and of the name of a lane, in pixels."""
MAX_CHARS = 18
"""Characters of a line in a box."""


@dataclass(frozen=True)
class Box:
    """A node of the picture.

    Attributes:
        name: Its name, the first line.
        lane: The lane in which it stands.
        text: Its second line.
        css: Its classes: its state.
        address: Where its link leads.
        about: What a pointer on it shows.
        share: How much of its bar is filled, 0 to 1; 0 for no bar.
    """

    name: str
    lane: str
    text: str
    css: str
    address: str
    about: str = ""
    share: float = 0.0


@dataclass(frozen=True)
class Edge:
    """An arrow from a box to another, by their names, with a label."""

    parent: str
    child: str
    label: str = ""


def placed(boxes: Sequence[Box], edges: Sequence[Edge]) -> dict[str, tuple[int, int]]:
    """Returns name -> (column, row) of boxes.

    In a lane, a box stands behind those of the lane that lead to it; boxes of a lane without such edges stand side by side. Lanes stand one below
    the other, or side by side where they are together no wider than the widest.

    Args:
        boxes: The boxes, each after those that lead to it.
        edges: The edges.
    """
    lane_of = {box.name: box.lane for box in boxes}
    inner = [edge for edge in edges if lane_of[edge.parent] == lane_of[edge.child]]
    lanes: dict[str, dict[str, tuple[int, int]]] = {}
    for box in boxes:
        own = lanes.setdefault(box.lane, {})
        chained = any(lane_of[edge.parent] == box.lane for edge in inner)
        before = [own[edge.parent][0] for edge in inner if edge.child == box.name]
        column = max(before, default=-1) + 1 if chained else len(own)
        own[box.name] = (column, sum(other == column for other, _ in own.values()))
    width = {lane: max(column for column, _ in own.values()) + 1 for lane, own in lanes.items()}
    left = top = height = 0
    found: dict[str, tuple[int, int]] = {}
    for lane, own in lanes.items():
        if left and left + width[lane] > max(width.values()):
            left, top, height = 0, top + height, 0
        found |= {name: (left + column, top + row) for name, (column, row) in own.items()}
        left, height = left + width[lane], max(height, *(row + 1 for _, row in own.values()))
    return found


def reduced(edges: Sequence[Edge], chosen: str = "") -> list[Edge]:
    """Returns the edges without those that a longer way replaces; of the chosen box, all."""
    after: dict[str, set[str]] = {}
    for edge in edges:
        after.setdefault(edge.parent, set()).add(edge.child)

    def reached(start: Collection[str]) -> set[str]:
        seen, queue = set[str](), list(start)
        while queue:
            one = queue.pop()
            if one not in seen:
                seen.add(one)
                queue += after.get(one, ())
        return seen

    return [
        edge for edge in edges
        if chosen in (edge.parent, edge.child) or edge.child not in reached([one for other in after[edge.parent] - {edge.child} for one in after.get(other, ())])
    ]  # fmt: skip


def draw_graph(boxes: Sequence[Box], edges: Sequence[Edge], chosen: str = "", about: str = "graph") -> None:
    """Draws the picture.

    Args:
        boxes: The boxes, each after those that lead to it.
        edges: The edges between them.
        chosen: The box that stands out, with its edges.
        about: What the picture shows, for a screen reader.
    """
    places = placed(boxes, edges)
    names = {box.name: box for box in boxes}
    at = {name: (8 + column * (BOX_W + GAP_X), LANE_H + row * (BOX_H + GAP_Y + LANE_H)) for name, (column, row) in places.items()}
    width = max((x for x, _ in at.values()), default=0) + BOX_W + 8
    height = max((y for _, y in at.values()), default=0) + BOX_H + 10
    with (
        tag("div", css="graph"),
        tag("svg", width=str(width), height=str(height), viewBox=f"0 0 {width} {height}", role="group") as picture,
    ):
        picture.props["aria-label"] = about
        for edge in reduced([one for one in edges if one.parent in at and one.child in at], chosen):
            _draw_edge(edge, at, places, chosen in (edge.parent, edge.child) and bool(chosen))
        for lane, first in _first_of_lanes(names, at).items():
            tag("text", lane.upper(), "lane", x=str(first[0]), y=str(first[1] - 7))
        for box in boxes:
            _draw_box(box, at[box.name], box.name == chosen)


def _first_of_lanes(boxes: Mapping[str, Box], at: Mapping[str, tuple[int, int]]) -> dict[str, tuple[int, int]]:
    """Returns lane -> the place of its first box."""
    found: dict[str, tuple[int, int]] = {}
    for name, box in boxes.items():
        found.setdefault(box.lane, at[name])
    return found


def _draw_box(box: Box, place: tuple[int, int], here: bool) -> None:
    x, y = place
    with tag("a", css=f"{box.css} {'here' if here else ''}", href=box.address):
        tag("title", box.about or box.name)
        tag("rect", css="box", x=str(x), y=str(y), width=str(BOX_W), height=str(BOX_H), rx="7")
        tag("circle", css="mark", cx=str(x + 13), cy=str(y + 17), r="4.5")
        tag("text", _cut(box.name, MAX_CHARS - 2), "name", x=str(x + 24), y=str(y + 21))
        tag("text", _cut(box.text, MAX_CHARS + 3), x=str(x + 10), y=str(y + 40))
        if box.share:
            tag(
                "rect",
                css="bar-done",
                x=str(x + 2),
                y=str(y + BOX_H - 5),
                width=f"{(BOX_W - 4) * min(1.0, box.share):.1f}",
                height="4",
                rx="2",
            )


def _draw_edge(edge: Edge, at: Mapping[str, tuple[int, int]], places: Mapping[str, tuple[int, int]], lit: bool) -> None:
    """Draws a curve: to the next column from side to side, else from the lower side of a box to the upper side of the other."""
    (x, y), (to_x, to_y) = at[edge.parent], at[edge.child]
    (column, row), (to_column, to_row) = places[edge.parent], places[edge.child]
    if to_column > column and (to_column == column + 1 or to_row == row):
        start, end = (x + BOX_W, y + BOX_H // 2), (to_x, to_y + BOX_H // 2)
        bend = max(20, (end[0] - start[0]) // 2)
        hump = 0 if to_column == column + 1 else -BOX_H
        curve = f"C{start[0] + bend},{start[1] + hump} {end[0] - bend},{end[1] + hump} {end[0]},{end[1]}"
        label = ((start[0] + end[0]) // 2, (start[1] + end[1]) // 2 - 6 + hump * 3 // 4)
    else:
        start, end = (x + BOX_W // 2, y + BOX_H), (to_x + BOX_W // 2, to_y)
        bend = max(24, abs(end[1] - start[1]) // 2)
        curve = f"C{start[0]},{start[1] + bend} {end[0]},{end[1] - bend} {end[0]},{end[1]}"
        label = (end[0] + 6, end[1] - 8)
    tag("path", css=f"edge {'lit' if lit else ''}", d=f"M{start[0]},{start[1]} {curve}")
    tag("path", css=f"edge {'lit' if lit else ''}", d=f"M{end[0] - 4},{end[1] - 4} L{end[0]},{end[1]} L{end[0] - 4},{end[1] + 4}"
        if start[0] == x + BOX_W else f"M{end[0] - 4},{end[1] - 5} L{end[0]},{end[1]} L{end[0] + 4},{end[1] - 5}")  # fmt: skip
    if edge.label and (to_column == column + 1 and to_row == row or to_row > row):
        tag("text", edge.label, "count", x=str(label[0]), y=str(label[1]), text_anchor="middle" if start[0] == x + BOX_W else "start")


def _cut(text: str, most: int) -> str:
    return text if len(text) <= most else f"{text[: most - 1]}…"
