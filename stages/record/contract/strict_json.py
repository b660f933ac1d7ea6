"""Parses JSON files that others wrote: the same result on every machine, and one phrase that says what is wrong.

Guarantee: the result is plain data that can be written again: finite numbers of at most 64 bits, Unicode characters, at most MAX_DEPTH
levels, no key twice in an object. Everything else raises BadJsonError, and no other exception. Python's own parser accepts NaN, halves of
surrogate pairs and repeated keys, and it fails on deep nesting at a depth that depends on its caller.
Cost: json.loads and one call per object and number.
Source: RFC 8259, and RFC 7493 (I-JSON) for what is refused beyond it.
"""

from __future__ import annotations

import json
import math
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any, NoReturn

from stages.record.processes import read_replaced

if TYPE_CHECKING:
    from pydantic import JsonValue

MAX_DEPTH = 100
"""Levels of brackets. Chats and benchmark items have two or three."""
MAX_FILE_BYTES = 256 << 20
"""Largest file that is one JSON value. Our largest file, the manifest of an artifact with 100,000 files, has 20 MB."""

_TEXT = re.compile(rb'"[^"\\]*+(?:\\.[^"\\]*+)*+"?', re.DOTALL)  # possessive, so that no stack grows with the text
_HALF_PAIR = re.compile(rb"\\u[dD][89a-fA-F]")
_BOMS = ((b"\xff\xfe\x00\x00", "UTF-32"), (b"\x00\x00\xfe\xff", "UTF-32"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))
_UTF8_BOM = b"\xef\xbb\xbf"


class BadJsonError(ValueError):
    """Text is not JSON as Loam accepts it. The message is a phrase without a full stop, such as "not UTF-8"."""


def parse(raw: bytes) -> Any:
    """Returns the value of a JSON text in UTF-8, with or without a byte order mark.

    Raises:
        BadJsonError: The text is not JSON as Loam accepts it.
    """
    if deepest(raw) > MAX_DEPTH:
        raise BadJsonError(f"more than {MAX_DEPTH} levels of brackets")
    try:
        text = raw.removeprefix(_UTF8_BOM).decode("utf-8")
    except UnicodeDecodeError:
        raise BadJsonError(f"{other_encoding(raw)}, not UTF-8" if other_encoding(raw) else "not UTF-8") from None
    try:
        value = json.loads(text, object_pairs_hook=_object, parse_int=_integer, parse_float=_decimal, parse_constant=_refuse_constant)
    except json.JSONDecodeError as error:
        line = f"line {error.lineno}, " if error.lineno > 1 else ""
        raise BadJsonError(f"{error.msg}, {line}column {error.colno}") from None
    if _HALF_PAIR.search(raw):
        try:
            json.dumps(value, ensure_ascii=False).encode()
        except UnicodeEncodeError:
            raise BadJsonError("half a surrogate pair, which is not a character") from None
    return value


def read_object(path: Path) -> dict[str, Any]:
    """Returns the JSON object that a file holds. An OSError of opening the file is not caught.

    Raises:
        BadJsonError: The file is too large, or does not hold one JSON object.
    """
    raw = read_replaced(path, MAX_FILE_BYTES + 1)
    if len(raw) > MAX_FILE_BYTES:
        raise BadJsonError(f"more than {MAX_FILE_BYTES >> 20} MiB")
    value = parse(raw)
    if not isinstance(value, dict):
        raise BadJsonError("not a JSON object")
    return value


def other_encoding(raw: bytes) -> str:
    """Returns the name of the encoding that a byte order mark at the start names, or an empty text for UTF-8 or no mark."""
    return next((name for mark, name in _BOMS if raw.startswith(mark)), "")


def deepest(raw: bytes, enough: int = MAX_DEPTH) -> int:
    """Returns how many levels of brackets a JSON text has, not counting those inside strings. A result up to `enough` is an upper bound."""
    opened = raw.count(b"[") + raw.count(b"{")
    if opened <= enough:
        return opened
    depth = most = 0
    for bracket in re.finditer(rb"[\[\]{}]", _TEXT.sub(b"", raw)):
        depth += 1 if bracket[0] in b"[{" else -1
        most = max(most, depth)
    return most


def _object(pairs: list[tuple[str, JsonValue]]) -> dict[str, JsonValue]:
    made = dict(pairs)
    if len(made) < len(pairs):
        seen: set[str] = set()
        for key, _ in pairs:
            if key in seen:
                raise BadJsonError(f"the key {key[:60]!r} twice in an object")
            seen.add(key)
    return made


def _integer(digits: str) -> int:
    if len(digits) <= 20 and -(2**63) <= (value := int(digits)) < 2**64:
        return value
    raise BadJsonError("a whole number of more than 64 bits")


def _decimal(digits: str) -> float:
    value = float(digits)
    if math.isinf(value):
        raise BadJsonError("a number beyond the range of a double")
    return value


def _refuse_constant(name: str) -> NoReturn:
    raise BadJsonError(f"{name}, which is not a JSON number")
