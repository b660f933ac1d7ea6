"""A small web: documentation of installed packages in two editions, pages written by hand in ten languages and many charsets, and the rest.

Guarantee: the same installed packages give the same pages. Cost: about a second, most of it for the packages' documentation.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from html import escape

from stages.corpus.crawl.doc_site import HOST, build_site, render
from tests.made.prose import LANGUAGES, paragraphs

PACKAGES = ("datasketch", "warcio", "packaging", "httpx", "datatrove", "fsspec")
"""Small packages that Loam depends on, with documentation enough for three hundred pages."""
STATED = {  # language -> (charset, where the page states it) of the pages that are not UTF-8
    "ru": (("windows-1251", "header"), ("koi8-r", "meta")),
    "ja": (("shift_jis", "meta"), ("euc-jp", "header")),
    "zh": (("gb18030", "header"), ("gb2312", "meta")),
    "ko": (("EUC-KR", "meta"),),
    "de": (("iso-8859-1", "header"), ("iso-8859-1", "")),
    "fr": (("iso-8859-15", "meta"),),
    "es": (("iso-8859-1", "xml"),),
    "ar": (("windows-1256", "header"),),
    "hi": (("utf-16", "header"),),
}
PATHS = {"de": "/de/", "fr": "/fr/", "ja": "/guide.ja/", "zh": "/zh-cn/", "ru": "/ru/", "ko": "/ko/"}
PAGES, KOREAN_PAGES, LONG_SENTENCES = 12, 40, 150


@dataclass(frozen=True)
class Page:
    """What a server answers. said: the first paragraph, which its text must hold; language, charset: of pages written by hand."""

    url: str
    body: bytes
    content_type: str = "text/html; charset=utf-8"
    status: int = 200
    said: str = ""
    language: str = ""
    charset: str = ""


def html(language: str, number: int, sections: list[str], head: str = "", before: str = "") -> str:
    """A page as sites have them: a menu, the text, a footer."""
    menu = "".join(f'<li><a href="{n}.html">{n}</a></li>' for n in range(5))
    text = "\n".join(f"<p>{escape(section, quote=False)}</p>" for section in sections)
    return (
        f'{before}<!doctype html>\n<html lang="{language}">\n<head>{head}<title>{number}</title></head>\n<body>\n<nav><ul>{menu}</ul></nav>\n'
        f"<main>\n<h1>{number}</h1>\n{text}\n</main>\n<footer><p>2026</p></footer>\n</body>\n</html>\n"
    )


def written(language: str, number: int, charset: str = "utf-8", where: str = "header", count: int = 12, url: str = "") -> Page:
    """A page written by hand, in a charset that it states in a header, a meta tag, an XML declaration or nowhere."""
    sections = paragraphs(language, count // 4, f"page/{number}")
    head = f'<meta http-equiv="Content-Type" content="text/html; charset={charset}">' if where == "meta" else ""
    before = f'<?xml version="1.0" encoding="{charset}"?>\n' if where == "xml" else ""
    mime = "application/xhtml+xml" if where == "xml" else "text/html"
    text = html(language, number, sections, head, before)
    if before:
        text = text.replace("<!doctype html>\n<html", '<html xmlns="http://www.w3.org/1999/xhtml"')
    return Page(
        url or f"http://stories.made.invalid{PATHS.get(language, f'/{language}/')}{charset.lower()}/{number}.html",
        text.encode(charset),
        f"{mime}; charset={charset}" if where == "header" else mime,
        said=sections[0],
        language=language,
        charset=charset,
    )


def documentation() -> Iterator[Page]:
    """Both editions of the packages' pages: near and exact duplicates, indexes, links that lead nowhere."""
    site = build_site(PACKAGES, ["stable", "latest"], 400, 300)
    paths = ["/robots.txt", "/"]
    for edition in site.editions:
        paths += [f"/{edition}/index.html", f"/{edition}/changelog.html"]
        for package in site.versions:
            paths += [f"/{edition}/{package}/index.html", f"/{edition}/{package}/contributing.html"]
        paths += [f"/{edition}/{module.package}/{module.name}.html" for module in site.modules]
    for path in paths:
        answer = render(site, path)
        yield Page(f"http://{HOST}{path}", answer.body.encode(), answer.mime, answer.status)


def others() -> Iterator[Page]:
    """What is no page, or a page without text."""
    root = "http://stories.made.invalid"
    yield Page(f"{root}/style.css", b"p { margin: 0 }\n", "text/css")
    yield Page(f"{root}/menu.js", b"document.title = 'Stories';\n", "application/javascript")
    yield Page(f"{root}/drawing.svg", b'<svg xmlns="http://www.w3.org/2000/svg"><text>A drawing</text></svg>\n', "image/svg+xml")
    yield Page(f"{root}/feed.xml", b'<?xml version="1.0"?>\n<rss><channel/></rss>\n', "application/xml")
    yield Page(f"{root}/archive.gz", bytes(range(256)), "application/gzip")
    yield Page(f"{root}/blank.html", b"<html><head><title></title></head><body><!-- nothing yet --></body></html>\n")
    yield Page(f"{root}/gone.html", b"<html><body><h1>Gone</h1><p>The page has left.</p></body></html>\n", status=410)
    yield Page(f"{root}/moved.html", b"", "text/html", 301)


def all_pages() -> list[Page]:
    """Everything that the made crawl holds, each URL once."""
    found = [*documentation(), *others()]
    for language in LANGUAGES:
        count = LONG_SENTENCES if language in ("de", "fr") else 40
        found += [written(language, number, count=count) for number in range(PAGES)]
        for charset, where in STATED.get(language, ()):
            pages = KOREAN_PAGES if charset == "EUC-KR" else 3
            found += [written(language, 100 + number, charset, where) for number in range(pages)]
    mirrored = [page for page in found if page.language == "en"]
    return found + [Page(page.url.replace("stories.", "mirror."), page.body, said=page.said) for page in mirrored]
