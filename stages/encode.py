"""encode: encodes documents as tokens: one flat file of ids per shard, and one span per document.

Guarantee: every document is bos ids eos, in the order of the documents; bos and eos are <|begin_of_text|> and <|end_of_text|>, or the
tokens that an imported tokenizer has for them. The spelling of a special token in a text is encoded as ordinary characters. Decoding
returns the text.
Cost: about 1 MB of text per second and core; one row group in memory.
Source: Hugging Face tokenizers; the flat layout is that of nanoGPT and Megatron.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, NamedTuple, TypedDict
from uuid import UUID

from stages.core.contract.declaration import Artifact, Context, Outcome, RecordCounts, Stage
from stages.core.contract.errors import StageError
from stages.core.contract.report_section import Section
from stages.core.contract.side_table import Column, SideTable
from stages.core.tables.shards import Meter, collect, run_shards
from stages.settings import StageConfig

if TYPE_CHECKING:
    from stages.core.store.manifest_schema import RecordCountsEntry

SPANS = SideTable(
    "spans", "token_spans", "the tokens of a document",
    {
        "doc_id": Column("uuid", "the document"),
        "source": Column("string", "its source"),
        "shard": Column("int32", "number of the token file"),
        "start": Column("int64", "position of its first token in the file"),
        "length": Column("int64", "its tokens, with those that begin and end a text"),
        "bytes": Column("int64", "size of the text in UTF-8"),
    },
)  # fmt: skip


BATCH_DOCUMENTS = 64


class SpanRow(TypedDict):
    """A row of the table `spans`."""

    doc_id: UUID
    source: str
    shard: int
    start: int
    length: int
    bytes: int


class EncodedShard(TypedDict):
    """The result of `encode_shard`: tokens of the shard, bytes of its texts in UTF-8, and its record counts."""

    tokens: int
    bytes: int
    record_counts: RecordCountsEntry


class SourceText(NamedTuple):
    """What is encoded of a document."""

    doc_id: UUID
    source: str
    text: str


@dataclass(frozen=True)
class EncodeTask:
    """A documents shard with its number, the tokenizer.json, the type of a token id in the file ("uint16" or "uint32"), two token ids."""

    documents: Path
    tokenizer: Path
    shard: int
    dtype: str
    bos: int
    eos: int


class Encode(StageConfig):
    """This stage has no settings. The tokenizer decides the tokens."""


def run(config: Encode, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes tokens/NNNNN.bin and spans/NNNNN.parquet for every documents shard, and tokens.json, which describes them.

    Returns:
        The outcome with record counts. Its rows are the documents.

    Raises:
        StageError: There are no documents.
    """
    from stages.text.tokenizer.bpe import load_chat, load_chat_format

    path = inputs["tokenizer"].path / "tokenizer.json"
    vocab_size = load_chat(path).get_vocab_size()
    form = load_chat_format(path.parent)
    bos, eos, pad = (form.ids[token] for token in (form.tokens.bos, form.tokens.eos, form.tokens.pad))
    dtype = "uint16" if vocab_size <= 1 << 16 else "uint32"
    documents = sorted((inputs["documents"].path / "documents").glob("*.parquet"))
    tasks = [EncodeTask(p, path, n, dtype, bos, eos) for n, p in enumerate(documents)]
    shards = run_shards(encode_shard, tasks, ctx, "encode")
    collect(shards, "tokens.bin", out)
    collect(shards, "spans.parquet", out)
    record_counts = sum((RecordCounts(**shard.result["record_counts"]) for shard in shards), RecordCounts())
    if not record_counts.rows_in:
        raise StageError("There are no documents to encode.", where="documents", do="Look at the drop reasons of the stages before.")
    counts = [shard.result["tokens"] for shard in shards]
    described = {"dtype": dtype, "vocab_size": vocab_size, "shards": [{"tokens": n} for n in counts]}
    described |= {"bos": bos, "eos": eos, "pad": pad}
    (out / "tokens.json").write_text(json.dumps(described, indent=1) + "\n")
    text_bytes = sum(shard.result["bytes"] for shard in shards)
    sizes = {"documents": record_counts.rows_in, "tokens": sum(counts), "bytes": text_bytes}
    summary = {**sizes, "bytes_per_token": round(text_bytes / sum(counts), 4)}
    return Outcome(rows=record_counts.rows_in, tokens=sum(counts), record_counts=record_counts, summary=summary)


def encode_shard(folder: Path, task: EncodeTask, meter: Meter) -> EncodedShard:
    """Writes tokens.bin and spans.parquet of one shard. It encodes a batch of documents at a time on one thread.

    Returns:
        Sizes and record counts of the shard.
    """
    import os

    import numpy as np

    from stages.core.tables.parquet import count_rows, schema, write_rows
    from stages.text.tokenizer.bpe import encode_texts, load_plain

    os.environ["TOKENIZERS_PARALLELISM"] = "false"  # several worker processes already run in parallel
    tokenizer = load_plain(task.tokenizer)
    start = chars = text_bytes = 0
    spans: list[SpanRow] = []
    meter.expect(count_rows(task.documents))
    with (folder / "tokens.bin").open("wb") as sink:
        for batch in _batches(task.documents):
            for document, ids in zip(batch, encode_texts(tokenizer, [document.text for document in batch]), strict=True):
                sink.write(np.array([task.bos, *ids, task.eos], dtype="<u2" if task.dtype == "uint16" else "<u4").tobytes())
                size = len(document.text.encode())
                spans.append({"doc_id": document.doc_id, "source": document.source, "shard": task.shard, "start": start,
                              "length": len(ids) + 2, "bytes": size})  # fmt: skip
                start += len(ids) + 2
                text_bytes += size
                meter.add(1, size)
                chars += len(document.text)
    write_rows(folder / "spans.parquet", schema(**SPANS.types), spans)
    record_counts = RecordCounts(rows_in=len(spans), kept=len(spans), chars_in=chars, chars_out=chars)
    return {"tokens": start, "bytes": text_bytes, "record_counts": record_counts.as_json()}


def _batches(path: Path) -> Iterator[list[SourceText]]:
    """Yields the documents of a file in batches of BATCH_DOCUMENTS."""
    from stages.core.tables.parquet import read_rows

    batch: list[SourceText] = []
    for row in read_rows(path, ["doc_id", "source", "text"]):
        batch.append(SourceText(row["doc_id"], row["source"], row["text"]))
        if len(batch) == BATCH_DOCUMENTS:
            yield batch
            batch = []
    if batch:
        yield batch


def report_section(artifact: Artifact) -> Section:
    """Returns the size of the corpus in tokens."""
    return Section("Data", cards=(("tokens in the corpus", f"{artifact.manifest['tokens']:,}"),))


STAGE = Stage(
    name="encode",
    config=Encode,
    run=run,
    inputs={"documents": "decontaminate", "tokenizer": "train_tokenizer"},
    summary={"documents": "documents", "bytes_per_token": "bytes of text per token"},
    output="tokens",
    tables=(SPANS,),
    section=report_section,
    unit="documents",
    does="documents as token shards, each token range known by document",
    versions=("first version",),
    distributions=("tokenizers", "pyarrow"),
)
