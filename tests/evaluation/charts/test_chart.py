"""Charts: well-formed SVG, every series drawn and labelled, values that are not finite left out."""

from __future__ import annotations

import xml.etree.ElementTree as ET

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.evaluation.charts.chart import line_chart, number, thinned, ticks
from stages.evaluation.charts.theme import render

NUMBERS = st.floats(-1e6, 1e6, allow_nan=False)


@given(st.lists(st.tuples(NUMBERS, NUMBERS), min_size=1, max_size=30))
def test_is_well_formed_and_stays_inside_the_frame(points: list[tuple[float, float]]) -> None:
    root = ET.fromstring(line_chart({"a<b": points}, "Title & more", "x", "y"))
    line = root.find("{http://www.w3.org/2000/svg}polyline")
    assert line is not None
    for pair in line.attrib["points"].split():
        x, y = map(float, pair.split(","))
        assert 0 <= x <= 720 and 0 <= y <= 280
    assert "a<b" in [t.text for t in root.iter("{http://www.w3.org/2000/svg}text")]


def test_leaves_out_what_is_not_finite() -> None:
    assert line_chart({"a": [(0, float("nan"))]}, "t", "x", "y") == ""
    assert "nan" not in line_chart({"a": [(0, float("nan")), (1, 2.0)]}, "t", "x", "y")


@given(NUMBERS, st.floats(1e-3, 1e6))
def test_ticks_span_the_range(low: float, span: float) -> None:
    found = ticks(low, low + span)
    assert found[0] <= low + 1e-6 * span and found[-1] >= low + span - 1e-6 * span - abs(low) * 1e-9 and 2 <= len(found) <= 13


@pytest.mark.parametrize(("value", "text"), [(0, "0"), (1234.0, "1,234"), (0.5, "0.5"), (2e-5, "2e-05")])
def test_numbers(value: float, text: str) -> None:
    assert number(value) == text


def test_thinning_keeps_the_mean_and_the_end() -> None:
    points = [(float(i), float(i)) for i in range(1000)]
    few = thinned(points, 100)
    assert len(few) == 100 and few[-1] == (999.0, 999.0) and few[0] == (4.5, 4.5)


def test_a_page_escapes_its_values() -> None:
    assert "&lt;script&gt;" in render("{{ name }}", "t", name="<script>")
    with pytest.raises(Exception, match="missing"):
        render("{{ missing }}", "t")
