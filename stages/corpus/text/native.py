"""Compiles plain loops over arrays with numba on first use.

Guarantee: a kernel is an ordinary module-level function of arrays and numbers that calls no other kernel. So it can be read and tested as
Python.
Cost: seconds of compilation once per machine and source file (numba caches the compiled code next to the module).
Trap: the cache sees changes of the kernel's own file alone. A constant of another module must be an argument.
Trap: the cache names the class of an argument that is a NamedTuple. After such a class is renamed, or its fields change their order, remove
the files *.nbi of the folder's __pycache__; numba fails on the old name ("AttributeError") and does not see a new order in another module.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any


@cache
def compiled(kernel: Callable[..., Any]) -> Callable[..., Any]:
    """Returns the kernel as machine code."""
    import numba

    machine_code: Callable[..., Any] = numba.njit(cache=True, nogil=True)(kernel)
    return machine_code
