"""Bounds on what the parser makes: never below the tree that it builds, and near it for orderly pages."""

from __future__ import annotations

import random

import pytest
from resiliparse.parse.html import HTMLTree

from stages.corpus.extract.html import LIMITS, TooCostlyError, parse
from stages.corpus.extract.tree_cost import TreeWork, tree_work
from tests.corpus.hostile import page

NO_LIMIT = TreeWork(10**9, 10**9, 10**9, 12_000, 10**12, 10**12)
NAMES = (
    "a b i font nobr p div span li ul dd dt table td th tr tbody caption colgroup col select option optgroup button object svg math title desc "
    "foreignObject mi annotation-xml template form h1 x-y rt ruby address textarea script style br image input hr pre center mglyph frameset "
    "noscript body html head plaintext g path xmp"
)
TAGS = NAMES.split()


def _piece(draw: random.Random) -> str:
    name, kind = draw.choice(TAGS), draw.random()
    if kind < 0.06:
        return draw.choice(["text", " ", "<!-- x -->", "<![CDATA[x]]>", "<!x>", "</", "<"])
    return f"<{name}{draw.choice(['', '', ' id=@', ' color=1', ' encoding=text/html', '/'])}>" if kind < 0.5 else f"</{name}>"


def elements(html: str) -> int:
    document = HTMLTree.parse(html).document
    assert document is not None
    return len(document.query_selector_all("*"))


def test_no_page_has_more_elements_than_its_bound() -> None:
    """Motifs of tags, each repeated, so that what grows out of proportion grows far."""
    draw = random.Random(7)
    grown = 0
    for _ in range(3000):
        html = ""
        for _ in range(draw.randint(1, 3)):
            motif = "".join(_piece(draw) for _ in range(draw.randint(1, 6)))
            html += "".join(motif.replace("@", str(i)) for i in range(draw.choice([1, 40])))
        work, found = tree_work(html, NO_LIMIT), elements(html)
        assert found <= 3 * work.elements + 8 or work.steps >= len(html) ** 2, html  # the second: the page is not followed, and refused
        grown += found > html.count("<") + 8
    assert grown > 10


def test_orderly_pages_cost_what_they_hold() -> None:
    orderly = (
        "<!DOCTYPE html><html><head><title>T</title><script>if (a<b) '</b>'</script></head><body class=x id=y><ul><li><a href=x>one</a><li><b>two</b></ul>"
        '<table><tr><td><i>x</i><td><span title="<b>">y</span></table><p>a<br>b<p><code><span>c</span></code></body></html>'
    )
    work = tree_work(orderly, NO_LIMIT)
    assert work.elements - 1 == len([t for t in orderly.split("<")[1:] if t[0].isalpha()]) - len(["a<b", "title=<b>"])  # - 1: the doctype
    assert (work.attributes, work.tag_attributes) == (4, 2)
    assert work.total_depth < 60
    many = tree_work(orderly * 100, NO_LIMIT)
    assert many.elements == 100 * work.elements


@pytest.mark.parametrize("name", ["formatting reopened", "fonts of each kind", "formatting around a table"])
def test_formatting_that_would_be_opened_again_and_again_is_seen(name: str) -> None:
    html = page(name, 3000)
    made = elements(html) if name == "formatting reopened" else 0
    assert tree_work(html, NO_LIMIT).elements + 3 >= max(made, 400_000)  # html, head, body
    with pytest.raises(TooCostlyError, match="too_many_elements"):
        parse(html)


@pytest.mark.parametrize(
    ("name", "n", "reason"),
    [
        ("paragraphs", 500_000, "too_many_elements"), ("comments", 500_000, "too_many_elements"), ("attributes", 1001, "too_many_attributes"),
        ("attributes of body", 1001, "too_many_attributes"), ("short attributes", 500_000, "too_many_attributes"),
        ("names of attributes", 10_001, "too_many_names"), ("names of elements", 10_001, "too_many_names"), ("options", 6000, "too_complex"),
        ("divisions", 20_000, "too_deep"), ("spans", 20_000, "too_deep"), ("end tags that close nothing", 60_000, "too_deep"),
        ("items and definitions", 20_000, "too_deep"), ("nests of 90", 300_000, "too_deep"),
    ],
)  # fmt: skip
def test_each_limit_has_its_reason(name: str, n: int, reason: str) -> None:
    with pytest.raises(TooCostlyError) as caught:
        parse(page(name, n))
    assert caught.value.reason == reason


def test_scripts_and_drawings_that_hide_tags_are_followed() -> None:
    hidden = "<div><script><!--<script></script></div></script>" * 400  # the second </script> ends it: no <div> is closed
    assert tree_work(hidden, NO_LIMIT).total_depth > 400 * 400 / 2
    assert tree_work("<svg><title></b><i>x</title></svg>" * 2000, LIMITS).past(LIMITS) == "steps"  # text, or tags? not decided
    assert tree_work("<svg><path d=x /><title>Menu</title></svg>" * 2000, LIMITS).past(LIMITS) == ""
