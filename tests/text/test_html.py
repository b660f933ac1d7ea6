"""Charsets and main text."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from stages.text.html import decode_html, extract_text, looks_like_html, tidy

GERMAN = "<html><body><p>Grüße aus Köln, schöne Straßen überall.</p></body></html>"
KOREAN = "<html><body><p>대한민국의 수도는 서울이다. 한국어로 쓴 글이다.</p></body></html>"


@pytest.mark.parametrize(
    ("page", "encoding", "charset"),
    [
        (GERMAN, "utf-8", ""),
        (GERMAN, "utf-8", "utf-8"),
        (GERMAN, "latin-1", "ISO-8859-1"),
        (GERMAN, "latin-1", "utf-8"),  # declared wrongly
        ("\ufeff" + GERMAN, "utf-16-le", ""),
        ("\ufeff" + GERMAN, "utf-8", "iso-8859-1"),  # the byte order mark wins
        (GERMAN.replace("<body>", "<head><meta charset=iso-8859-1></head><body>"), "latin-1", ""),
        (GERMAN.replace("<body>", "<head><meta charset=utf-16></head><body>"), "utf-8", ""),
        ('<?xml version="1.0" encoding="iso-8859-1"?>\n' + GERMAN, "latin-1", ""),
        (KOREAN, "euc-kr", "euc-kr"),
        (KOREAN, "utf-8", "no-such-charset"),
    ],
)
def test_page_is_decoded(page: str, encoding: str, charset: str) -> None:
    text, _ = decode_html(page.encode(encoding), charset)
    assert text.lstrip("\ufeff").endswith(page[-40:])


def test_main_text_keeps_paragraphs_code_and_whole_words() -> None:
    page = (
        "<html><head><title>T</title><script>var x</script></head><body><nav><a href=/>Home</a></nav><main><h1>Head</h1>"
        "<p>One wo<b>rd</b> and <code>co</code><i>de</i>.</p><pre>if x:\n    y()\n</pre><p>Two\n lines</p></main><footer>Foot</footer></body></html>"
    )
    text = extract_text(page)
    assert "One word and code." in text
    assert "if x:\n    y()" in text
    assert "Two lines" in text
    assert "Home" not in text
    assert "var x" not in text


def test_xhtml_with_prologue_has_text() -> None:
    page = '<?xml version="1.0" encoding="UTF-8"?>\n<!DOCTYPE html PUBLIC "-//W3C//DTD XHTML 1.0 Strict//EN" "x">\n' + GERMAN
    assert "Grüße aus Köln" in extract_text(page)


def test_deep_nesting_ends() -> None:
    assert "deep" in extract_text("<html><body>" + "<div>" * 5_000 + "<p>deep</p>")


@given(st.binary(max_size=300), st.sampled_from(["", "utf-8", "shift_jis", "x", "utf-16"]))
def test_any_bytes_give_some_text(body: bytes, charset: str) -> None:
    text = extract_text(decode_html(body, charset)[0])
    assert text == tidy(text)
    text.encode()


def test_sniffing() -> None:
    assert looks_like_html(b"<?xml version='1.0'?>\n<HTML xmlns='x'>")
    assert looks_like_html(b"<!DOCTYPE html>")
    assert not looks_like_html(b"<?xml version='1.0'?><rss></rss>")
