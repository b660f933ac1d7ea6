"""Measures a tokenizer on texts of every source and language: vocabulary.json of train_tokenizer, and its section of the report.

Guarantee: the texts are the first of each source, so the same documents give the same figures. The file is not in the artifact's digest.
Cost: MEASURED_BYTES of text are encoded; files without a source that is still needed are not read.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from stages.core.contract.declaration import Artifact
from stages.core.contract.report_section import Section, SectionTable
from stages.core.tables.parquet import read_batches

if TYPE_CHECKING:
    from tokenizers import Tokenizer

    from stages.text.tokenizer.vocabulary_use import VocabularyUse

REPORT = "vocabulary.json"
MEASURED_BYTES = 4_000_000
"""Bytes of text that are measured, the same share of each source."""


def write_report(tokenizer: Tokenizer, files: Sequence[Path], path: Path) -> dict[str, float | int]:
    """Measures a tokenizer and writes the figures.

    Args:
        tokenizer: The tokenizer.
        files: The documents files.
        path: The file to write.

    Returns:
        The figures of the summary.
    """
    from stages.text.tokenizer.vocabulary_use import vocabulary_use

    found = vocabulary_use(tokenizer, _texts(files))
    path.write_text(json.dumps(found, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    size, tokens, words = (sum(group[name] for group in found["groups"]) for name in ("bytes", "tokens", "words"))
    return {
        "bytes_per_token": round(size / max(tokens, 1), 4),
        "tokens_per_word": round(tokens / max(words, 1), 4),
        "unused_tokens": found["unused_tokens"],
        "rare_tokens": found["rare_tokens"],
    }


def _texts(files: Sequence[Path]) -> Iterator[tuple[str, str, str]]:
    """Yields (source, language, text) of the first documents of each source, until each has its share of MEASURED_BYTES."""
    import pyarrow.compute as pc

    in_file = [
        {name for batch in read_batches(file, ["source"]) for name in pc.unique(batch.column("source")).to_pylist()} for file in files
    ]
    sources = set().union(*in_file)
    left = Counter(dict.fromkeys(sources, MEASURED_BYTES // max(len(sources), 1)))
    for file, here in zip(files, in_file, strict=True):
        for batch in read_batches(file, ["source", "lang", "text"]) if any(left[source] > 0 for source in here) else ():
            for source, lang, text in zip(*(batch.column(name).to_pylist() for name in ("source", "lang", "text")), strict=True):
                if left[source] > 0:
                    left[source] -= len(text.encode())
                    yield source or "", lang or "", text


def report_section(artifact: Artifact) -> Section | None:
    """Returns bytes per token by source and language, and what the vocabulary holds. None for an imported tokenizer."""
    path = artifact.path / REPORT
    if not path.exists():
        return None
    found: VocabularyUse = json.loads(path.read_text(encoding="utf-8"))
    rows = tuple(
        {
            "source": group["source"],
            "language": group["lang"] or "unknown",
            "MB measured": f"{group['bytes'] / 1e6:.2f}",
            "bytes per token": f"{group['bytes'] / max(group['tokens'], 1):.3f}",
            "tokens per word": f"{group['tokens'] / max(group['words'], 1):.3f}",
        }
        for group in found["groups"]
    )
    paragraphs = (
        "A word is what stands between white space, so tokens per word says little of languages without it. A token per byte is the baseline: "
        "1 byte per token.",
        f"Of {found['tokens']:,} tokens, the measured texts do not have {found['unused_tokens']:,}, and {found['rare_tokens']:,} others "
        f"fewer than {found['rare_below']} times. The longest tokens: {', '.join(map(repr, found['longest']))}. "
        f"{found['digits_text']} is {' | '.join(found['digits'])}.",
    )
    return Section("Tokenizer", paragraphs=paragraphs, tables=(SectionTable(rows, numeric=tuple(rows[0])[2:] if rows else ()),))
