"""A toy: the names that users gave. CONTRIBUTING.md shows it as the example of a new page of the dashboard."""

from __future__ import annotations

from dashboards.page import DashboardPage, PageVisit, grid, in_thread, tag
from stages.questions.lineage import name_rows


async def show(visit: PageVisit) -> None:
    """Draws the given names that begin with the parameter `start`."""
    start = visit.asked("start")
    tag("h1", f"Names that begin with {start}")
    rows = await in_thread(name_rows, visit.home)
    grid([{"name": row["name"], "means": row["target"]} for row in rows if row["name"].startswith(start)])


PAGE = DashboardPage("/names", "Names", show)
