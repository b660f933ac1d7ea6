"""Opening files by URI, so that a fault of the network can be told from a fault of the file.

Guarantee: what passes by itself (no connection, a connection cut, a timeout, a server too busy) is raised as ConnectionError,
whatever the file system's own library raised, and survives the way out of a worker process; everything else is left as it is.
fsspec's http file system, for one, reports a refused connection as FileNotFoundError with the true reason behind it.
"""

from __future__ import annotations

import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import BinaryIO, cast

PASSING = (("aiohttp", "ClientConnectionError"), ("aiohttp", "ClientPayloadError"), ("botocore.exceptions", "HTTPClientError"))
"""Exceptions of the libraries under fsspec that mean the network; looked up only where the library is loaded."""
BUSY = (429, 500, 502, 503, 504)
"""HTTP answers that pass (RFC 9110, RFC 6585)."""


@contextmanager
def opened(uri: str, compression: str | None = None) -> Iterator[BinaryIO]:
    """A local path or fsspec URI, open for reading bytes. Raises ConnectionError for faults of the network, while reading too."""
    import fsspec

    try:
        with fsspec.open(uri, "rb", compression=compression) as stream:
            yield cast(BinaryIO, stream)
    except _faults() as error:  # asked when something was raised, that is, when the library is loaded
        if "://" not in uri or not (reason := _passing(error)):
            raise
        raise ConnectionError(f"{type(reason).__name__}: {reason}".rstrip(": ")) from error


def _passing(error: BaseException | None) -> BaseException | None:
    """The exception behind `error` that means the network; None when there is none."""
    kinds: tuple[type[Exception], ...] = (ConnectionError, TimeoutError, socket.gaierror, *_known(PASSING))
    while error is not None:
        if isinstance(error, kinds) or getattr(error, "status", None) in BUSY:
            return error
        error = error.__cause__ or error.__context__
    return None


def _faults() -> tuple[type[Exception], ...]:
    return OSError, *_known((("aiohttp", "ClientError"), ("botocore.exceptions", "BotoCoreError")))


def _known(names: tuple[tuple[str, str], ...]) -> list[type[Exception]]:
    return [getattr(sys.modules[module], name) for module, name in names if module in sys.modules]
