"""Declares a page of the dashboard, and finds the pages in the folder dashboards/pages/.

A page is one module of that folder; `PAGE = DashboardPage(...)` is its last statement. The navigation, the check of the token, the headers and the
message of an error are the same for every page.
Guarantee: a page only reads. What it shows follows from the home, the declarations of the stages and the parameters of its address.
"""

from __future__ import annotations

import importlib
import pkgutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import dashboards.pages
from stages.record.contract.errors import LoamError, StageError

if TYPE_CHECKING:
    from stages.record.contract.declaration import Stage

FRAME = """
<h1>Loam</h1>
<p class="soft">{{ home }}</p>
<p>{% for page in pages if page.title %}<a href="{{ page.path }}">{{ page.title }}</a>{% if not loop.last %} · {% endif %}{% endfor %}</p>
{% if problem %}<p class="bad">{{ problem }}</p>{% else %}
"""
END = "\n{% endif %}\n"


@dataclass(frozen=True)
class PageVisit:
    """A request for a page.

    Attributes:
        home: The home folder.
        stages: Node -> its stage, in pipeline order.
        parameters: Parameters of the address.
    """

    home: Path
    stages: Mapping[str, Stage]
    parameters: Mapping[str, str]


@dataclass(frozen=True, kw_only=True)
class PageContent:
    """What a page shows. A page derives a class of its own with the values that its template reads.

    Attributes:
        live: Whether the content changes by itself, so that the browser should load the page again.
    """

    live: bool = False


@dataclass(frozen=True)
class DashboardPage:
    """A page of the dashboard.

    Attributes:
        path: Path of its address, such as "/node".
        title: Text of its link in the navigation. A page without a title has no link there.
        template: Jinja2 template of the body. It reads the values of `content`, and has the macros of stages/evaluation/charts/theme.py.
        content: Function from a visit to what the page shows. A LoamError that it raises is shown instead of the body.
    """

    path: str
    title: str
    template: str
    content: Callable[[PageVisit], PageContent]


def all_pages() -> tuple[DashboardPage, ...]:
    """Returns the pages that the modules of dashboards/pages/ declare, sorted by path. Modules without `PAGE` are skipped.

    Raises:
        StageError: Two pages have one path.
    """
    names = (found.name for found in pkgutil.iter_modules(dashboards.pages.__path__))
    declared: dict[str, DashboardPage] = {}
    for name in sorted(names):
        page: DashboardPage | None = getattr(importlib.import_module(f"dashboards.pages.{name}"), "PAGE", None)
        if page is None:
            continue
        if page.path in declared:
            raise StageError(f"Two pages have the path {page.path}.", where=f"dashboards/pages/{name}.py", do="Give each its own path.")
        declared[page.path] = page
    return tuple(declared[path] for path in sorted(declared))


def page_html(page: DashboardPage, pages: tuple[DashboardPage, ...], visit: PageVisit) -> tuple[str, bool]:
    """Returns (a page as HTML, whether the browser should load it again after a while).

    Args:
        page: The page to show.
        pages: All pages, for the navigation.
        visit: The request.
    """
    from stages.evaluation.charts.theme import render

    content, problem = PageContent(), ""
    try:
        content = page.content(visit)
    except LoamError as error:
        problem = str(error)
    html = render(FRAME + page.template + END, "Loam", home=str(visit.home), pages=pages, problem=problem, content=content)
    return html, content.live
