"""An HTML page's main text, by one of three engines: without navigation, with paragraphs and code blocks kept.

Guarantee: pure, on every engine (no clock, no memory of other pages); never fails on any page (the caller gets "" where there is no
text); inline tags never split a word. Elements nested deeper than MAX_DEPTH are refused, because resiliparse takes quadratic time
there. Cost per core: resiliparse about 750 pages/s, justext 90, trafilatura 27. Source: resiliparse (Bevendorff et al. 2018),
trafilatura (Barbaresi 2021), jusText (Pomikalek 2011). How well each does: ARCHITECTURE, "Engines of extraction".
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING, Literal

if TYPE_CHECKING:
    from resiliparse.parse.html import HTMLTree

Engine = Literal["resiliparse", "trafilatura", "justext"]
SNIFF_BYTES = 1024
MAX_DEPTH = 1024  # twice what Chromium keeps (kMaximumHTMLParserDOMTreeDepth, 512); resiliparse takes 20 ms there, 7 s at 20,000
TOO_DEEP = " > ".join("*" * (MAX_DEPTH + 1))
CONTROL = re.compile(r"[\x00-\x08\x0b\x0c\x0e-\x1f\x7f-\x9f\ufeff\ufffe\uffff]")
LOW_CONTROL = bytes([*range(9), 11, 12, *range(14, 32), 127])
HIGH_CONTROL = re.compile(rb"\xc2[\x80-\x9f]")  # in UTF-8; a pattern that begins with one literal byte is found by memchr
MARKS = re.compile(rb"\xef(?:\xbb\xbf|\xbf[\xbe\xbf])")
XML_PROLOGUE = re.compile(r"^\s*<\?xml[^>]*\?>")
STOPLISTS = {  # of jusText, for the languages that resiliparse tells apart
    "ar": "Arabic", "be": "Belarusian", "bg": "Bulgarian", "ca": "Catalan", "cs": "Czech", "da": "Danish", "de": "German", "el": "Greek",
    "en": "English", "es": "Spanish", "et": "Estonian", "eu": "Basque", "fa": "Persian", "fi": "Finnish", "fr": "French",
    "gl": "Galician", "he": "Hebrew", "hi": "Hindi", "hr": "Croatian", "hu": "Hungarian", "id": "Indonesian", "is": "Icelandic",
    "it": "Italian", "ko": "Korean", "lt": "Lithuanian", "lv": "Latvian", "mk": "Macedonian", "ms": "Malay", "nl": "Dutch",
    "no": "Norwegian_Bokmal", "pl": "Polish", "pt": "Portuguese", "ro": "Romanian", "ru": "Russian", "sk": "Slovak", "sl": "Slovenian",
    "sq": "Albanian", "sr": "Serbian", "sv": "Swedish", "tr": "Turkish", "uk": "Ukrainian", "ur": "Urdu", "vi": "Vietnamese",
}  # fmt: skip


class TooDeepError(ValueError):
    """The page's elements are nested deeper than MAX_DEPTH."""


def looks_like_html(body: bytes) -> bool:
    """Whether the first kilobyte has an <html> or an HTML doctype: for pages served as XML or without a type."""
    head = body[:SNIFF_BYTES].lower()
    return b"<html" in head or b"<!doctype html" in head


def extract_text(html: str, engine: Engine = "resiliparse") -> str:
    """The main text of a page; "" where it has none or cannot be parsed. Raises TooDeepError."""
    tree = _tree_if_deep(html)
    if engine == "resiliparse":
        return tidy(_by_resiliparse(html if tree is None else tree))
    page = XML_PROLOGUE.sub("", CONTROL.sub("", html))  # lxml takes neither in a string
    return tidy(_by_trafilatura(page) if engine == "trafilatura" else _by_justext(page))


def tidy(text: str) -> str:
    """Control characters, trailing blanks and runs of empty lines removed.

    >>> tidy("a  \\n\\n\\n\\nb\\x00 ")
    'a\\n\\nb'
    """
    data = text.encode()
    if len(data.translate(None, delete=LOW_CONTROL)) < len(data) or HIGH_CONTROL.search(data) or MARKS.search(data):
        text = CONTROL.sub("", text)
    if " \n" in text or "\t\n" in text or "\r" in text:
        text = "\n".join([line.rstrip(" \t\r") for line in text.split("\n")])
    while "\n\n\n" in text:  # three times as fast as a regular expression
        text = text.replace("\n\n\n", "\n\n")
    return text.strip()


def _tree_if_deep(html: str) -> HTMLTree | None:
    """The parsed page if it has enough elements to be nested deeply; None otherwise."""
    from resiliparse.parse.html import HTMLParserException, HTMLTree

    if html.count("<") <= MAX_DEPTH or html.count("<") - html.count("</") <= MAX_DEPTH:
        return None
    try:
        tree = HTMLTree.parse(html)
    except HTMLParserException:
        return None
    if tree.document is not None and tree.document.query_selector(TOO_DEEP) is not None:
        raise TooDeepError(f"elements are nested deeper than {MAX_DEPTH}")
    return tree


def _by_resiliparse(page: str | HTMLTree) -> str:
    from resiliparse.extract.html2text import extract_plain_text
    from resiliparse.parse.html import HTMLParserException

    try:
        return extract_plain_text(
            page,
            main_content=True,
            preserve_formatting=True,
            list_bullets=True,
            alt_texts=False,
            links=False,
            form_fields=False,
            noscript=False,
        )
    except HTMLParserException:
        return ""


def _by_trafilatura(html: str) -> str:
    """datatrove's settings (favour_precision), without its clock and without its memory of other pages."""
    from trafilatura import extract

    return extract(html, favor_precision=True, include_comments=False, deduplicate=False, config=_trafilatura_settings()) or ""


@lru_cache(maxsize=1)
def _trafilatura_settings() -> object:
    from trafilatura.settings import use_config

    config = use_config()
    config.set("DEFAULT", "EXTRACTION_TIMEOUT", "0")
    return config


def _by_justext(html: str) -> str:
    """jusText with the stop words of the page's language; by its rules for any language where there is no such list."""
    import justext
    from lxml.etree import ParserError

    from stages.text.langid import detect_language

    language = STOPLISTS.get(detect_language(_all_text(html))[0], "")
    words = _stop_words(language)
    low, high = (0.3, 0.32) if language else (0.0, 0.0)  # jusText's defaults; its documentation's for any language
    try:
        paragraphs = justext.justext(html, words, stopwords_low=low, stopwords_high=high)
    except (ParserError, ValueError):  # an empty page; a character reference that lxml does not take
        return ""
    return "\n\n".join(paragraph.text for paragraph in paragraphs if not paragraph.is_boilerplate)


@lru_cache(maxsize=32)
def _stop_words(language: str) -> frozenset[str]:
    import justext

    return justext.get_stoplist(language) if language else frozenset()


def _all_text(html: str) -> str:
    from resiliparse.extract.html2text import extract_plain_text

    return extract_plain_text(html, main_content=False, preserve_formatting=False, alt_texts=False)
