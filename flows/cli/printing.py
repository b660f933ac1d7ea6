"""Prints the answers of commands as JSON in one envelope, as tables, or as nested values.

Guarantee: every text passes `printable`, so that no character of a URL, a name or an error controls the terminal. ruff forbids `print` in
the other modules of the command line. JSON is ASCII and strict. A table in a pipe has no colours, and no cell is cut or wrapped.
Cost: JSON and plain lines need no library; a table imports rich.
"""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import fields, is_dataclass
from typing import TYPE_CHECKING

from flows.cli.options import Common
from stages.core.contract.printable import one_line, printable

if TYPE_CHECKING:
    from rich.table import Table

SCHEMA_VERSION = 2
"""The version of the envelope and of all answers in it. It rises when a name in them is changed or removed, not when one is added."""
Json = str | int | float | bool | None | Sequence["Json"] | Mapping[str, "Json"]


def say(text: object = "", error: bool = False, flush: bool = False) -> None:
    """Prints text of any origin with its control characters escaped; `error` prints to standard error."""
    print(printable(str(text)), file=sys.stderr if error else sys.stdout, flush=flush)


def answer(common: Common, value: object, show: Callable[[], None]) -> None:
    """Prints the answer of a command: with --json the value in the envelope, otherwise what `show` prints.

    Args:
        common: the options of the command.
        value: the answer, of mappings, dataclasses, sequences and single values.
        show: prints the answer as text.
    """
    if not common.json:
        show()
        return
    envelope = {"schema_version": SCHEMA_VERSION, "command": common.command, "answer": _strict(value)}
    print(json.dumps(envelope, indent=1, allow_nan=False).replace("\x7f", "\\u007f"), flush=True)


def answer_rows(common: Common, rows: Sequence[Mapping[str, object]]) -> None:
    """Prints rows as a table, or as a JSON list of objects."""
    answer(common, rows, lambda: print_table(rows))


def print_table(rows: Iterable[Mapping[str, object]]) -> None:
    """Prints a table with a header; columns of numbers are aligned to the right.

    On a terminal, wide cells are folded to the width of the terminal. In a pipe, a line is as long as its row.
    """
    lines = [{one_line(str(name)): _cell(value) for name, value in row.items()} for row in rows]
    if not lines:
        say("(no rows)")
        return
    from rich.console import Console

    if sys.stdout.isatty():
        Console(markup=False, highlight=False, emoji=False).print(_table(lines, folded=True))
        return
    width = sum(2 + max(len(name), *(len(line[name]) for line in lines)) for name in lines[0])
    console = Console(width=2 * width, color_system=None, force_terminal=False, markup=False, highlight=False, emoji=False)
    with console.capture() as capture:  # 2 * width: a character of an East Asian script is two columns wide
        console.print(_table(lines, folded=False))
    say("\n".join(line.rstrip() for line in capture.get().splitlines()))


def _table(lines: Sequence[Mapping[str, str]], folded: bool) -> Table:
    """Returns a rich table. Without `folded`, each column is one cell with many lines, because rich lays that out three times as fast."""
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    names = list(lines[0])
    for name in names:
        number = all(_is_number(line[name]) for line in lines)
        table.add_column(Text(name), justify="right" if number else "left", overflow="fold", no_wrap=number or not folded)
    if folded:
        for line in lines:
            table.add_row(*(Text(line[name]) for name in names))
    else:
        table.add_row(*(Text("\n".join(line[name] for line in lines)) for name in names))
    return table


def print_nested(values: Mapping[str, object], indent: str = "") -> None:
    """Prints one line per value; the content of a mapping or of a list of mappings is indented below its name."""
    for name, value in values.items():
        if isinstance(value, Mapping):
            say(f"{indent}{one_line(str(name))}:")
            print_nested(value, indent + "  ")
        elif isinstance(value, list) and value and isinstance(value[0], Mapping):
            say(f"{indent}{one_line(str(name))}:")
            for item in value:
                say(f"{indent}  - " + ", ".join(f"{one_line(str(k))} {_cell(v)}" for k, v in item.items() if v not in ("", None)))
        else:
            say(f"{indent}{one_line(str(name)):<{max(1, 22 - len(indent))}} {_cell(value)}")


def _strict(value: object) -> Json:
    """Returns the value as strict JSON: NaN and infinity become null, and a value of a type that JSON lacks becomes its text."""
    if isinstance(value, Mapping):
        return {str(name): _strict(inner) for name, inner in value.items()}
    if is_dataclass(value):
        return {field.name: _strict(getattr(value, field.name)) for field in fields(value)}
    if isinstance(value, list | tuple):
        return [_strict(inner) for inner in value]
    if isinstance(value, float):
        return value if math.isfinite(value) else None
    return value if value is None or isinstance(value, str | int) else str(value)


def _cell(value: object) -> str:
    if value is None:
        return ""
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, int):
        return f"{value:,}"
    if isinstance(value, float):
        return f"{value:.4g}" if abs(value) < 1000 else f"{value:,.1f}"
    return one_line(str(value))


def _is_number(text: str) -> bool:
    return text.replace(",", "").replace(".", "", 1).replace("-", "", 1).replace("e+", "").replace("e", "").isdigit() or text == ""
