"""The registry of the formats of benchmark files. A file's format is recognised by the fields of its first record.

A format is one file with one class. To add a format, import its class here and add one entry. The entries are explicit and not discovered,
because the digest of a stage's code follows imports: a discovered file would be missing from the digest.
Guarantee: a record is read by exactly one format. The name of a file is never used.
"""

from __future__ import annotations

from collections.abc import Iterable

from stages.text.items.benchmark_format import BenchmarkFormat
from stages.text.items.format_choices import ChoicesFormat
from stages.text.items.format_continuation import ContinuationFormat
from stages.text.items.format_options import OptionsFormat

FORMATS: tuple[BenchmarkFormat, ...] = (
    ChoicesFormat(("query", "choices", "gold")),
    ChoicesFormat(("ctx", "endings", "label")),
    ContinuationFormat(("context", "continuation")),
    OptionsFormat(
        ("context_options", "continuation", "gold"),
        "indexed for decontamination, not scored: the options stand before the text that is scored",
    ),
    ContinuationFormat(("question", "answer"), "indexed for decontamination, not scored: its answers are generated and parsed, not chosen"),
    ContinuationFormat(("prompt", "canonical_solution"), "indexed for decontamination, not scored: it would run generated programs"),
)
"""The first format whose fields a record has reads it. A format whose fields include those of another comes before the other."""


def format_of(fields: Iterable[str]) -> BenchmarkFormat | None:
    """Returns the first format all of whose fields a record has; None without one. fields: names of the record's fields."""
    present = set(fields)
    return next((known for known in FORMATS if present.issuperset(known.fields)), None)
