"""Counts for boilerplate on how many pages of its host each line of a page is, and finds the counts again for each page.

Three steps: the workers write the keys of every page's lines and cells; the pages that repeat another one are found; the keys of the others
are counted, file by file and then over all files by ranges of keys.
Guarantee: several captures of a URL count as one page, the one whose lines have the smallest key; so do pages of a host whose lines differ
in numbers only. The counts do not depend on workers or on the order of the files. Counts of earlier crawls are added (`against`); a page
whose URL or lines an earlier crawl counted is not counted again.
Cost: 8 bytes of scratch per line and cell of a page, and 12 per different one of a file. Memory is 60 bytes per line and cell of the largest
file per worker, 200 MB to merge, 12 bytes per line that is on two pages or more (mapped from disk), and 80 bytes per page, those of earlier
crawls included, in the stage's own process.
Source: external sorting by ranges of hashed keys.
"""

from __future__ import annotations

import json
from array import array
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from stages.corpus.boilerplate.body_rules import HostCounts
from stages.corpus.boilerplate.key_counts import first_of_each, pages_of_keys, summed
from stages.corpus.boilerplate.known_lines import KnownLines
from stages.corpus.boilerplate.line_keys import KEYS_VERSION, cells_of_rows, host_of, key_of, normals, title_of
from stages.corpus.documents.line_table import LineFile, page_marks
from stages.record.contract.declaration import Context, ExternalFile
from stages.record.contract.errors import RecipeError
from stages.record.tables.parquet import count_rows
from stages.record.tables.shards import Meter, Shard, run_shards

if TYPE_CHECKING:
    import numpy as np

COUNTS = "counts"
"""The folder of an artifact with its counts, for later crawls."""
VERSION = "version.json"
LEAST = 2  # a line on fewer pages is not published
RANGE_KEYS = 3_000_000  # keys that a worker merges at a time, at most 60 bytes each
SPAN = 1 << 64
PER_PAGE = ("hosts", "titles", "urls", "texts")
"""Arrays with one key per page; 0 where the page is not counted or has no title."""


class KeyedFile(TypedDict):
    """The result of `key_file`: number of keys of lines and cells."""

    keys: int


@dataclass(frozen=True)
class CountTask:
    """The result folder of `key_file`, and which of its pages count (a file, bool [pages])."""

    keyed: Path
    counted: Path


@dataclass(frozen=True)
class MergeTask:
    """The sorted keys of all files (folders with keys.npy and pages.npy), and the range of keys to add up, the last one included."""

    folders: tuple[Path, ...]
    first: int
    last: int


def key_file(folder: Path, file: LineFile, meter: Meter) -> KeyedFile:
    """Writes the keys of a documents file.

    keys.npy, uint64: of each page its lines in order and then its cells. line_counts.npy and key_counts.npy, int64 [pages]: lines of each
    page, and all its keys. The arrays PER_PAGE, uint64 [pages].

    Returns:
        The number of keys.
    """
    import numpy as np
    from xxhash import xxh3_64_intdigest

    meter.expect(count_rows(file.documents))
    keys, per_page = array("Q"), {name: array("Q") for name in PER_PAGE}
    line_counts, key_counts = array("q"), array("q")
    for row, marks in page_marks(file, ("url", "text"), ("heading", "frame")):
        found: list[int] = []
        host, text, lines = host_of(row["url"] or ""), row["text"], 0
        values = dict.fromkeys(PER_PAGE, 0)
        if marks is not None and host:
            hashed, title = key_of(host), title_of(text, marks["heading"], marks["frame"])
            found = hashed(normals(text))
            lines = len(found)
            found += hashed(cells_of_rows(text))
            same = xxh3_64_intdigest(np.unique(np.array(found, np.uint64)).tobytes())
            values = {"hosts": hashed([b""])[0], "titles": hashed([b"\n" + title.encode("utf-8", "surrogatepass")])[0] if title else 0,
                      "urls": xxh3_64_intdigest(row["url"].encode()), "texts": same}  # fmt: skip
        keys.extend(found)
        line_counts.append(lines)
        key_counts.append(len(found))
        for name, value in values.items():
            per_page[name].append(value)
        meter.add(1, len(row["text"]))
    for name, values_of in {"keys": keys, "line_counts": line_counts, "key_counts": key_counts, **per_page}.items():
        np.save(folder / f"{name}.npy", np.frombuffer(values_of, np.int64 if values_of.typecode == "q" else np.uint64))
    return {"keys": len(keys)}


def counted_pages(shards: Sequence[Shard[KeyedFile]], earlier: Sequence[Path]) -> list[np.ndarray]:
    """Returns per file which pages count, bool [pages]: of each URL one capture, and of each set of lines one page, that no earlier crawl has.

    Args:
        shards: The results of `key_file`.
        earlier: The folders with the counts of earlier crawls.
    """
    import numpy as np

    hosts, urls, texts = ([np.load(shard.path / f"{name}.npy") for shard in shards] for name in ("hosts", "urls", "texts"))
    ends = np.cumsum([len(one) for one in hosts])
    url, text = (np.concatenate([*arrays, np.empty(0, np.uint64)]) for arrays in (urls, texts))
    counted = np.concatenate([*hosts, np.empty(0, np.uint64)]) > 0
    for folder in earlier:
        counted &= ~np.isin(url, np.load(folder / "urls.npy"))
    counted[counted] = first_of_each(url[counted], text[counted])
    for folder in earlier:
        counted &= ~np.isin(text, np.load(folder / "texts.npy"))
    counted[counted] = first_of_each(text[counted], url[counted])
    return np.split(counted, ends[:-1]) if hosts else []


def count_file(folder: Path, task: CountTask, meter: Meter) -> dict[str, int]:
    """Writes keys.npy, uint64 sorted, and pages.npy, uint32: the different keys of the counted pages of a file, and on how many they are.

    Returns:
        Their number.
    """
    import numpy as np

    keys = np.load(task.keyed / "keys.npy")
    found, counts = pages_of_keys(keys, np.load(task.keyed / "key_counts.npy"), np.load(task.counted))
    np.save(folder / "keys.npy", found)
    np.save(folder / "pages.npy", counts)
    meter.add(len(keys))
    return {"keys": len(found)}


def merge_range(folder: Path, task: MergeTask, meter: Meter) -> dict[str, int]:
    """Writes keys.npy and pages.npy: the sums over all files for a range of keys, where they are at least LEAST.

    Returns:
        The number of keys.
    """
    import numpy as np

    keys, pages = [np.empty(0, np.uint64)], [np.empty(0, np.uint32)]
    for source in task.folders:
        all_keys = np.load(source / "keys.npy", mmap_mode="r")
        begin = int(np.searchsorted(all_keys, np.uint64(task.first)))
        end = int(np.searchsorted(all_keys, np.uint64(task.last), side="right"))
        keys.append(np.array(all_keys[begin:end]))
        pages.append(np.array(np.load(source / "pages.npy", mmap_mode="r")[begin:end]))
    merged, sums = summed(np.concatenate(keys), np.concatenate(pages))
    np.save(folder / "keys.npy", merged[sums >= LEAST])
    np.save(folder / "pages.npy", sums[sums >= LEAST])
    return {"keys": int((sums >= LEAST).sum())}


def earlier_counts(files: Sequence[ExternalFile]) -> tuple[Path, ...]:
    """Returns the folders with the counts of earlier crawls.

    Args:
        files: The artifacts that boilerplate.against names.

    Raises:
        RecipeError: An artifact has no counts, or counts of another version, or is named twice.
    """
    folders: dict[str, Path] = {}
    for file in files:
        folder = Path(file.uri) / COUNTS
        where, do = f"boilerplate.against: {file.uri}", "Name an artifact that boilerplate made, or build it again with this version."
        try:
            made = json.loads((folder / VERSION).read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise RecipeError("The artifact holds no counts of lines.", where=where, do=do) from None
        if made != {"version": KEYS_VERSION}:
            raise RecipeError(f"Its counts are of version {made.get('version')}, not {KEYS_VERSION}.", where=where, do=do)
        if file.identity in folders:
            raise RecipeError("An earlier crawl is named twice, so its pages would count twice.", where=where, do="Name each crawl once.")
        folders[file.identity] = folder
    return tuple(folders.values())


def count_lines(files: Sequence[LineFile], earlier: Sequence[Path], out: Path, ctx: Context) -> list[Path]:
    """Counts the lines of all files, and writes the counts of this crawl into `out`/counts.

    Args:
        files: The documents files, with the marks of their lines.
        earlier: The folders with the counts of earlier crawls.
        out: The artifact's folder.
        ctx: The stage's context.

    Returns:
        The result folder of `key_file` for each file.
    """
    keyed = run_shards(key_file, files, ctx, "keys", [file.documents.stat().st_size for file in files])
    count_keyed(keyed, earlier, out, ctx)
    return [shard.path for shard in keyed]


def count_keyed(keyed: Sequence[Shard[KeyedFile]], earlier: Sequence[Path], out: Path, ctx: Context) -> None:
    """Counts the keys of all files, and writes the counts of this crawl into `out`/counts. keyed: the results of `key_file`."""
    import numpy as np

    counted = counted_pages(keyed, earlier)
    tasks = []
    for shard, pages in zip(keyed, counted, strict=True):
        np.save(saved := ctx.scratch / f"counted-{shard.index}.npy", pages)
        tasks.append(CountTask(shard.path, saved))
    files = run_shards(count_file, tasks, ctx, "counts", [shard.result["keys"] for shard in keyed])
    target = out / COUNTS
    target.mkdir()
    (target / VERSION).write_text(json.dumps({"version": KEYS_VERSION}) + "\n", encoding="utf-8")
    ranges = max(1, -(-sum(shard.result["keys"] for shard in files) // RANGE_KEYS))
    bounds = [SPAN * i // ranges for i in range(ranges + 1)]
    folders = tuple(shard.path for shard in files)
    merges = [MergeTask(folders, bounds[i], bounds[i + 1] - 1) for i in range(ranges)]
    merged = run_shards(merge_range, merges, ctx, "merge")
    for name in ("keys", "pages"):
        _concatenate([shard.path / f"{name}.npy" for shard in merged], target / f"{name}.npy")
    of = {}
    for name in PER_PAGE:
        chosen = [np.load(shard.path / f"{name}.npy")[pages] for shard, pages in zip(keyed, counted, strict=True)]
        of[name] = np.concatenate([*chosen, np.empty(0, np.uint64)])
    hosts, pages_of = np.unique(of["hosts"], return_counts=True)
    titles = np.unique(of["titles"])
    for name, values in (
        ("hosts", hosts),
        ("host_pages", pages_of),
        ("titles", titles[titles > 0]),
        ("urls", np.sort(of["urls"])),
        ("texts", np.sort(of["texts"])),
    ):
        np.save(target / f"{name}.npy", values)


def _concatenate(parts: Sequence[Path], target: Path) -> None:
    """Writes the arrays of several files as one, a part in memory at a time."""
    import numpy as np

    arrays = [np.load(part, mmap_mode="r") for part in parts]
    whole = np.lib.format.open_memmap(target, "w+", arrays[0].dtype, (sum(len(one) for one in arrays),))
    at = 0
    for one in arrays:
        whole[at : at + len(one)] = one
        at += len(one)
    whole.flush()


def counts_of_pages(known: KnownLines, keyed: Path) -> Callable[[int, str, int], HostCounts]:
    """Returns the function from a page's row in its file, its host and its number of lines to what is known of the host.

    Args:
        known: The counts.
        keyed: The result folder of `key_file` for the file.
    """
    import numpy as np

    line_counts, key_counts = np.load(keyed / "line_counts.npy"), np.load(keyed / "key_counts.npy")
    starts = np.concatenate(([0], np.cumsum(key_counts)))
    pages = known.pages(np.load(keyed / "keys.npy"))
    of_hosts = known.host_pages(np.load(keyed / "hosts.npy"))

    def of_page(row: int, host: str, lines: int) -> HostCounts:
        if not host:  # such a page has no keys
            return known.of_host(host, np.zeros(lines, np.int64), 0)
        begin = int(starts[row])
        return known.of_host(host, pages[begin : begin + int(line_counts[row])], int(of_hosts[row]))

    return of_page
