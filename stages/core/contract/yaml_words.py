"""Says in the words of YAML what a value is: list, mapping, text, number, true, false, null.

Guarantee: the result is one line of at most SHOWN_CHARS characters and a few more. A value is shown as a recipe would write it.
Cost: one JSON encoding of the value.
Source: YAML 1.2; its flow style contains JSON.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping

SHOWN_CHARS = 200
"""Characters shown of a value. The rest is cut."""


def shown(value: object) -> str:
    """Returns a value as YAML in one line, cut to SHOWN_CHARS."""
    if isinstance(value, float) and not math.isfinite(value):
        text = ".nan" if math.isnan(value) else ".inf" if value > 0 else "-.inf"
    else:
        try:
            text = json.dumps(value, ensure_ascii=False, default=repr)
        except (TypeError, ValueError, RecursionError):  # a key that JSON does not have, or a value that contains itself
            text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]} …"


def described(value: object) -> str:
    """Returns what a value is, and the value.

    >>> described("a"), described([1]), described(None), described(3)
    ('the text "a"', 'the list [1]', 'null', 'the number 3')
    """
    if value is None or isinstance(value, bool):
        return shown(value)
    return f"the {kind_of(value)} {shown(value)}"


def kind_of(value: object) -> str:
    """Returns the word of YAML for a kind of value, such as "list"."""
    if value is None or isinstance(value, bool):
        return "null" if value is None else "truth value"
    if isinstance(value, str):
        return "text"
    if isinstance(value, int | float):
        return "number"
    return "mapping" if isinstance(value, Mapping) else "list" if isinstance(value, list | tuple) else "value"
