"""How well the rules of body_rules.py find a page's body, on the judged pages of bench_engines.py and by the same measure.

`python -m tests.bench.bench_boilerplate [ablate]`: half a minute for the whole crawl; with `ablate` also without each rule. The thresholds were tuned on
the tune half alone.
"""

from __future__ import annotations

import statistics
import sys
from collections import Counter
from collections.abc import Collection
from typing import Any
from urllib.parse import urlsplit

from stages.text.warc.charset import decode_page
from stages.text.warc.framing import WarcLimits
from stages.text.warc.records import read_records
from tests.bench.bench_engines import CRAWL, WORD, body_words, half, judgements
from tests.bench.body_rules import RULES, Host, Line, host_tables, keep, lines, marked_text

Score = tuple[float, float | None, float | None, int]
"""Precision, recall, F1 (None for a page without a body), and words that are not of the body."""


def crawled(wanted: Collection[str]) -> tuple[dict[str, list[Line]], dict[str, str]]:
    """URL -> lines of every page of the crawl (its first capture), and the HTML of the wanted ones."""
    found: dict[str, list[Line]] = {}
    sources: dict[str, str] = {}
    for file in [*sorted(CRAWL.glob("CRAWL-*.warc.gz")), *sorted((CRAWL / "real").glob("*.warc.gz"))]:
        with file.open("rb") as stream:
            for record in read_records(stream, WarcLimits(20_000_000, 100.0)):
                if record.status == 200 and record.mime in ("text/html", "application/xhtml+xml") and record.url not in found:
                    page = decode_page(record.body, record.charset)[0]
                    found[record.url] = lines(marked_text(page, record.url))
                    if record.url in wanted:
                        sources[record.url] = page
    return found, sources


def scores(judged: list[dict[str, Any]], bodies: dict[str, Counter[str]], found: dict[str, list[Line]], hosts: dict[str, Host],
           off: Collection[str] = ()) -> dict[str, Score]:  # fmt: skip
    """URL -> score of the judged pages. off: rules that are left out."""
    result: dict[str, Score] = {}
    for row in judged:
        url = row["url"]
        kept = keep(found[url], hosts[urlsplit(url).netloc], off)
        made = Counter(WORD.findall(" ".join(line.text for line, stays in zip(found[url], kept, strict=True) if stays)))
        both, want = (bodies[url] & made).total(), bodies[url].total()
        precision, recall = (both / made.total() if made else 1.0), (both / want if want else None)
        f1 = None if recall is None else 2 * precision * recall / (precision + recall or 1)
        result[url] = (precision, recall, f1, made.total() - both)
    return result


def table(name: str, found: dict[str, Score]) -> list[str]:
    """Lines of a Markdown table: one per group of pages."""
    manuals = {url for url in found if ".example/" in url}
    groups = {f"{name} half": {url for url in found if half(url) == name} for name in ("tune", "report")}
    made = []
    for group, urls in ({"all": set(found)} | groups | {"manuals": manuals, "other sites": set(found) - manuals}).items():
        rows = [found[url] for url in urls]
        precision = statistics.mean(p for p, recall, _, _ in rows if recall is not None)
        recall = statistics.mean(r for _, r, _, _ in rows if r is not None)
        f1 = statistics.mean(f for _, _, f, _ in rows if f is not None)
        count, waste = sum(r is not None for _, r, _, _ in rows), sum(w for _, r, _, w in rows if r is None)
        made.append(f"| {name} | {group} ({count}) | {1 - precision:.3f} | {1 - recall:.4f} | {f1:.3f} | {waste} |")
    return made


def main(ablate: bool) -> None:
    judged = judgements()
    found, sources = crawled({row["url"] for row in judged})
    bodies = {row["url"]: body_words(sources[row["url"]], row) for row in judged}
    hosts = host_tables(found)
    print("| rules | pages | boilerplate kept | body lost | F1 | words of pages without a body |\n|---|---|---|---|---|---|")
    result = scores(judged, bodies, found, hosts)
    print("\n".join(table("all rules", result)))
    for rule in RULES if ablate else ():
        print("\n".join(table(f"without {rule}", scores(judged, bodies, found, hosts, {rule}))))
    for url, (precision, recall, f1, _) in sorted(
        ((u, s) for u, s in result.items() if s[2] is not None), key=lambda pair: pair[1][2] or 0.0
    )[:10]:
        print(f"{half(url)}: F1 {f1:.2f}, precision {precision:.2f}, recall {recall:.2f}: {url}")


if __name__ == "__main__":
    main("ablate" in sys.argv)
