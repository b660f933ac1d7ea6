"""How well the engines of extraction find a page's body: boilerplate kept and body text lost on 120 pages judged by readers.

judged_pages.jsonl names 120 pages of the real crawls, drawn with a seed and spread over sites and languages. A reader (a person for 50
pages, a language model for the other 70) read each page as lines (all visible text, by resiliparse without its main content rule), without
the output of any other engine, and marked the lines of its body: headings, paragraphs, lists, tables, code and notes of the page itself, posts and
reviews of users. Not body are menus, breadcrumbs, links to other pages of the series, the page's own table of contents, language lists,
search boxes, widgets, copyright lines, and listings of bare links. The texts themselves are not kept here, but their first and last words and
their number of words, so that a judgement that no longer fits its page is noticed. `second` is the body that another reader, a language
model, marked without seeing the first; `agreement` compares the two.

Measured in words (a CJK character counts as one), as bags: kept = words of the engine's text that are in the body; precision = kept /
text, recall = kept / body. Boilerplate kept is 1 - precision, body lost is 1 - recall, each the mean over pages. The hosts are divided in two
halves by a seed: what is tuned is tuned on the one, and reported on the other.
"""

from __future__ import annotations

import hashlib
import json
import re
import statistics
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any, get_args
from urllib.parse import urlsplit

from stages.text.warc.charset import decode_page
from stages.text.warc.framing import WarcLimits
from stages.text.warc.html import MainTextEngine, extract_text
from stages.text.warc.records import read_records
from tests.made.real import real_folder

CRAWL = real_folder() / "crawl"
JUDGED = Path(__file__).with_name("judged_pages.jsonl")
CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
SEED = 1  # divides the hosts so that each half has 60 pages
WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+")


def judgements() -> list[dict[str, Any]]:
    """url, lang, lines (of the page), body (ranges of lines, both ends included), words (of the body), first and last words.

    Some have `second`, the body by another reader.
    """
    return [json.loads(line) for line in JUDGED.read_text().splitlines()]


def half(url: str) -> str:
    """The half of the pages that a page is in, by its host: "tune" or "report"."""
    return ("report", "tune")[hashlib.sha256(f"{SEED} {urlsplit(url).netloc}".encode()).digest()[0] % 2]


def agreement(judged: list[dict[str, Any]]) -> dict[str, float]:
    """How far two readers agree: share of lines, Cohen's kappa of lines, and the mean F1 of one body against the other, in lines.

    Pages in which both found no body have no F1; it is 0 where one of them found none.
    """
    twice = [row for row in judged if "second" in row]
    marks = [tuple({n for a, b in row[name] for n in range(a, b + 1)} for name in ("body", "second")) for row in twice]
    lines = sum(row["lines"] for row in twice)
    same = lines - sum(len(one ^ two) for one, two in marks)
    first, second = (sum(len(pair[side]) for pair in marks) / lines for side in (0, 1))
    expected = first * second + (1 - first) * (1 - second)
    f1 = [2 * len(one & two) / (len(one) + len(two)) for one, two in marks if one or two]
    return {"pages": len(twice), "lines": same / lines, "kappa": (same / lines - expected) / (1 - expected), "f1": statistics.mean(f1)}


def pages(wanted: set[str]) -> dict[str, str]:
    """URL -> the decoded page, its first capture."""
    found: dict[str, str] = {}
    for file in [*sorted(CRAWL.glob("CRAWL-*.warc.gz")), *sorted((CRAWL / "real").glob("*.warc.gz"))]:
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
    for engine in get_args(MainTextEngine):
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
    yield "| engine | pages | boilerplate kept | body lost | F1 | pages with under half of the body | words of pages without a body |"
    yield "|---|---|---|---|---|---|---|"
    for engine, rows in found.items():
        manuals = [row for row in rows if ".example/" in row["url"]]
        halves = [(f"{name} half", [row for row in rows if half(row["url"]) == name]) for name in ("tune", "report")]
        for kind, of in (("all", rows), ("manuals", manuals), ("other sites", [row for row in rows if row not in manuals]), *halves):
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
        {"part": "engines", "what": "F1 of body words, 112 judged pages", "ours": f"resiliparse {means['resiliparse']:.3f}",
         "peer": f"{peer} {means[peer]:.3f}", "ratio": round(means["resiliparse"] / means[peer], 2), "bar": None, "reached": None}
        for peer in ("trafilatura", "justext")
    ]  # fmt: skip


def main() -> None:
    """Prints the table, and the pages on which the default engine is worst."""
    found = scores()
    print("\n".join(table(found)))
    print({name: round(value, 3) for name, value in agreement(judgements()).items()})
    worst = sorted((row for row in found["resiliparse"] if row["f1"] is not None), key=lambda row: row["f1"])[:8]
    for row in worst:
        others = {engine: next(round(r["f1"], 2) for r in of if r["url"] == row["url"]) for engine, of in found.items()}
        print(f"{row['url']}: boilerplate {1 - row['precision']:.2f}, lost {1 - row['recall']:.2f}; F1 {others}")


if __name__ == "__main__":
    main()
