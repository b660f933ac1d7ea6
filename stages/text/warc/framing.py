"""Reads the bytes of a WARC file one gzip member or plain stretch at a time, and decompresses them within limits.

Guarantee: the reader never reads a member past its end, so damage in one member does not affect the next one. A member that cannot be read
gives all readable bytes first, and then its state: damaged, cut or bomb. A member keeps at most `limits.max_bytes` and a few megabytes in
memory, whatever range a caller requests.
Cost: zlib, about 300 MB/s of text per core.
Source: RFC 1952; WARC 1.1, annex D (one member per record).

Why not the stream of a WARC library: fastwarc and warcio do not report where a member ends, so a wrong Content-Length or a damaged member
also loses the next record. Neither limits the decompressed size of a member.
"""

from __future__ import annotations

import re
import zlib
from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

GZIP_MAGIC = b"\x1f\x8b\x08"
HEAD = re.compile(rb"WARC/\d\.\d+[ \t]*\r?\n[!-9;-~]+[ \t]*:")
BLOCK_BYTES = 1 << 20
STEP_BYTES = 1 << 13  # compressed input per step: decompresses to 8 MiB at most (deflate's limit is 1032 : 1)
PIECE_BYTES = 64  # smaller step, used after damage to recover the bytes before it
SPAN_BYTES = 256  # enough to recognise what begins at an offset


@dataclass(frozen=True)
class WarcLimits:
    """Limits of decompression.

    Attributes:
        max_bytes: Largest decoded body, in bytes.
        max_ratio: Largest decompression ratio. Data is a bomb if it grows past both max_bytes and this multiple of its compressed size.
    """

    max_bytes: int
    max_ratio: float


@dataclass(frozen=True)
class Gap:
    """Bytes between members that are neither a member nor padding."""

    offset: int


class Blocks:
    """A seekable file that is read in blocks, so that the many short reads of members only cost a slice each."""

    def __init__(self, stream: BinaryIO) -> None:
        """Takes a seekable file, and reads its size."""
        self._stream, self._start, self._block = stream, 0, b""
        self.size = stream.seek(0, 2)

    def read(self, at: int, size: int) -> bytes:
        """Returns the bytes [at, at + size), shorter only at the end of the file."""
        begin, size = at - self._start, min(size, self.size - at)
        if begin < 0 or begin + size > len(self._block):
            self._stream.seek(at)
            self._start, begin = at, 0
            self._block = self._stream.read(max(size, BLOCK_BYTES))
        return self._block[begin : begin + size]


class Plain:
    """An uncompressed file from `offset` to its end. Bytes are read only when they are requested."""

    packed = False

    def __init__(self, file: Blocks, offset: int) -> None:
        """Begins at the byte `offset` of the file."""
        self.offset, self.end = offset, "whole"
        self._file = file

    def reaches(self, at: int) -> bool:
        """Returns whether `at` is within the file."""
        return self.offset + at <= self._file.size

    def view(self, at: int, size: int) -> bytes:
        """Returns the bytes [at, at + size), shorter only at the end of the file."""
        return self._file.read(self.offset + at, size)

    def skip(self, at: int) -> None:
        """Does nothing: a plain file is readable at any position."""

    def rewind(self, at: int) -> None:
        """Does nothing: a plain file is readable at any position."""


class Member:
    """One gzip member, or several after calls of `extend`.

    `end` is "" until the end was reached, then whole, damaged, cut (the file ends) or bomb. Positions count decompressed bytes. Bytes
    before the last `skip` are discarded; `rewind` decompresses them again.
    """

    packed = True

    def __init__(self, file: Blocks, offset: int, limits: WarcLimits) -> None:
        """Begins at the byte `offset` of the file. limits: how much may be decompressed."""
        self.offset, self.end = offset, ""
        self._file, self._limits = file, limits
        self._joined: list[int] = []  # compressed bytes before each additional member
        self._start()

    def view(self, at: int, size: int) -> bytes:
        """Returns the bytes [at, at + size), shorter only where the member ends."""
        while not self.end and self._base + len(self._data) < at + size:
            self._step()
        start = at - self._base
        return bytes(memoryview(self._data)[start : start + size])

    def reaches(self, at: int) -> bool:
        """Returns whether the bytes read so far reach `at`."""
        return at <= self._base + len(self._data)

    def skip(self, at: int) -> None:
        """Moves forward to `at` and discards the bytes before it."""
        while not self.end and self._base + len(self._data) < at:
            self._forget(self._base + len(self._data))
            self._step()
        if at - self._base > BLOCK_BYTES:
            self._forget(at)

    def rewind(self, at: int) -> None:
        """Makes a position before the last `skip` readable again."""
        if at < self._base:
            self.end = ""
            self._start()
            self.skip(at)

    def goes_on(self) -> bool:
        """Returns whether the next gzip member continues a record: a writer of fixed-size blocks splits records across members."""
        if self.end != "whole" or not self._file.read(self.next_offset(), SPAN_BYTES).startswith(GZIP_MAGIC):
            return False
        return not _begins_record(self._file, self.next_offset())

    def extend(self) -> bool:
        """Returns whether the next gzip member was appended, which is done if `goes_on` is true."""
        if not self.goes_on():
            return False
        self._joined.append(self._read)
        self._inflate, self.end = zlib.decompressobj(wbits=31), ""
        return True

    def retract(self, members: int) -> None:
        """Removes all but the first `members` gzip members. The next member then begins at the end of the last remaining one."""
        if self.members > members:
            self._read, self.end = self._joined[members - 1], "whole"
            del self._joined[members - 1 :]

    @property
    def members(self) -> int:
        """Number of gzip members so far."""
        return len(self._joined) + 1

    def finish(self) -> str:
        """Returns the state of the member, after reading to its end."""
        while not self.end:
            self._forget(self._base + len(self._data))
            self._step()
        return self.end

    def next_offset(self) -> int:
        """Returns the file offset after a whole member."""
        return self.offset + self._read

    def last_offset(self) -> int:
        """Returns the file offset of the last gzip member that was appended, or of the first member."""
        return self.offset + (self._joined[-1] if self._joined else 0)

    def _start(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)
        self._data, self._base = bytearray(), 0
        self._read = 0  # compressed bytes so far

    def _forget(self, at: int) -> None:
        dropped = min(at - self._base, len(self._data))
        del self._data[:dropped]
        self._base += dropped

    def _step(self) -> None:
        raw = self._file.read(self.offset + self._read, STEP_BYTES)
        if not raw:
            self.end = "cut"
            return
        try:
            self._data += self._inflate.decompress(raw)
        except zlib.error:
            self._data += self._before_damage(raw)
            self.end = "damaged"
            return
        self._read += len(raw) - len(self._inflate.unused_data)
        made = self._base + len(self._data)
        if self._inflate.eof and self._read in self._joined:
            self._inflate = zlib.decompressobj(wbits=31)
        elif self._inflate.eof:
            self.end = "whole"
        elif made > self._limits.max_bytes + BLOCK_BYTES and made > self._limits.max_ratio * self._read:
            self.end = "bomb"

    def _before_damage(self, raw: bytes) -> bytes:
        """Returns the bytes that the step `raw` decompresses to before its damage.

        It decompresses the current gzip member again up to the step, and then the step in small pieces.
        """
        inflate = zlib.decompressobj(wbits=31)
        for at in range(max([start for start in self._joined if start <= self._read], default=0), self._read, STEP_BYTES):
            inflate.decompress(self._file.read(self.offset + at, min(STEP_BYTES, self._read - at)))
        found = bytearray()
        for at in range(0, len(raw), PIECE_BYTES):
            try:
                found += inflate.decompress(raw[at : at + PIECE_BYTES])
            except zlib.error:
                break
        return bytes(found)


Segment = Plain | Member


def segments(stream: BinaryIO, limits: WarcLimits) -> Iterator[Segment | Gap]:
    """Yields the members and gaps of a seekable file in order. After a member that is not whole it searches for the next member."""
    file, blocks = Blocks(stream), False
    offset: int | None = 0
    while offset is not None:
        start = file.read(offset, SPAN_BYTES)
        padding = len(start) - len(start.lstrip(b"\0\r\n"))  # from tapes, block devices and careless writers
        if padding or not start:
            offset = offset + padding if start else None
        elif start.startswith(GZIP_MAGIC):
            member = Member(file, offset, limits)
            yield member
            blocks = blocks or member.members > 1
            whole = member.finish() == "whole"
            offset = member.next_offset() if whole else next_start(file, member.last_offset() + 1, blocks=blocks)
        elif HEAD.match(start):
            yield Plain(file, offset)
            offset = None
        else:
            yield Gap(offset)
            offset = next_start(file, offset + 1, blocks=blocks)


def next_start(file: Blocks, offset: int, limit: int | None = None, blocks: bool = False) -> int | None:
    """Returns the offset of the next member that begins with a record head, or of the next plain record head; None without one.

    Args:
        file: The file.
        offset: First offset to check.
        limit: Offset at which the search ends, checked per block of BLOCK_BYTES.
        blocks: Whether the file is compressed in fixed-size blocks. Then any member that can be decompressed is accepted.
    """
    mark = re.compile(re.escape(GZIP_MAGIC) + b"|" + HEAD.pattern)
    while limit is None or offset < limit:
        block = file.read(offset, BLOCK_BYTES + SPAN_BYTES)
        for found in mark.finditer(block):
            if found.start() < BLOCK_BYTES and (
                block[found.start()] != GZIP_MAGIC[0] or _begins_record(file, offset + found.start(), blocks)
            ):
                return offset + found.start()
        if len(block) < BLOCK_BYTES + SPAN_BYTES:
            return None
        offset += BLOCK_BYTES
    return None


def _begins_record(file: Blocks, offset: int, anything: bool = False) -> bool:
    """Returns whether the gzip member at `offset` can be decompressed and begins with a record head (with `anything`: is not empty)."""
    try:
        start = zlib.decompressobj(wbits=31).decompress(file.read(offset, 4096), SPAN_BYTES)
    except zlib.error:
        return False
    return HEAD.match(start.lstrip()) is not None or (anything and start != b"")
