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
from dataclasses import dataclass
from typing import BinaryIO, cast

PASSING = (("aiohttp", "ClientConnectionError"), ("aiohttp", "ClientPayloadError"), ("botocore.exceptions", "HTTPClientError"))
"""Exceptions of the libraries under fsspec that mean the network; looked up only where the library is loaded."""
BUSY = (429, 500, 502, 503, 504)
"""HTTP answers that pass (RFC 9110, RFC 6585)."""


@dataclass(frozen=True)
class RemoteFile:
    """What a file system says of a file without reading it. size: None where it does not say. etag: a strong one, else empty.

    A weak ETag (W/"…") names what means the same, not what has the same bytes, and a date of modification has a grain of a second
    (RFC 9110, 8.8): neither tells contents apart.
    """

    size: int | None
    etag: str


@contextmanager
def opened(uri: str, compression: str | None = None, sequential: bool = False) -> Iterator[BinaryIO]:
    """A local path or fsspec URI, open for reading bytes. Raises ConnectionError for faults of the network, while reading too.

    sequential: read from begin to end in one answer, which every HTTP server can; such a stream cannot seek.
    """
    import fsspec

    options = {"block_size": 0} if sequential and uri.startswith(("http://", "https://")) else {}
    with _network_told_apart(uri), fsspec.open(uri, "rb", compression=compression, **options) as stream:
        yield cast(BinaryIO, stream)


def describe(uri: str) -> RemoteFile:
    """Asks for a file's size and ETag. Raises ConnectionError for faults of the network, else what the file system's library raises."""
    import fsspec

    with _network_told_apart(uri):
        file_system, path = fsspec.core.url_to_fs(uri)
        file_system.invalidate_cache(path)
        info = file_system.info(path)
    tag, size = str(info.get("ETag") or info.get("etag") or "").strip(), info.get("size")
    return RemoteFile(None if size is None else int(size), "" if tag.startswith("W/") else tag.strip('"'))


def local_name(uri: str) -> str:
    """The path of a file on this machine that a URI (file://, local://) names, in fsspec's reading; empty for any other URI."""
    import fsspec
    from fsspec.implementations.local import LocalFileSystem

    if "::" in uri:  # one file system read through another
        return ""
    kind = fsspec.get_filesystem_class(uri.partition("://")[0])
    return str(fsspec.core.url_to_fs(uri)[1]) if issubclass(kind, LocalFileSystem) else ""


@contextmanager
def _network_told_apart(uri: str) -> Iterator[None]:
    """Raises ConnectionError in place of what means the network; everything else is left as it is."""
    try:
        yield
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
