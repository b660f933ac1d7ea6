"""Plain loops over arrays, compiled by numba on first use.

Guarantee: a kernel is an ordinary module-level function of arrays and numbers that calls no other kernel, so it can be read and
tested as Python. Cost: seconds of compilation once per machine and source file (numba keeps the code beside the module).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """The kernel as machine code."""
    import numba

    return numba.njit(cache=True, nogil=True)(kernel)
