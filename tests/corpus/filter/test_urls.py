"""URLs that datatrove's lists name, against its own filter's code."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from stages.corpus.filter.urls import Blocklist, look_up, open_lists, write_lists


@pytest.fixture(scope="module")
def lists(tmp_path_factory: pytest.TempPathFactory) -> Blocklist:
    folder = tmp_path_factory.mktemp("urls")
    write_lists(folder)
    return open_lists(folder)


def entries(lists: Blocklist, name: str) -> Any:
    import pyarrow as pa

    with pa.memory_map(str(lists.folder / f"{name}.arrow")) as source:
        return pa.ipc.open_file(source).read_all().column("entry")


def theirs(lists: Blocklist, domains: set[str], url: str) -> str:
    """Returns the reason of datatrove's URLFilter.filter, its lists cut to `domains`; its automaton (a package of its own) as a plain search."""
    from types import SimpleNamespace

    from datatrove.data import Document
    from datatrove.pipeline.filters.url_filter import URLFilter
    from tldextract import TLDExtract

    parts = SimpleNamespace(iter=lambda text: iter([1] if lists.parts.search(text) else []))
    made: Any = object.__new__(URLFilter)  # its own __new__ asks for the package of the automaton
    vars(made).update(
        use_integrated_lists=False, _downloaded=True, tldextractor=TLDExtract(suffix_list_urls=(), cache_dir=None), block_listed_domains=domains,
        block_listed_url=set(), banned_words=lists.hard, soft_banned_words=lists.soft, soft_word_threshold=2, banned_subwords={"x"},
        banned_subwords_automaton=parts,
    )  # fmt: skip
    result = made.filter(Document(text="", id="", metadata={"url": url}))
    return "" if result is True else result[1]


def reason(found: dict[str, Any]) -> str:
    from stages.corpus.filter.filter_rule import applied, first_reason
    from stages.corpus.filter.rules import RULES

    rules = applied([rule for rule in RULES if rule.section == "url"], {"url": {"enabled": True, "soft_words": 2, "remove": []}})
    return first_reason(found, rules).removeprefix("url.")


def test_the_same_reasons_as_datatrove(lists: Blocklist) -> None:
    domains = entries(lists, "domains")
    registered = next(d for d in domains[:1000].to_pylist() if d.count(".") == 1)
    host = next(d for d in domains[:1000].to_pylist() if d.count(".") == 2 and not d.endswith((".co.uk", ".com.br")))
    hard, soft = sorted(lists.hard)[5], sorted(lists.soft)[:2]
    urls = [
        f"http://{registered}/x", f"https://www.{registered}", f"http://{host}/", f"http://deep.{host}/", f"http://a.org/{hard}/x",
        f"http://a.org/{soft[0]}-{soft[1]}", f"http://a.org/{soft[0]}", "http://docs.example/page.html", "https://en.wikipedia.org/wiki/Soil",
        "http://192.0.2.7/a", "http://httpd.docs.example/docs/2.4/mod/mod_ssl.html",
    ]  # fmt: skip
    found = look_up(urls, lists)
    kept = set(domains[:1000].to_pylist())
    assert [reason(found[url]) for url in urls] == [theirs(lists, kept, url) for url in urls]
    assert [reason(found[url]) for url in urls[:3]] == ["domain", "domain", "subdomain"] and reason(found[urls[4]]) == "hard_blacklisted"
    assert reason(found[urls[5]]) == "soft_blacklisted" and found[urls[5]]["url_soft_words"] == 2 and reason(found[urls[6]]) == ""


def test_pages_are_found_without_their_scheme(lists: Blocklist) -> None:
    page = entries(lists, "urls")[100].as_py()
    assert look_up([f"https://{page}", f"https://{page}x"], lists)[f"https://{page}"]["url_listed"] in ("url", "domain", "subdomain")


def test_the_lists_are_those_of_the_package(lists: Blocklist) -> None:
    assert len(entries(lists, "domains")) > 4_000_000 and len(entries(lists, "urls")) > 10_000
    before = {path: path.stat().st_mtime_ns for path in Path(lists.folder).iterdir()}
    write_lists(lists.folder)
    assert {path: path.stat().st_mtime_ns for path in Path(lists.folder).iterdir()} == before
