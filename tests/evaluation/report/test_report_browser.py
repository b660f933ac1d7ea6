"""The report in a real headless Chromium, opened from the disk: nothing foreign asked or run, no error, laid out on a desk and on a phone."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from uuid import UUID

import pytest

from dashboards.curves import smoothed
from stages.evaluation.charts.options import line_options
from stages.evaluation.charts.page import page_chart, render
from stages.evaluation.report.stage import STAGE
from stages.record.contract.report_section import BarChart, LineChart
from stages.record.tables.parquet import schema, write_rows
from tests.conftest import run_stage
from tests.dashboards.test_browser import EVIL, browser
from tests.stages.made import relisted
from tests.stages.test_report import whole_pipeline

pytestmark = [pytest.mark.long, pytest.mark.browser]


@pytest.fixture(scope="module")
def chromium() -> Iterator[Any]:
    with browser() as opened:
        yield opened


def opened_file(chromium: Any, path: Path, width: int = 1280, scheme: str = "light") -> tuple[Any, list[str]]:
    """A page of the disk, and a list that collects what must not happen on it."""
    page, wrong = chromium.new_context(viewport={"width": width, "height": 900}, color_scheme=scheme).new_page(), list[str]()
    page.on("console", lambda message: wrong.append(f"console: {message.text}"))
    page.on("pageerror", lambda error: wrong.append(f"error: {error}"))
    page.on("dialog", lambda dialog: (wrong.append(f"a script ran: {dialog.message}"), dialog.dismiss()))
    page.on("request", lambda request: wrong.append(f"asked {request.url}") if request.url != path.as_uri() else None)
    page.goto(path.as_uri())
    return page, wrong


def made_report(folder: Path) -> Path:
    """A report whose title, sources, URLs, texts, prompts and reasons are hostile."""
    pipeline = whole_pipeline(folder / "pipeline")
    source = {"weight": 1.0, "available_tokens": 10, "train_tokens": 9, "epochs": 0.9}
    (pipeline["mix"].path / "mix.json").write_text(json.dumps({"sources": {EVIL: source}, "shares": []}))
    for number, name in enumerate(("dedup", "filter")):
        rows = [
            {"doc_id": UUID(int=9), "url": f"javascript:alert(1)//{EVIL}", "verdict": "dropped", "reason": EVIL, "text": EVIL, "lang": EVIL}
        ]
        write_rows(pipeline[name].path / "documents" / "00000.parquet", schema(doc_id="uuid", url="string", text="string"), rows)
        shape = schema(doc_id="uuid", url="string", verdict="string", reason="string")
        write_rows(pipeline[name].path / "decisions" / "00000.parquet", shape, rows)
        counts = {"rows_in": 9, "kept": 0, "changed": 2 - number, "dropped": {EVIL: 4, "a": 3, "not_a_page": number}, "unit": EVIL}
        pipeline[name].manifest["record_counts"] = {**pipeline[name].manifest["record_counts"], **counts}
    report = run_stage(STAGE, {"title": EVIL}, {node: relisted(one) for node, one in pipeline.items()}, folder / "home")
    return report.path / "report.html"


@pytest.fixture(scope="module")
def hostile_report(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return made_report(tmp_path_factory.mktemp("report"))


@pytest.mark.parametrize(("width", "scheme"), [(1280, "light"), (390, "dark")])
def test_hostile_text_stays_text_and_nothing_is_wider_than_the_window(chromium: Any, hostile_report: Path, width: int, scheme: str) -> None:
    page, wrong = opened_file(chromium, hostile_report, width, scheme)
    page.evaluate("document.querySelectorAll('details').forEach((one) => { one.open = true; })")
    for figure in page.locator("figure").all():
        figure.scroll_into_view_if_needed()
        figure.locator("canvas").first.wait_for()
    assert page.evaluate("document.documentElement.scrollWidth <= window.innerWidth")
    assert page.locator("img, iframe, a[href^='javascript'], script:not([type])").count() == 0
    seen = page.locator("body").inner_text()
    assert "<img src=x onerror=alert(1)>" in seen and "${alert(3)}" in seen and "{{ 7*7 }}" in seen
    colour = page.evaluate("getComputedStyle(document.body).backgroundColor")
    assert colour == ("rgb(255, 255, 255)" if scheme == "light" else "rgb(20, 23, 26)")
    assert not wrong


def test_smoothing_and_logarithmic_axes_are_those_of_the_dashboard(chromium: Any, tmp_path: Path) -> None:
    """The script's smoothing against the dashboard's own, and its axes against the options that the dashboard draws."""
    train = [(float(step), 5.0 / (step + 1) + step % 7 / 10 - 0.3) for step in range(60)]
    lines = {"train": train, "validation": [(20.0, 3.0), (40.0, 2.0)]}
    chart = page_chart(LineChart("loss", "step", lines, exact=("validation",)))
    path = tmp_path / "page.html"
    path.write_text(render("{{ look() }}{{ figure(chart) }}", "t", chart=chart), encoding="utf-8")
    page, wrong = opened_file(chromium, path)
    page.locator("canvas").first.wait_for()
    page.get_by_label("log x").check()
    page.get_by_label("log y").check()
    page.get_by_label("Smoothing").fill("0.9")
    shown = page.evaluate("echarts.getInstanceByDom(document.querySelector('figure')).getOption()")
    given = {name: [(x, float(f"{y:.6g}")) for x, y in points] for name, points in lines.items()}
    wanted = line_options("loss", {**given, "train": smoothed(given["train"], 0.9)}, "step", (True, True), wheel=False)
    assert shown["xAxis"][0]["type"] == shown["yAxis"][0]["type"] == "log"
    for one, other in zip(shown["series"], wanted["series"], strict=True):
        assert one["name"] == other["name"] and len(one["data"]) == len(other["data"]) > 0
        assert [x for x, _ in one["data"]] == [x for x, _ in other["data"]]
        assert [y for _, y in one["data"]] == pytest.approx([y for _, y in other["data"]], rel=1e-5)
    assert not wrong


def test_a_chart_is_read_with_the_keyboard_and_the_mouse(chromium: Any, tmp_path: Path) -> None:
    charts = [
        page_chart(LineChart("loss", "step", {"train": [(1, 3.5), (2, 2.5)]})),
        page_chart(BarChart("why", {"short": 4, "long": 2}, "pages")),
    ]
    path = tmp_path / "page.html"
    path.write_text(render("{{ look() }}{% for one in charts %}{{ figure(one) }}{% endfor %}", "t", charts=charts), encoding="utf-8")
    page, wrong = opened_file(chromium, path)
    page.locator("canvas").nth(1).wait_for()
    said = page.locator("#status")
    page.locator("figure").first.focus()
    for key, text in (("ArrowRight", "step 1: 3.5"), ("End", "step 2: 2.5"), ("ArrowLeft", "step 1: 3.5")):
        page.keyboard.press(key)
        assert said.inner_text() == text
    page.locator("figure").nth(1).focus()
    page.keyboard.press("ArrowDown")
    assert said.inner_text() == "short: 4"
    before = page.screenshot()
    page.locator("figure").first.hover(position={"x": 300, "y": 150})
    page.wait_for_timeout(200)
    assert page.screenshot() != before, "hovering shows the values"
    assert not wrong
