"""Decontamination against datatrove's n-gram filter: speed per core on real pages with every benchmark indexed, and planted leaks.

`python -m tests.bench.bench_decontaminate` prints the table. Processor time of one core, medians of alternating runs. The peer
gets an index of the planted items only, by its own words and hashes (its own indexer needs a package that does not install here).
"""

from __future__ import annotations

import os
import random
from typing import Any

os.environ |= {"OMP_NUM_THREADS": "1", "NUMBA_NUM_THREADS": "1"}

SAMPLE_BYTES, PEER_BYTES, PLANTED, BAR_MB = 20_000_000, 400_000, 300, 20.0


def rows() -> list[dict[str, Any]]:
    """The table of `make bench`."""
    from stages.corpus.text.ngrams import build_index, find
    from stages.corpus.text.words import normalise_words
    from tests.bench.bench_dedup import alternate
    from tests.bench.corpus import input_data, texts_and_urls
    from tests.stages.planted import bench_items, quotes

    pages = texts_and_urls()[0]
    random.Random(1).shuffle(pages)
    items = list(bench_items(input_data().part("bench")))
    index = build_index(items, 13, 8)
    planted = [
        (task, item, texts[-1]) for task, item, texts in items[:: max(1, len(items) // PLANTED)] if len(normalise_words(texts[-1])) >= 13
    ]
    peer = datatrove_filter([text for _, _, text in planted])
    sample, few = some(pages, SAMPLE_BYTES), some(pages, PEER_BYTES)
    ours = alternate([lambda: [find(index, page) for page in sample]], sum(len(p.encode()) for p in sample))[0]
    theirs = alternate([lambda: [peer(page) for page in few]], sum(len(p.encode()) for p in few))[0]
    what = f"search, MB/s per core, {len(items):,} items, {len(index.hashes):,} n-grams"
    found = [line(what, round(ours, 1), f"datatrove {theirs:.2f}", ours / theirs, BAR_MB, ours >= BAR_MB)]
    for kind in quotes("x"):
        mine = other = 0
        for number, (task, item, text) in enumerate(planted):
            page, quote = pages[number % len(pages)], quotes(text)[kind]
            dirty = f"{page[: len(page) // 2]}\n{quote}\n{page[len(page) // 2 :]}"
            mine += any((m.task, m.item_id) == (task, item) for m in find(index, dirty))
            other += peer(f"{page[len(page) // 2 :][:500]}\n{quote}\n")
        share, bar = mine / len(planted), 0.0 if kind.startswith("not") else 1.0
        found.append(line(f"planted leaks found: {kind}, of {len(planted)}", round(share, 4), f"datatrove {other / len(planted):.4f}",
                          float("nan"), bar, share == bar))  # fmt: skip
    clean = sum(bool(find(index, page)) for page in pages)
    found.append(line(f"clean pages flagged, of {len(pages):,}", clean, "datatrove not run", float("nan"), 0, clean == 0))
    return found


def datatrove_filter(texts: list[str]) -> Any:
    """Text -> whether datatrove's NGramsDecontFilter drops it."""
    from datatrove.data import Document
    from datatrove.pipeline.decont.n_grams import NGramsDecontConfig, NGramsDecontFilter
    from datatrove.utils.text import ngrams, simplify_text

    block = NGramsDecontFilter(os.devnull, NGramsDecontConfig(n_grams=13))
    block._index_hashes = {}
    for text in texts:
        words = block.tokenizer.word_tokenize(simplify_text(text, block.config.norm_config))
        block._index_hashes |= {block.hash_func(" ".join(gram)): "planted" for gram in ngrams(words, 13)}
    return lambda text: block.filter(Document(text=text, id="0")) is not True


def some(pages: list[str], size_bytes: int) -> list[str]:
    """Pages from the first on, as many as the size asks for."""
    chosen: list[str] = []
    size = 0
    for page in pages:
        if size >= size_bytes:
            break
        chosen.append(page)
        size += len(page.encode())
    return chosen


def line(what: str, ours: float, peer: str, ratio: float, bar: float, reached: bool) -> dict[str, Any]:
    return {"part": "decontaminate", "what": what, "ours": ours, "peer": peer, "ratio": round(ratio, 1), "bar": bar, "reached": reached}


def main() -> None:
    from tests.bench.corpus import described

    print(f"load {os.getloadavg()[0]:.1f}\n{described()}")
    for found in rows():
        print(" | ".join(f"{value}" for value in found.values()))


if __name__ == "__main__":
    main()
