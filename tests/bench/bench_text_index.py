"""Benchmark of the index of verbatim text: time, memory and size of a build, and the latency of a search.

python -m tests.bench.bench_text_index --mib 1000 --piece-mib 256. The texts are words by Zipf's law, 3,000 per document; a query is 20
stretches of 20 words of the documents (400 words, about 512 tokens). One process builds the pieces one after another.
"""

from __future__ import annotations

import argparse
import resource
import tempfile
import time
from pathlib import Path

import numpy as np

from stages.corpus.text_index.suffix_array import TextPiece, build_piece, open_piece
from stages.questions.tracing.verbatim import longest_spans

QUERIES, STRETCHES, STRETCH_WORDS, WORDS, VOCABULARY = 200, 20, 20, 3000, 50_000


def documents(draw: np.random.Generator, size: int) -> list[bytes]:
    """Returns texts of together at least `size` bytes, with one more byte each."""
    words = np.array(["".join(map(chr, draw.integers(97, 123, draw.integers(2, 9)))) for _ in range(VOCABULARY)])
    shares = 1 / np.arange(1, VOCABULARY + 1)
    found: list[bytes] = []
    while size > 0:
        found.append(" ".join(words[draw.choice(VOCABULARY, WORDS, p=shares / shares.sum())]).encode())
        size -= len(found[-1]) + 1
    return found


def queries(draw: np.random.Generator, texts: list[bytes]) -> list[bytes]:
    """Returns texts that are put together from documents."""
    found = []
    for _ in range(QUERIES):
        parts: list[bytes] = []
        for _ in range(STRETCHES):
            words = texts[draw.integers(len(texts))].split()
            first = draw.integers(len(words) - STRETCH_WORDS)
            parts += words[first : first + STRETCH_WORDS]
        found.append(b" ".join(parts))
    return found


def main() -> None:
    """Builds the pieces in a temporary folder, searches them and prints one table."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--mib", type=int, default=64, help="text in all")
    parser.add_argument("--piece-mib", type=int, default=16, help="text of a piece")
    given = parser.parse_args()
    draw = np.random.default_rng(1)
    pieces: list[TextPiece] = []
    asked: list[bytes] = []
    with tempfile.TemporaryDirectory() as folder:
        build_s = size = disk = 0.0
        for number in range(-(-given.mib // given.piece_mib)):
            texts = documents(draw, given.piece_mib << 20)
            own = Path(folder) / str(number)
            own.mkdir()
            started = time.perf_counter()
            build_piece(own, [(bytes(16), text) for text in texts], sum(len(text) + 1 for text in texts))
            build_s += time.perf_counter() - started
            size += sum(len(text) for text in texts)
            disk += sum(path.stat().st_size for path in own.iterdir())
            pieces.append(open_piece(own))
            asked = asked or queries(draw, texts)
        longest_spans([pieces], asked[0], 6, 3)  # compiles the loops
        took = []
        for query in asked:
            started = time.perf_counter()
            found = longest_spans([pieces], query, 6, 3)
            took.append(1e3 * (time.perf_counter() - started))
            assert len(found) >= STRETCHES / 2
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1e6
    print("| text | pieces | build | peak memory | on disk | query p50 | query p95 |\n|---|---|---|---|---|---|---|")
    print(f"| {size / 1e6:,.0f} MB | {len(pieces)} | {build_s:,.0f} s, {size / build_s / 1e6:.1f} MB/s | {peak:.2f} GB | {disk / size:.2f} bytes per byte "
          f"| {np.median(took):.1f} ms | {np.quantile(took, 0.95):.1f} ms |")  # fmt: skip


if __name__ == "__main__":
    main()
