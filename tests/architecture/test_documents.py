"""The README is short, and every link between the documents leads to a file."""

from __future__ import annotations

import re

from tests.conftest import PROJECT

DOCUMENTS = [*PROJECT.glob("*.md"), *(PROJECT / "docs").glob("*.md")]


def test_the_readme_is_read_in_minutes() -> None:
    assert len((PROJECT / "README.md").read_bytes()) <= 9_000


def test_every_link_leads_to_a_file() -> None:
    links = [(page, link) for page in DOCUMENTS for link in re.findall(r"\]\(([^)\s]+)\)", page.read_text(encoding="utf-8"))]
    inside = [(page, link.partition("#")[0]) for page, link in links if "://" not in link]
    assert len(inside) >= 15
    assert [(page.name, link) for page, link in inside if not (page.parent / link).exists()] == []


def test_every_page_of_the_documents_is_linked_from_the_readme() -> None:
    text = (PROJECT / "README.md").read_text(encoding="utf-8")
    assert [page.name for page in (PROJECT / "docs").glob("*.md") if f"(docs/{page.name})" not in text] == []
