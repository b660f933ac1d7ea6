"""A toy: the names that users gave. CONTRIBUTING.md shows it as the example of a new page of the dashboard."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from dashboards.page import DashboardPage, PageContent, PageVisit
from stages.questions.lineage import name_rows

TEMPLATE = """
<h2 id="names">Names that begin with {{ content.start }}</h2>
<ul>{% for name in content.names %}<li>{{ name }}</li>{% endfor %}</ul>
"""


@dataclass(frozen=True, kw_only=True)
class NamesContent(PageContent):
    """The names, and the text with which they begin."""

    start: str
    names: Sequence[str]


def content(visit: PageVisit) -> NamesContent:
    """Returns the given names that begin with the parameter `start`."""
    start = visit.parameters.get("start", "")
    return NamesContent(start=start, names=[row["name"] for row in name_rows(visit.home) if row["name"].startswith(start)])


PAGE = DashboardPage("/names", "Names", TEMPLATE, content)
