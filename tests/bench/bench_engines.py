"""How well libraries that extract text find a page's body, on 120 pages judged by readers; bench_boilerplate.py adds Loam's stages.

judged_pages.jsonl names 120 pages of the real crawls, drawn with a seed and spread over sites and languages. A reader (a person for 50
pages, a language model for the other 70) read each page as lines (all visible text, by resiliparse without its main content rule), without
the output of any other engine, and marked the lines of its body: headings, paragraphs, lists, tables, code and notes of the page itself, posts and
reviews of users. Not body are menus, breadcrumbs, links to other pages of the series, the page's own table of contents, language lists,
search boxes, widgets, copyright lines, and listings of bare links. The texts themselves are not kept here, but their first and last words and
their number of words, so that a judgement that no longer fits its page is noticed. `second` is the body that another reader, a language
model, marked without seeing the first; `agreement` compares the two. `kind` is the kind of site.

Measured in words (a CJK character counts as one), as bags: kept = words of the engine's text that are in the body; precision = kept /
text, recall = kept / body. Boilerplate kept is 1 - precision, body lost is 1 - recall, each the mean over pages. Lines of <pre> and rows of
<tr>, by lxml, count where a line of the judged body has the same words. A line of code is kept if the text has it as a line, and whole if its
indentation is there too; a row is kept if the text has its cells in one line. The hosts are divided in two halves by a seed: what is tuned is
tuned on the one, and reported on the other.
"""

from __future__ import annotations

import hashlib
import json
import random
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import lxml.html

from stages.corpus.extract.html import extract_text
from stages.corpus.warc.charset import decode_page
from stages.corpus.warc.framing import WarcLimits
from stages.corpus.warc.records import read_records
from tests.bench.corpus import require_judged_pages
from tests.made.real import real_folder

CRAWL = real_folder() / "crawl"
JUDGED = Path(__file__).with_name("judged_pages.jsonl")
CJK = r"\u3040-\u30ff\u3400-\u9fff\uac00-\ud7af"
SEED = 1  # divides the hosts so that each half has 60 pages
WORD = re.compile(rf"[{CJK}]|[^\W{CJK}]+")
CJK_LANGUAGES = ("zh", "ja", "ko")


@dataclass(frozen=True)
class JudgedPage:
    """A judged page.

    Attributes:
        url: Its address.
        lang: Its language.
        kind: The kind of its site.
        html: The page.
        body: The words of its body.
        code: The lines of code in its body, with indentation.
        rows: The rows of tables in its body, their cells divided by a space.
    """

    url: str
    lang: str
    kind: str
    html: str
    body: Counter[str]
    code: tuple[str, ...]
    rows: tuple[str, ...]


@dataclass(frozen=True)
class Score:
    """The score of a text of a page.

    Attributes:
        precision: Share of its words that are of the body.
        recall: Share of the body's words that it has; None for a page without a body.
        f1: Their harmonic mean; None for a page without a body.
        waste: Words that are not of the body.
        code: Lines of code that it has.
        whole: Of them with their indentation.
        rows: Rows of tables that it has in one line.
    """

    precision: float
    recall: float | None
    f1: float | None
    waste: int
    code: int
    whole: int
    rows: int


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


def marked_lines(page: str, judged: dict[str, Any]) -> list[str]:
    """The lines that were marked; raises ValueError where the page is not the one that was judged."""
    from resiliparse.extract.html2text import extract_plain_text

    text = extract_plain_text(page, main_content=False, preserve_formatting=True, alt_texts=False)
    lines = [line.strip() for line in text.split("\n") if line.strip()]
    body = [line for first, last in judged["body"] for line in lines[first : last + 1]]
    words = WORD.findall(" ".join(body))
    if (len(lines), len(words), " ".join(words[:4])) != (judged["lines"], judged["words"], judged["first"]):
        raise ValueError(f"the judgement does not fit the page {judged['url']}")
    return body


def squeezed(text: str) -> str:
    return " ".join(text.split())


def bare(line: str) -> str:
    """A line without the signs between cells."""
    return squeezed(line.replace("|", " "))


def judged_pages() -> list[JudgedPage]:
    """The judged pages with their bodies."""
    require_judged_pages()
    judged, found = judgements(), []
    texts = pages({row["url"] for row in judged})
    for row in judged:
        html = texts[row["url"]]
        body = marked_lines(html, row)
        of_body = {bare(line) for line in body}
        page = lxml.html.document_fromstring(re.sub(r"^\s*<\?xml[^>]*\?>", "", html))
        code = [line.rstrip() for block in page.iter("pre") for line in block.text_content().split("\n") if bare(line) in of_body]
        cells = [[bare(cell.text_content()) for cell in row.iter("td", "th")] for row in page.iter("tr")]
        rows = [" ".join(filter(None, row)) for row in cells if sum(map(bool, row)) > 1]
        found.append(
            JudgedPage(row["url"], row["lang"], row["kind"], html, Counter(WORD.findall(" ".join(body))), tuple(filter(None, code)),
                       tuple(one for one in rows if one in of_body))
        )  # fmt: skip
    return found


def score(page: JudgedPage, text: str) -> Score:
    """The score of a text of a judged page."""
    made, want = Counter(WORD.findall(text)), page.body.total()
    both = (page.body & made).total()
    precision, recall = (both / made.total() if made else 1.0), (both / want if want else None)
    f1 = None if recall is None else 2 * precision * recall / (precision + recall or 1)
    exact = {line.rstrip() for line in text.split("\n")}
    lines = {bare(line) for line in exact}
    code = sum(bare(line) in lines for line in page.code)
    return Score(
        precision, recall, f1, made.total() - both, code, sum(line in exact for line in page.code), sum(row in lines for row in page.rows)
    )


def _trafilatura(**settings: bool) -> Callable[[str], str]:
    def text(html: str) -> str:
        from trafilatura import extract

        return extract(html, **settings) or ""

    return text


def union(one: str, other: str) -> str:
    """The first text, and the lines of the second that it does not have."""
    lines = {squeezed(line) for line in one.split("\n")}
    return "\n".join([one, *(line for line in other.split("\n") if squeezed(line) not in lines)])


ENGINES: dict[str, Callable[[str], str]] = {
    "resiliparse": lambda html: extract_text(html, "resiliparse"),
    "trafilatura": _trafilatura(),
    "trafilatura, favour precision": lambda html: extract_text(html, "trafilatura"),
    "trafilatura, favour recall": _trafilatura(favor_recall=True),
    "jusText": lambda html: extract_text(html, "justext"),
    "resiliparse and trafilatura, union": lambda html: union(extract_text(html, "resiliparse"), _trafilatura(favor_recall=True)(html)),
}


def scores(judged: Sequence[JudgedPage]) -> dict[str, dict[str, Score]]:
    """Engine -> URL -> the score of its text."""
    return {name: {page.url: score(page, engine(page.html)) for page in judged} for name, engine in ENGINES.items()}


def groups(judged: Sequence[JudgedPage]) -> dict[str, list[JudgedPage]]:
    """The pages by half, kind of site and language."""
    found: dict[str, list[JudgedPage]] = defaultdict(list)
    for page in judged:
        language = {"en": "English", "fr": "French"}.get(page.lang, "zh, ja, ko" if page.lang in CJK_LANGUAGES else "other languages")
        for name in ("all", f"{half(page.url)} half", page.kind, language):
            found[name].append(page)
    return {name: found[name] for name in sorted(found, key=lambda name: -len(found[name]))}


def bootstrap(f1: Mapping[str, float]) -> tuple[float, float]:
    """The 90 % interval of the mean when hosts are drawn again, 2,000 times. f1: URL -> F1."""
    hosts: dict[str, list[float]] = defaultdict(list)
    for url, value in sorted(f1.items()):
        hosts[urlsplit(url).netloc].append(value)
    draw, names = random.Random(SEED), sorted(hosts)
    means = sorted(statistics.mean(v for name in draw.choices(names, k=len(names)) for v in hosts[name]) for _ in range(2000))
    return means[100], means[1899]


def table(found: Mapping[str, Mapping[str, Score]], judged: Sequence[JudgedPage]) -> Iterator[str]:
    """A Markdown table: one line per group of pages and engine."""
    yield (
        "| pages | text by | F1 (90 % interval over hosts) | body lost | boilerplate kept | pages with under half of the body "
        "| words of pages without a body | code lines (whole) | table rows |"
    )
    yield "|---" * 9 + "|"
    for group, of in groups(judged).items():
        for engine, by_url in found.items():
            rows = [by_url[page.url] for page in of]
            scored = [row for row in rows if row.f1 is not None]
            if not scored:
                continue
            f1 = {page.url: f for page in of if (f := by_url[page.url].f1) is not None}
            low, high = bootstrap(f1)
            recall = [row.recall or 0.0 for row in scored]
            code, table_rows = sum(len(page.code) for page in of), sum(len(page.rows) for page in of)
            kept, whole, kept_rows = (sum(getattr(row, name) for row in rows) for name in ("code", "whole", "rows"))
            yield (
                f"| {group} ({len(scored)}) | {engine} | {statistics.mean(f1.values()):.3f} ({low:.3f} to {high:.3f}) "
                f"| {1 - statistics.mean(recall):.4f} | {1 - statistics.mean(row.precision for row in scored):.3f} | {sum(r < 0.5 for r in recall)} "
                f"| {sum(row.waste for row in rows if row.f1 is None)} | {_share(kept, code)} ({_share(whole, code)}) | {_share(kept_rows, table_rows)} |"
            )


def _share(part: int, whole: int) -> str:
    return f"{part / whole:.3f} of {whole:,}" if whole else "-"


def mean_f1(found: Mapping[str, Score]) -> float:
    return statistics.mean(score.f1 for score in found.values() if score.f1 is not None)


def rows() -> list[dict[str, Any]]:
    """For the one table of all benchmarks: resiliparse against each other library; no bar was set."""
    means = {engine: mean_f1(of) for engine, of in scores(judged_pages()).items()}
    return [
        {"part": "engines", "what": "F1 of body words, 112 judged pages", "ours": f"resiliparse {means['resiliparse']:.3f}",
         "peer": f"{peer} {mean:.3f}", "ratio": round(means["resiliparse"] / mean, 2), "bar": None, "reached": None}
        for peer, mean in means.items() if peer != "resiliparse"
    ]  # fmt: skip


def main() -> None:
    """Prints the table, and how far the readers agree."""
    judged = judged_pages()
    print("\n".join(table(scores(judged), judged)))
    print({name: round(value, 3) for name, value in agreement(judgements()).items()})


if __name__ == "__main__":
    main()
