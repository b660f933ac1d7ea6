"""How well the engines of extraction find a page's body: boilerplate kept and body text lost on 50 pages judged by hand.

judged_pages.jsonl names 50 pages of the real crawl, drawn with a seed and spread over sites and languages (34 pages of manuals in
12 languages, 16 pages of other sites). A person read each page as lines (all visible text, by resiliparse without its main
content rule) and marked the lines of its body: headings, paragraphs, lists, tables, code and notes of the page itself. Not body
are menus, breadcrumbs, links to other pages of the series, the page's own table of contents, language lists, search boxes, widgets,
copyright lines. Two pages (directory listings) have no body. The texts themselves are not kept here, but their first and last
words and their number of words, so that a judgement that no longer fits its page is noticed.

Measured in words (a CJK character counts as one), as bags: kept = words of the engine's text that are in the body; precision = kept /
text, recall = kept / body. Boilerplate kept is 1 - precision, body lost is 1 - recall, each the mean over pages.
"""

from __future__ import annotations

import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args

from stages.text.warc.charset import decode_page
from stages.text.warc.framing import WarcLimits
from stages.text.warc.html import Engine, extract_text
from stages.text.warc.records import read_records
from tests.made.real import real_folder

CRAWL = real_folder() / "crawl"
JUDGED = Path(__file__).with_name("judged_pages.jsonl")
CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+")


def judgements() -> list[dict[str, Any]]:
    """url, lang, lines (of the page), body (ranges of lines, both ends included), words (of the body), first and last words."""
    return [json.loads(line) for line in JUDGED.read_text().splitlines()]


def pages(wanted: set[str]) -> dict[str, str]:
    """URL -> the decoded page, its first capture."""
    found: dict[str, str] = {}
    for file in [*sorted(CRAWL.glob("CRAWL-*.warc.gz")), *sorted((CRAWL / "real").glob("*-*.warc.gz"))]:
        with file.open("rb") as stream:
            for record in read_records(stream, WarcLimits(20_000_000, 100.0)):
                if record.url in wanted and record.status == 200 and record.mime == "text/html":
                    found.setdefault(record.url, decode_page(record.body, record.charset)[0])
    return found


def body_words(page: str, judged: dict[str, Any]) -> Counter[str]:
    """The words of the lines that were marked; raises ValueError where the page is not the one that was judged."""
    from resiliparse.extract.html2text import extract_plain_text

    text = extract_plain_text(page, main_content=False, preserve_formatting=True, alt_texts=False)
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    words = WORD.findall(" ".join(" ".join(lines[first : last + 1]) for first, last in judged["body"]))
    if (len(lines), len(words), " ".join(words[:4])) != (judged["lines"], judged["words"], judged["first"]):
        raise ValueError(f"the judgement does not fit the page {judged['url']}")
    return Counter(words)


def scores() -> dict[str, list[dict[str, Any]]]:
    """Per engine, per page: precision, recall, f1 (None where the page has no body), words kept of what is no body."""
    judged = judgements()
    texts = pages({row["url"] for row in judged})
    result: dict[str, list[dict[str, Any]]] = {}
    for engine in get_args(Engine):
        result[engine] = []
        for row in judged:
            body, found = body_words(texts[row["url"]], row), Counter(WORD.findall(extract_text(texts[row["url"]], engine)))
            kept, made = (body & found).total(), found.total()
            score = {"url": row["url"], "lang": row["lang"], "waste": made - kept, "precision": None, "recall": None, "f1": None}
            if body:
                precision, recall = kept / made if made else 1.0, kept / body.total()
                score |= {"precision": precision, "recall": recall, "f1": 2 * precision * recall / (precision + recall or 1)}
            result[engine].append(score)
    return result


def table(found: dict[str, list[dict[str, Any]]]) -> Iterator[str]:
    """A Markdown table: one line per engine and kind of page."""
    yield "| engine | pages | boilerplate kept | body lost | F1 | pages with under half of the body | words of the 2 listings |"
    yield "|---|---|---|---|---|---|---|"
    for engine, rows in found.items():
        manuals = [row for row in rows if ".example/" in row["url"]]
        for kind, of in (("all", rows), ("manuals", manuals), ("other sites", [row for row in rows if row not in manuals])):
            scored = [row for row in of if row["f1"] is not None]
            mean = {name: statistics.mean(row[name] for row in scored) for name in ("precision", "recall", "f1")}
            lost = sum(row["recall"] < 0.5 for row in scored)
            listings = sum(row["waste"] for row in of if row["f1"] is None) if kind == "all" else ""
            yield (
                f"| {engine} | {kind} ({len(scored)}) | {1 - mean['precision']:.3f} | {1 - mean['recall']:.3f} | {mean['f1']:.3f} "
                f"| {lost} | {listings} |"
            )


def rows() -> list[dict[str, Any]]:
    """For the one table of all benchmarks: resiliparse (the default) against each other engine; no bar was set."""
    means = {engine: statistics.mean(row["f1"] for row in of if row["f1"] is not None) for engine, of in scores().items()}
    return [
        {"part": "engines", "what": "F1 of body words, 50 pages judged by hand", "ours": f"resiliparse {means['resiliparse']:.3f}",
         "peer": f"{peer} {means[peer]:.3f}", "ratio": round(means["resiliparse"] / means[peer], 2), "bar": None, "reached": None}
        for peer in ("trafilatura", "justext")
    ]  # fmt: skip


def main() -> None:
    """Prints the table, and the pages on which the default engine is worst."""
    found = scores()
    print("\n".join(table(found)))
    worst = sorted((row for row in found["resiliparse"] if row["f1"] is not None), key=lambda row: row["f1"])[:8]
    for row in worst:
        others = {engine: next(round(r["f1"], 2) for r in of if r["url"] == row["url"]) for engine, of in found.items()}
        print(f"{row['url']}: boilerplate {1 - row['precision']:.2f}, lost {1 - row['recall']:.2f}; F1 {others}")


if __name__ == "__main__":
    main()
