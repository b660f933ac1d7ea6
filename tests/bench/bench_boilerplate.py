"""How well extract and boilerplate find a page's body, on the judged pages of bench_engines.py and by the same measure.

`python -m tests.bench.bench_boilerplate`: two minutes. It runs the stages on all shared crawls, so that every host has its counts. Then it
plants 500 paragraphs, list items, definitions and table cells at seeded places of the bodies of crawled pages, one each, and counts how
many are in the body that is found of the changed page; half of them again as a text that is on a tenth of the pages of the host.
Thresholds were tuned on the tune half of the judged pages alone.
"""

from __future__ import annotations

import random
import re
import statistics
import tempfile
from collections import Counter, defaultdict
from dataclasses import replace
from pathlib import Path
from typing import Any

import lxml.html
from lxml import etree

from stages import boilerplate, crawl, extract
from stages.boilerplate import BoilerplateConfig
from stages.core.contract.declaration import Artifact
from stages.core.tables.parquet import read_rows
from stages.text.body.body_rules import removals
from stages.text.body.known_lines import KnownLines
from stages.text.body.line_keys import host_of, title_of
from stages.text.warc.charset import decode_page
from stages.text.warc.framing import WarcLimits
from stages.text.warc.html import TooCostlyError
from stages.text.warc.records import read_records
from tests.bench.bench_engines import CRAWL, WORD, body_words, half, judgements
from tests.conftest import run_stage
from tests.text.visible import visible_lines

Score = tuple[float, float | None, float | None, int]
"""Precision, recall, F1 (None for a page without a body), and words that are not of the body."""
PLANTED, SEED, BAR = 500, 7, 0.985
PLACES = ("p", "li", "dd", "td")
AROUND = {"li": "ul", "dd": "dl"}


def files() -> list[Path]:
    """The shared crawls."""
    return [*sorted(CRAWL.glob("CRAWL-*.warc.gz")), *sorted((CRAWL / "real").glob("*.warc.gz"))]


def built(home: Path) -> tuple[Artifact, dict[str, str]]:
    """The artifact of boilerplate over all crawls, and URL -> body of each page's first capture; "" where it was dropped."""
    warcs = run_stage(crawl.STAGE, {"warcs": [str(file) for file in files()]}, {}, home)
    documents = run_stage(
        extract.STAGE, {"max_bad_records": 1000, "max_page_bytes": 20_000_000}, {"warc": warcs}, home, runtime={"workers": 2}
    )
    made = run_stage(boilerplate.STAGE, {}, {"documents": documents}, home, runtime={"workers": 2})
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


def score(body: Counter[str], text: str) -> Score:
    """The score of a text against the words of the judged body."""
    made = Counter(WORD.findall(text))
    both, want = (body & made).total(), body.total()
    precision, recall = (both / made.total() if made else 1.0), (both / want if want else None)
    return precision, recall, None if recall is None else 2 * precision * recall / (precision + recall or 1), made.total() - both


def table(found: dict[str, Score]) -> list[str]:
    """Lines of a Markdown table: one per group of pages, with the standard error over hosts of F1."""
    manuals = {url for url in found if ".example/" in url}
    groups = {"all": set(found)} | {f"{name} half": {url for url in found if half(url) == name} for name in ("tune", "report")}
    made = [
        "| pages | boilerplate kept | body lost | F1 (90 % interval over hosts) | words of pages without a body |",
        "|---|---|---|---|---|",
    ]
    for group, urls in (groups | {"manuals": manuals, "other sites": set(found) - manuals}).items():
        rows = [found[url] for url in urls]
        precision = statistics.mean(p for p, recall, _, _ in rows if recall is not None)
        recall = statistics.mean(r for _, r, _, _ in rows if r is not None)
        f1 = {url: f for url in sorted(urls) if (f := found[url][2]) is not None}
        low, high = bootstrap(f1)
        waste = sum(w for _, r, _, w in rows if r is None)
        made.append(
            f"| {group} ({len(f1)}) | {1 - precision:.3f} | {1 - recall:.4f} | {statistics.mean(f1.values()):.3f} ({low:.3f} to {high:.3f}) | {waste} |"
        )
    return made


def bootstrap(f1: dict[str, float]) -> tuple[float, float]:
    """The 90 % interval of the mean when hosts are drawn again, 2,000 times."""
    hosts: dict[str, list[float]] = defaultdict(list)
    for url, value in f1.items():
        hosts[host_of(url)].append(value)
    draw, names = random.Random(SEED), sorted(hosts)
    means = sorted(statistics.mean(v for name in draw.choices(names, k=len(names)) for v in hosts[name]) for _ in range(2000))
    return means[100], means[1899]


def squeezed(text: str) -> str:
    return " ".join(text.split())


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
    text, lines = visible_lines(html, url)
    counts = known.of_text(host_of(url), text)
    if repeated:
        often = counts.pages // 10
        on = [max(n, often) if repeated in squeezed(line.text) else n for n, line in zip(counts.of_lines, lines, strict=True)]
        counts = replace(counts, of_lines=on)
    title = title_of(text, [line.heading for line in lines], [line.frame for line in lines])
    why = removals(lines, title, counts, BoilerplateConfig())
    return squeezed(text), squeezed(" ".join(line.text for line, removed in zip(lines, why, strict=True) if removed is None))


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
    with tempfile.TemporaryDirectory() as home:
        _, texts = built(Path(home))
        judged = judgements()
        html = sources()
        found = [score(body_words(html[row["url"]], row), texts.get(row["url"], "")) for row in judged]
    f1 = statistics.mean(f for _, _, f, _ in found if f is not None)
    lost = 1 - statistics.mean(r for _, r, _, _ in found if r is not None)
    return [
        {"part": "boilerplate", "what": what, "ours": f"{value:.4f}", "peer": "", "ratio": None, "bar": bar, "reached": reached}
        for what, value, bar, reached in (("F1 of body words", f1, 0.95, f1 >= 0.95), ("body lost", lost, 0.015, lost <= 0.015))
    ]


def main() -> None:
    judged = judgements()
    with tempfile.TemporaryDirectory() as home:
        made, texts = built(Path(home))
        html = sources()
        found = {row["url"]: score(body_words(html[row["url"]], row), texts.get(row["url"], "")) for row in judged}
        print("\n".join(table(found)))
        for url, (precision, recall, f1, _) in sorted(
            ((u, s) for u, s in found.items() if s[2] is not None), key=lambda pair: pair[1][2] or 0.0
        )[:10]:
            print(f"{half(url)}: F1 {f1:.2f}, precision {precision:.2f}, recall {recall:.2f}: {url}")
        print("\n".join(planted(KnownLines((made.path / "counts",)), html, judged)))


if __name__ == "__main__":
    main()
