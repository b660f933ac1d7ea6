"""Decodes the bytes of a page to characters, whatever charset the page declares.

Guarantee: pure. Any bytes give some text. Undecodable bytes become U+FFFD, and the caller can count them. Order of the evidence: byte order
mark; UTF-8 that decodes (a legacy charset hardly ever does by chance); HTTP header, XML declaration, meta tag, each accepted only if the
bytes are plausible in it; detection from the bytes.
Cost: about 20 microseconds per page, 1 ms where detection runs.
Accuracy: measured on 618 pages of the real crawl, transcoded to 22 charsets, as the share of pages whose text is exact. It is .98 without a
declaration or declared as UTF-8, .80 declared as ISO-8859-1 (a Latin-2 page is read as Latin-1, as in browsers), and 1.00 declared
correctly. The standards' order gives .90, .37, .37 and 1.00.
Source: the HTML standard (encoding sniffing) and the WHATWG Encoding standard for labels (both accept a wrong label); uchardet through
resiliparse.
"""

from __future__ import annotations

import re
from contextlib import suppress

SNIFF_BYTES = 1024  # the HTML standard: a declaration is in the first kilobyte
BOMS = ((b"\xef\xbb\xbf", "utf-8"), (b"\xfe\xff", "utf-16-be"), (b"\xff\xfe", "utf-16-le"))
XML_ENCODING = re.compile(rb"""^\s*<\?xml[^>]*?encoding\s*=\s*["']([\w.:-]+)["']""")
META_CHARSET = re.compile(rb"""<meta[^>]{0,300}?charset\s*=\s*["']?\s*([\w.:-]+)""", re.IGNORECASE)
NO_LETTER = re.compile(rb"[^A-Za-z\x80-\xff]")
ASCII_TEXT = re.compile(r"[\x00-\x7f]+")
TAG = re.compile(rb"<[^>]*>")
JIS = re.compile(rb"\x1b\$[@B]|\x1b\(J")  # escape sequences of ISO-2022-JP, all in ASCII bytes
ASCII = bytes(range(128))
WIDER = {  # charsets that browsers extend (WHATWG) -> Python's codec of the larger set
    "euc_kr": "cp949", "shift_jis": "cp932", "gbk": "gb18030", "big5": "big5hkscs", "iso8859-1": "cp1252", "iso8859-9": "cp1254",
    "iso8859-11": "cp874",
}  # fmt: skip
WESTERN = frozenset({"cp1252", "iso8859-15", "mac-roman"})
DOUBLE_BYTE = frozenset({"cp949", "cp932", "gb18030", "big5hkscs", "euc_jp"})
MAX_BAD_UTF8, MAX_BAD = 0.5, 0.2  # largest share of bad characters among the non-ASCII ones, for UTF-8 and for other charsets
MAX_WESTERN_FRAC = 0.25  # largest share of non-ASCII bytes among letters in Western European text
MIN_TELLING_FRAC = 0.01  # below this share uchardet only guesses, and punctuation of Windows-1252 is most likely
FEW_BYTES = 16  # fewer non-ASCII bytes than this may be valid UTF-8 by chance


def decode_page(body: bytes, http_charset: str) -> tuple[str, str]:
    """Returns (text, encoding) of a page. http_charset: charset from the HTTP header; may be empty or wrong."""
    for mark, encoding in BOMS:
        if body.startswith(mark):
            return _decoded(body[len(mark) :], encoding), encoding
    if b"\0" in body[:SNIFF_BYTES] and (wide := _wide(body[:SNIFF_BYTES])):
        return _decoded(body, wide), wide
    if body.isascii():
        encoding = "iso2022_jp" if JIS.search(body) else "utf-8"
        return _decoded(body, encoding), encoding
    declared = _declared(body, http_charset)
    by_chance = _may_be_chance(body, declared)
    if not by_chance:
        with suppress(UnicodeDecodeError):
            return body.decode("utf-8"), "utf-8"
    for encoding in (*declared, "utf-8") if by_chance else ("utf-8", *declared):
        text = _decoded(body, encoding)
        bad = text.count("\ufffd")
        fits = not bad or bad <= (MAX_BAD_UTF8 if encoding == "utf-8" else MAX_BAD) * len(ASCII_TEXT.sub("", text))
        if fits and not (encoding in WESTERN and _high_frac(body) > MAX_WESTERN_FRAC):
            return text, encoding
    encoding = _detected(body)
    return _decoded(body, encoding), encoding


def bad_frac(text: str) -> float:
    """Returns the share of a text's characters that are U+FFFD."""
    return text.count("\ufffd") / max(1, len(text))


def _may_be_chance(body: bytes, declared: list[str]) -> bool:
    """Returns whether the body has so few non-ASCII bytes in a declared East Asian charset that they could be valid UTF-8 by chance."""
    return bool(declared) and declared[0] in DOUBLE_BYTE and len(body.translate(None, delete=ASCII)) < FEW_BYTES


def _declared(body: bytes, http_charset: str) -> list[str]:
    """Returns Python names of the charsets that the header, the XML declaration and the meta tag declare, in this order."""
    from resiliparse.parse.encoding import map_encoding_to_html5

    head = body[:SNIFF_BYTES]
    labels = [http_charset] if http_charset else []
    labels += [found[1].decode("ascii", "replace") for pattern in (XML_ENCODING, META_CHARSET) if (found := pattern.search(head))]
    names = (map_encoding_to_html5(label, fallback_utf8=False) for label in labels)
    # the HTML standard: a declaration that is readable as ASCII cannot be UTF-16
    return list(dict.fromkeys("utf-8" if name.startswith("utf-16") else WIDER.get(name, name) for name in names if name))


def _detected(body: bytes) -> str:
    from resiliparse.parse.encoding import detect_encoding

    name = detect_encoding(TAG.sub(b" ", body), from_html_meta=False, html5_compatible=False) or "cp1252"
    name = WIDER.get(name, name)
    return "cp1252" if name in ("utf-8", "ascii") or _high_frac(body) < MIN_TELLING_FRAC else name


def _high_frac(body: bytes) -> float:
    """Returns the share of non-ASCII bytes among the bytes of letters, outside tags."""
    letters = NO_LETTER.sub(b"", TAG.sub(b" ", body))
    return len(letters.translate(None, delete=ASCII)) / max(1, len(letters))


def _wide(head: bytes) -> str:
    """Returns utf-16-le or utf-16-be where ASCII characters alternate with NUL; "" otherwise."""
    if head.count(b"<\0") > 2 and head.count(b"\0") > len(head) // 3:
        return "utf-16-le" if head.find(b"<\0") % 2 == 0 else "utf-16-be"
    return ""


def _decoded(body: bytes, encoding: str) -> str:
    try:
        return body.decode(encoding, "replace")
    except LookupError:
        return body.decode("utf-8", "replace")
