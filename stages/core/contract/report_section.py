"""What a stage shows of its artifact in the report: plain typed values, which the report lays out.

A section function is pure: it reads the artifact's manifest and files and returns the same value for the same artifact. Sections with the
same heading become one, in DAG order; so the charts of all training stages stand together.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from stages.core.contract.declaration import Artifact


@dataclass(frozen=True)
class SectionTable:
    """Rows of text cells, each row with the same columns. title: "" or a subheading. numeric: columns aligned to the right.

    folded: shown on demand, under its title; not in the Markdown summary.
    """

    rows: tuple[Mapping[str, str], ...]
    title: str = ""
    numeric: tuple[str, ...] = ()
    folded: bool = False


@dataclass(frozen=True)
class LineChart:
    """One line per name, as (x, y) points; the report thins long lines out."""

    title: str
    x_label: str
    y_label: str
    lines: Mapping[str, Sequence[tuple[float, float]]]


@dataclass(frozen=True)
class Section:
    """heading: shared by all that stands together. cards: (name, value), the key figures at the top of the page."""

    heading: str
    cards: tuple[tuple[str, str], ...] = ()
    paragraphs: tuple[str, ...] = ()
    tables: tuple[SectionTable, ...] = ()
    charts: tuple[LineChart, ...] = ()


SectionOf = Callable[["Artifact"], "Section | None"]
"""What the report shows of an artifact; None where there is nothing to show."""


def merged(sections: Iterable[Section]) -> list[Section]:
    """One section per heading, in the order of first occurrence: equal paragraphs once, the rows of tables with one title together."""
    found: dict[str, Section] = {}
    for section in sections:
        before = found.get(section.heading, Section(section.heading))
        found[section.heading] = Section(
            section.heading,
            before.cards + section.cards,
            tuple(dict.fromkeys(before.paragraphs + section.paragraphs)),
            _joined(before.tables + section.tables),
            before.charts + section.charts,
        )
    return list(found.values())


def _joined(tables: Iterable[SectionTable]) -> tuple[SectionTable, ...]:
    found: dict[str, SectionTable] = {}
    for table in tables:
        before = found.get(table.title)
        found[table.title] = SectionTable(before.rows + table.rows, table.title, before.numeric, before.folded) if before else table
    return tuple(found.values())


def figure(value: Any) -> str:
    """A number of a summary as the report shows it: four digits of a float, thousands separated.

    >>> figure(1234567), figure(0.123456), figure(2.5e6)
    ('1,234,567', '0.1235', '2.500e+06')
    """
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1e6 else f"{value:.3e}"
    return f"{value:,}" if isinstance(value, int) else str(value)


def with_error(value: float, stderr: float | None) -> str:
    """A score with its standard error, where it has one.

    >>> with_error(0.5, 0.0625), with_error(1.0, None)
    ('0.500 ± 0.062', '1.000')
    """
    return f"{value:.3f}" + (f" ± {stderr:.3f}" if stderr else "")
