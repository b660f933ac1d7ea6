"""Benchmark items and ways in which a page can quote one: the ground truth for tests and benchmarks of decontamination."""

from __future__ import annotations

import csv
import gzip
import io
import json
import re
import tarfile
from collections.abc import Iterator
from pathlib import Path

from stages.corpus.text.words import normalise_words
from stages.examples.benchmarks.tasks import format_of


def bench_items(bench: Path) -> Iterator[tuple[str, str, tuple[str, ...]]]:
    """Returns (task, item_id, texts) of every item in a folder of benchmark files."""
    for path in sorted(bench.glob("*.jsonl*")):
        form = None
        with gzip.open(path, "rt") if path.suffix == ".gz" else path.open() as lines:
            for number, line in enumerate(lines):
                record = json.loads(line)
                form = form or format_of(record, {})
                assert form
                yield path.name.partition(".")[0], str(number), form.read(record).texts
    for path in sorted(bench.glob("*.csv")):
        with path.open(newline="") as rows:
            for number, row in enumerate(csv.DictReader(rows)):
                yield path.stem, str(number), (row["Question"], f"{row['Question']} {row['Best Answer']}")
    (path,) = bench.glob("*_csv.tar.gz")
    with tarfile.open(path) as archive:
        for member in sorted((m for m in archive if m.isfile()), key=lambda m: m.name):
            file = archive.extractfile(member)
            assert file
            for number, row in enumerate(csv.DictReader(io.TextIOWrapper(file, encoding="utf-8"))):
                yield (
                    f"{path.name.partition('_')[0]}-{Path(member.name).stem}",
                    str(number),
                    (row["question"], f"{row['question']} {row['choice' + row['answer']]}"),
                )


def quotes(text: str) -> dict[str, str]:
    """Returns the text as a page can quote it, changed by kind. All kinds are leaks, except the two that begin with `not`."""
    words = normalise_words(text)
    return {
        "verbatim": text,
        "upper case": text.upper(),
        "no punctuation": re.sub(r"\W+", " ", text),
        "other punctuation": re.sub(r"\W+", lambda m: (" – ", "; ", "\u00a0", " “", "...\n")[len(m[0]) % 5] if m[0] != "'" else "’", text),
        "a word a line": "\n".join(text.split()),
        "emphasis": re.sub(r"(\w+)\s", r"**\1** ", text),
        "soft hyphens": re.sub(r"([^\W\d_]{3})([^\W\d_]{3})", "\\1\u00ad\\2", text),
        "not: every 7th word changed": " ".join(f"{w}x" if k % 7 == 6 else w for k, w in enumerate(words)),
        "not: words in reverse": " ".join(reversed(words)),
    }
