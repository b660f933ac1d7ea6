"""The bytes of a WARC file, a gzip member or a plain stretch at a time, decompressed within limits.

Guarantee: no member is read past its end, so damage in one costs nothing in the next; a member that cannot be read says why
(damaged, cut, bomb) after all that could be read; whatever is asked of it, a member keeps at most `limits.max_bytes` and a few
megabytes in memory. Cost: zlib, about 300 MB/s of text per core. Source: RFC 1952; WARC 1.1, annex D (one member per record).

Why not a WARC library's stream: fastwarc and warcio do not tell where a member ends, so a wrong Content-Length or a damaged
member takes the next record with it, and neither limits how far a member may grow.
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
STEP_BYTES = 1 << 13  # of compressed input at once: grows to 8 MiB at most (deflate's limit is 1032 : 1)
PIECE_BYTES = 64  # when a damaged step is read again, to get at what comes before the damage
SPAN_BYTES = 256  # enough to tell what begins here


@dataclass(frozen=True)
class WarcLimits:
    """max_bytes: of one body, decoded. max_ratio: what grows past max_bytes and past this many times its size is a bomb."""

    max_bytes: int
    max_ratio: float


@dataclass(frozen=True)
class Gap:
    """Bytes between members that are neither a member nor padding."""

    offset: int


class Blocks:
    """A seekable file read a block at a time: the many short reads of members cost a slice each."""

    def __init__(self, stream: BinaryIO) -> None:
        self._stream, self._start, self._block = stream, 0, b""
        self.size = stream.seek(0, 2)

    def read(self, at: int, size: int) -> bytes:
        """[at, at + size), shorter only at the end of the file."""
        begin, size = at - self._start, min(size, self.size - at)
        if begin < 0 or begin + size > len(self._block):
            self._stream.seek(at)
            self._start, begin = at, 0
            self._block = self._stream.read(max(size, BLOCK_BYTES))
        return self._block[begin : begin + size]


class Plain:
    """An uncompressed file from `offset` to its end, read where it is asked for."""

    packed = False

    def __init__(self, file: Blocks, offset: int) -> None:
        self.offset, self.end = offset, "whole"
        self._file = file

    def reaches(self, at: int) -> bool:
        """Whether `at` lies within the file."""
        return self.offset + at <= self._file.size

    def view(self, at: int, size: int) -> bytes:
        """[at, at + size), shorter only at the end."""
        return self._file.read(self.offset + at, size)

    def skip(self, at: int) -> None:
        """Nothing has to be read to get to `at`."""

    def rewind(self, at: int) -> None:
        """Any place can be read again."""


class Member:
    """One gzip member, or several when `extend` was asked. `end` is "" until its end was met, then whole, damaged, cut (the file ends)
    or bomb.

    Positions count decompressed bytes. What lies before the last `skip` is forgotten; `rewind` decompresses it again.
    """

    packed = True

    def __init__(self, file: Blocks, offset: int, limits: WarcLimits) -> None:
        self.offset, self.end = offset, ""
        self._file, self._limits = file, limits
        self._joined: list[int] = []  # compressed bytes before each further member
        self._start()

    def view(self, at: int, size: int) -> bytes:
        """[at, at + size), shorter only where the member ends."""
        while not self.end and self._base + len(self._data) < at + size:
            self._step()
        start = at - self._base
        return bytes(memoryview(self._data)[start : start + size])

    def reaches(self, at: int) -> bool:
        """Whether the member reaches `at`, of what was read so far."""
        return at <= self._base + len(self._data)

    def skip(self, at: int) -> None:
        """Goes forward to `at`, without keeping what lies before it."""
        while not self.end and self._base + len(self._data) < at:
            self._forget(self._base + len(self._data))
            self._step()
        if at - self._base > BLOCK_BYTES:
            self._forget(at)

    def rewind(self, at: int) -> None:
        """Makes a place readable that was skipped."""
        if at < self._base:
            self.end = ""
            self._start()
            self.skip(at)

    def goes_on(self) -> bool:
        """Whether a gzip member follows that does not begin with a record: a writer of blocks cuts records in two."""
        if self.end != "whole" or not self._file.read(self.next_offset(), SPAN_BYTES).startswith(GZIP_MAGIC):
            return False
        return not _begins_record(self._file, self.next_offset())

    def extend(self) -> bool:
        """Takes in the next gzip member where `goes_on` says so."""
        if not self.goes_on():
            return False
        self._joined.append(self._read)
        self._inflate, self.end = zlib.decompressobj(wbits=31), ""
        return True

    def retract(self, members: int) -> None:
        """Takes back all but the first `members`: the next one begins where the last of these ends."""
        if self.members > members:
            self._read, self.end = self._joined[members - 1], "whole"
            del self._joined[members - 1 :]

    @property
    def members(self) -> int:
        """Gzip members so far."""
        return len(self._joined) + 1

    def finish(self) -> str:
        """Reads on to the member's end and returns what it is."""
        while not self.end:
            self._forget(self._base + len(self._data))
            self._step()
        return self.end

    def next_offset(self) -> int:
        """Where the file goes on after a whole member."""
        return self.offset + self._read

    def last_offset(self) -> int:
        """Where the last gzip member taken in begins."""
        return self.offset + (self._joined[-1] if self._joined else 0)

    def _start(self) -> None:
        self._inflate = zlib.decompressobj(wbits=31)
        self._data, self._base = bytearray(), 0
        self._read = 0  # compressed bytes so far

    def _forget(self, at: int) -> None:
        gone = min(at - self._base, len(self._data))
        del self._data[:gone]
        self._base += gone

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
        """What the step `raw` holds before its damage: what came before in its member is decompressed again, then piece by piece."""
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
    """The members and gaps of a seekable file in order. After a member that is not whole the next one is searched for."""
    file, blocks = Blocks(stream), False
    offset: int | None = 0
    while offset is not None:
        start = file.read(offset, SPAN_BYTES)
        padding = len(start) - len(start.lstrip(b"\0\r\n"))  # of tapes, block devices and careless writers
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
    """Where the next member that begins with a record head (or the next plain head) begins, at or after offset and before limit.

    blocks: the file is compressed in blocks, whatever the records: any member that can be decompressed will do.
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
    """Whether the gzip member at offset can be decompressed and begins with a record head, or with anything."""
    try:
        start = zlib.decompressobj(wbits=31).decompress(file.read(offset, 4096), SPAN_BYTES)
    except zlib.error:
        return False
    return HEAD.match(start.lstrip()) is not None or (anything and start != b"")
