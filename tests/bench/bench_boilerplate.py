"""How well extract and boilerplate find a page's body, beside the libraries of bench_engines.py, by its measure and on its judged pages.

`python -m tests.bench.bench_boilerplate`: three minutes. It runs the stages on all shared crawls, so that every host has its counts, and
prints the table with all engines. Then it plants 500 paragraphs, list items, definitions and table cells at seeded places of the bodies of
crawled pages, one each, and counts how many are in the body that is found of the changed page; half of them again as a text that is on a
tenth of the pages of the host. Thresholds were tuned on the tune half of the judged pages alone.
"""

from __future__ import annotations

import random
import re
import statistics
import tempfile
from collections import Counter
from dataclasses import replace
from pathlib import Path
from typing import Any

import lxml.html
import numpy as np
from lxml import etree

from stages.corpus.boilerplate import stage as boilerplate
from stages.corpus.boilerplate.body_rules import removals
from stages.corpus.boilerplate.body_text import BodyFormat
from stages.corpus.boilerplate.known_lines import KnownLines
from stages.corpus.boilerplate.line_keys import host_of, title_of
from stages.corpus.boilerplate.stage import BoilerplateConfig
from stages.corpus.crawl import stage as crawl
from stages.corpus.extract import stage as extract
from stages.corpus.extract.html import TooCostlyError
from stages.corpus.warc.charset import decode_page
from stages.corpus.warc.framing import WarcLimits
from stages.corpus.warc.records import read_records
from stages.record.contract.declaration import Artifact
from stages.record.tables.parquet import read_rows
from tests.bench.bench_engines import CRAWL, half, judged_pages, judgements, mean_f1, score, scores, squeezed, table
from tests.conftest import run_stage
from tests.corpus.visible import visible_columns, visible_lines

PLANTED, SEED, BAR = 500, 7, 0.985
PLACES = ("p", "li", "dd", "td")
AROUND = {"li": "ul", "dd": "dl"}


def files() -> list[Path]:
    """The shared crawls."""
    return [*sorted(CRAWL.glob("CRAWL-*.warc.gz")), *sorted((CRAWL / "real").glob("*.warc.gz"))]


def extracted(home: Path) -> Artifact:
    """The artifact of extract over all crawls."""
    warcs = run_stage(crawl.STAGE, {"warcs": [str(file) for file in files()]}, {}, home)
    config = {"max_bad_records": 1000, "max_page_bytes": 20_000_000}
    return run_stage(extract.STAGE, config, {"warc": warcs}, home, runtime={"workers": 2})


def built(home: Path, documents: Artifact, form: BodyFormat = "text") -> tuple[Artifact, dict[str, str]]:
    """The artifact of boilerplate, and URL -> body of each page's first capture; "" where it was dropped."""
    made = run_stage(boilerplate.STAGE, {"format": form}, {"documents": documents}, home, runtime={"workers": 2})
    bodies: dict[Any, str] = {}
    for path in sorted((made.path / "documents").glob("*.parquet")):
        bodies |= {row["doc_id"]: row["text"] for row in read_rows(path, ["doc_id", "text"])}
    texts: dict[str, str] = {}
    for path in sorted((made.path / "decisions").glob("*.parquet")):
        for row in read_rows(path, ["doc_id", "url"]):
            texts.setdefault(row["url"], bodies.get(row["doc_id"], ""))
    return made, texts


def sources() -> dict[str, str]:
    """URL -> HTML of every page of the crawls, its first capture."""
    found: dict[str, str] = {}
    for file in files():
        with file.open("rb") as stream:
            for record in read_records(stream, WarcLimits(20_000_000, 100.0)):
                if record.status == 200 and record.mime in ("text/html", "application/xhtml+xml") and record.url not in found:
                    found[record.url] = decode_page(record.body, record.charset)[0]
    return found


def plant(html: str, judged: set[str], words: str, tag: str, draw: random.Random) -> str | None:
    """The page with the words in a new element after a block of its body; None where no place is found.

    judged: the lines of the judged body; empty for other pages, where the block with most text is taken for the body.
    """
    page = lxml.html.document_fromstring(re.sub(r"^\s*<\?xml[^>]*\?>", "", html))
    blocks = list(page.iter("p", "li", "dd", "td", "pre", "div", "blockquote", "section", "article", "main"))
    if judged:
        found = [e for e in blocks if e.tag in PLACES and squeezed(e.text_content()) in judged]
    else:

        def own(e: Any) -> int:
            return len(e.text or "") + sum(
                len(c.tail or "") + (len(c.text_content()) if c.tag in ("p", "pre", "li", "dd") else 0) for c in e
            )

        biggest = max(blocks, key=own, default=None)
        if biggest is None or own(biggest) < 200:
            return None
        found = [c for c in biggest if c.tag in ("p", "li", "dd")] or [biggest]
    if not found:
        return None
    at, new = draw.choice(found), etree.Element(tag)
    new.text = words
    if at.tag == tag and tag != "td":
        at.tail, new.tail = None, at.tail
        at.addnext(new)
        return lxml.html.tostring(page, encoding="unicode")
    outer = new
    if tag == "td":
        outer = etree.Element("table")
        etree.SubElement(outer, "tr").append(new)
    elif tag in AROUND:
        outer = etree.Element(AROUND[tag])
        outer.append(new)
    if at.tag in ("li", "dd", "td", "div", "section", "article", "main", "blockquote"):
        at.append(outer)
    else:
        at.tail, outer.tail = None, at.tail
        at.addnext(outer)
    return lxml.html.tostring(page, encoding="unicode")


def body_of(html: str, url: str, known: KnownLines, repeated: str = "") -> tuple[str, str]:
    """The visible text and the body of a page, by the counts of the crawl; `repeated` is on a tenth of the pages of its host."""
    text, lines = visible_columns(html, url)
    counts = known.of_text(host_of(url), text)
    if repeated:
        has = np.array([repeated in squeezed(line) for line in lines.text], np.bool_)
        counts = replace(counts, of_lines=np.where(has, np.maximum(counts.of_lines, counts.pages // 10), counts.of_lines))
    why = removals(lines, title_of(text, lines.heading, lines.frame), counts, BoilerplateConfig())
    return squeezed(text), squeezed(" ".join(line for line, removed in zip(lines.text, why, strict=True) if removed is None))


def planted(known: KnownLines, html: dict[str, str], judged: list[dict[str, Any]]) -> list[str]:
    """Lines that say how many of the planted texts are in the bodies that are found."""
    draw, found, total, again, tried = random.Random(SEED), Counter[str](), Counter[str](), 0, 0
    bodies = {row["url"]: row for row in judged if row["words"] > 60}
    vocabulary = sorted({word for url in bodies for word in re.findall(r"[^\W\d_]{3,12}", squeezed(visible_lines(html[url], url)[0]))})
    while total["all"] < PLANTED:
        url = draw.choice(sorted(bodies)) if total["all"] % 2 == 0 else draw.choice(sorted(html))
        words, tag = " ".join(draw.choices(vocabulary, k=draw.randint(20, 60))), draw.choice(PLACES)
        lines: set[str] = set()
        if total["all"] % 2 == 0:
            text = [squeezed(line) for line in visible_lines(html[url], url)[0].split("\n") if line]
            lines = {re.sub(r"^(?:•|\d+\.) ", "", line) for a, b in bodies[url]["body"] for line in text[a : b + 1] if len(line) > 25}
        try:
            page = plant(html[url], lines, words, tag, draw)
            visible, body = body_of(page, url, known) if page else ("", "")
        except (TooCostlyError, etree.LxmlError, ValueError):
            continue
        if words not in visible:
            continue
        for group in ("all", tag, "judged" if lines else "other"):
            total[group] += 1
            found[group] += words in body
        if total["all"] % 2 and page:
            tried += 1
            again += words in body_of(page, url, known, repeated=words)[1]
    lines_of = [f"{group}: {found[group]} of {total[group]} ({found[group] / total[group]:.3f})" for group in total]
    return [*lines_of, f"as a text on a tenth of the host's pages: {again} of {tried} ({again / tried:.3f})"]


def rows() -> list[dict[str, Any]]:
    """For the one table of all benchmarks: F1 and body lost over the judged pages."""
    judged = judged_pages()
    with tempfile.TemporaryDirectory() as home:
        _, texts = built(Path(home), extracted(Path(home)))
    found = {page.url: score(page, texts.get(page.url, "")) for page in judged}
    f1, lost = mean_f1(found), 1 - statistics.mean(one.recall for one in found.values() if one.recall is not None)
    return [
        {"part": "boilerplate", "what": what, "ours": f"{value:.4f}", "peer": "", "ratio": None, "bar": bar, "reached": reached}
        for what, value, bar, reached in (("F1 of body words", f1, 0.95, f1 >= 0.95), ("body lost", lost, 0.015, lost <= 0.015))
    ]


def main() -> None:
    """Prints the table of all engines, the worst pages of the stages, and how many planted texts are found."""
    judged = judged_pages()
    with tempfile.TemporaryDirectory() as home:
        documents = extracted(Path(home))
        made, texts = built(Path(home), documents)
        _, markdown = built(Path(home), documents, "markdown")
        ours, as_markdown = ({page.url: score(page, of.get(page.url, "")) for page in judged} for of in (texts, markdown))
        engines = {"extract and boilerplate": ours, "the same as Markdown": as_markdown, **scores(judged)}
        print("\n".join(table(engines, judged)))
        for page in sorted((page for page in judged if ours[page.url].f1 is not None), key=lambda page: ours[page.url].f1 or 0.0)[:10]:
            one = ours[page.url]
            print(f"{half(page.url)}: F1 {one.f1:.2f}, precision {one.precision:.2f}, recall {one.recall:.2f}: {page.url}")
        print("\n".join(planted(KnownLines((made.path / "counts",)), sources(), judgements())))


if __name__ == "__main__":
    main()
