"""mix: plans the packed sequences: which tokens to train on, how often, in which sequence, and which documents are for validation.

Guarantee: the token count of every phase, source and bucket is exact. A segment lies in one document, and a sequence has at most seq_len
tokens. A document is in the train part or in the validation part, never in both. Copies of a repeated document are at least half an epoch of
their source apart and share no sequence (stages/tokens/mix/blocks.py).
Cost: about 300 bytes of memory and 3 µs per document; no second copy of the tokens.
Source: best-fit packing, Ding et al. 2024 (stages/tokens/sequences/packing.py); the limit of four epochs, Muennighoff et al. 2023, "Scaling
Data-Constrained Language Models".
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from stages.record.contract.declaration import Artifact, Context, Outcome, Stage
from stages.record.contract.errors import StageError
from stages.record.contract.report_section import Section, SectionTable
from stages.tokens.mix.mix_settings import COLUMN_FOLDERS, Mix
from stages.tokens.sequences.span_table import SEQUENCE_SPANS

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from stages.tokens.mix.blocks import Stream
    from stages.tokens.mix.mixture_plan import MixturePlan
    from stages.tokens.mix.spans import Spans
    from stages.tokens.sequences.mixture import PhaseShare, SequenceRange, SourceShare

ROW_GROUP = 1 << 17
"""Rows that the table sequence_spans has in one group and in memory: a reader of one document's spans skips groups."""


@dataclass(frozen=True)
class PackedSequences:
    """The sequences of a part: the document of each segment, segments [n, 3] (shard, start, length) and offsets [sequences + 1] into them."""

    document: np.ndarray
    segments: np.ndarray
    offsets: np.ndarray


def run(config: Mix, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes train/ and validation/ (the packed sequences), sequence_spans/ and mix.json (the counts).

    Returns:
        The outcome. Its rows are the training sequences.

    Raises:
        StageError: There are too few documents, or the settings do not fit the documents.
    """
    import numpy as np

    from stages.tokens.mix.mixture_plan import MixtureError, read_plan
    from stages.tokens.mix.spans import pack_sequences
    from stages.tokens.sequences.mixture import Mixture, TrainPart, ValidationPart, write_mixture

    tables = [inputs[role].path / folder for role, folder in COLUMN_FOLDERS.items() if role in inputs]
    try:
        plan = read_plan(config, inputs["tokens"].path, tables, ctx.seed)
    except MixtureError as error:
        raise StageError(str(error), where=error.where, do=error.do) from error
    spans = plan.spans
    packed, ranges = _packed_phases(plan, ctx.seed, ctx.progress)
    shares = _shares(plan, packed, ranges)
    train = TrainPart(**_write_part(out, "train", spans, packed))
    documents = np.flatnonzero(plan.held_out)
    whole = np.stack([documents, np.zeros_like(documents), spans.length[documents]], axis=1)
    held_out = _write_part(out, "validation", spans, PackedSequences(*pack_sequences(spans, whole, config.seq_len)))
    validation = ValidationPart(len(documents), int(spans.bytes[documents].sum()), **held_out)
    sources = _sources(plan, shares)
    write_mixture(Mixture(max(one.seq_len for one in ranges), ranges, sources, shares, train, validation), out / "mix.json")
    return Outcome(
        rows=train.sequences,
        tokens=train.tokens,
        summary={
            "train_sequences": train.sequences,
            "train_tokens": train.tokens,
            "train_documents": int(np.count_nonzero(np.bincount(packed.document, minlength=1))),
            "sequence_fill_frac": round(train.tokens / sum(one.sequences * one.seq_len for one in ranges), 6),
            "validation_documents": len(documents),
            "validation_tokens": validation.tokens,
            "epochs_most_repeated": round(max(s.epochs for s in sources.values()), 6),
        },
    )


def _packed_phases(plan: MixturePlan, seed: int, progress: Callable[..., None]) -> tuple[PackedSequences, tuple[SequenceRange, ...]]:
    """Packs every block of every phase on its own.

    Returns:
        (all training sequences, the range of each phase).
    """
    import numpy as np

    from stages.tokens.mix.blocks import cut_blocks
    from stages.tokens.mix.spans import pack_sequences
    from stages.tokens.sequences.mixture import SequenceRange

    streams = _ordered(plan, seed)
    parts: list[PackedSequences] = []
    ranges: list[SequenceRange] = []
    start, blocks = 0, sum(phase.blocks for phase in plan.phases)
    for phase, begins in zip(plan.phases, plan.begins, strict=True):
        sizes = []
        for taken in cut_blocks(streams, begins, phase.tokens, phase.blocks):
            part = PackedSequences(*pack_sequences(plan.spans, taken, phase.seq_len))
            sizes.append(len(part.offsets) - 1)
            parts.append(part)
            progress(len(parts), blocks, "blocks", "packing")
        sizes = [size for size in sizes if size]
        ranges.append(SequenceRange(start, sum(sizes), phase.seq_len, tuple(sizes) if len(sizes) > 1 else ()))
        start += sum(sizes)
    if len(parts) == 1:
        return parts[0], tuple(ranges)
    before = np.cumsum([len(part.segments) for part in parts[:-1]]).tolist()
    offsets = [parts[0].offsets, *(part.offsets[1:] + shift for part, shift in zip(parts[1:], before, strict=True))]
    packed = PackedSequences(
        np.concatenate([part.document for part in parts]), np.concatenate([part.segments for part in parts]), np.concatenate(offsets)
    )
    return packed, tuple(ranges)


def _ordered(plan: MixturePlan, seed: int) -> list[Stream]:
    """Returns the documents of each stream in the order in which they are taken. One that is taken exactly once needs no order."""
    import numpy as np

    from stages.tokens.mix.blocks import Stream, stream_of

    whole = len(plan.phases) == 1 and plan.phases[0].blocks == 1
    return [
        Stream(one.documents, np.cumsum(plan.spans.length[one.documents]))
        if whole and plan.phases[0].tokens[number] in (0, one.available)
        else stream_of(plan.spans, one.documents, seed)
        for number, one in enumerate(plan.streams)
    ]


def _shares(plan: MixturePlan, packed: PackedSequences, ranges: tuple[SequenceRange, ...]) -> tuple[PhaseShare, ...]:
    """Returns the tokens per phase, source and bucket, after counting in the packed sequences that they are those planned."""
    import numpy as np

    from stages.tokens.mix.mixture_plan import mixture_shares

    stream = np.zeros(len(plan.spans.length), np.int32)
    for number, key in enumerate(plan.streams):
        stream[key.documents] = number
    delivered: list[int] = []
    for one, phase in zip(ranges, plan.phases, strict=True):
        first, last = packed.offsets[one.start_sequence], packed.offsets[one.start_sequence + one.sequences]
        counts = np.zeros(len(plan.streams), np.int64)
        np.add.at(counts, stream[packed.document[first:last]], packed.segments[first:last, 2])
        delivered += [tokens for tokens, planned in zip(counts.tolist(), phase.tokens, strict=True) if planned]
    shares = tuple(mixture_shares(plan))
    for share, tokens in zip(shares, delivered, strict=True):
        assert tokens == share.planned_tokens, f"{share} has {tokens} tokens in the sequences"
    return shares


def _sources(plan: MixturePlan, shares: tuple[PhaseShare, ...]) -> dict[str, SourceShare]:
    """Returns the sources with training tokens, over all phases and buckets."""
    from stages.tokens.sequences.mixture import SourceShare

    total = sum(share.train_tokens for share in shares)
    available: dict[str, int] = {}
    for stream in plan.streams:
        name = plan.spans.names[stream.source]
        available[name] = available.get(name, 0) + stream.available
    taken = {name: sum(share.train_tokens for share in shares if share.source == name) for name in available}
    return {
        name: SourceShare(tokens / total, available[name], tokens, tokens / available[name]) for name, tokens in taken.items() if tokens
    }


def _write_part(out: Path, part: str, spans: Spans, packed: PackedSequences) -> dict[str, int]:
    """Writes <part>/*.npy and sequence_spans/<part>.parquet.

    Returns:
        The number of sequences, segments and tokens.
    """
    import numpy as np

    folder = out / part
    folder.mkdir(parents=True)
    np.save(folder / "segments.npy", packed.segments)
    np.save(folder / "sequences.npy", packed.offsets)
    _write_sequence_spans(out / "sequence_spans" / f"{part}.parquet", part, spans, packed)
    return {"sequences": len(packed.offsets) - 1, "segments": len(packed.segments), "tokens": int(packed.segments[:, 2].sum())}


def _write_sequence_spans(path: Path, part: str, spans: Spans, packed: PackedSequences) -> None:
    import pyarrow.parquet as pq

    from stages.record.tables.parquet import schema

    shape = schema(**SEQUENCE_SPANS.types)
    path.parent.mkdir(parents=True, exist_ok=True)
    with pq.ParquetWriter(path, shape, compression="zstd") as writer:
        for table in _span_tables(part, spans, packed, shape):
            writer.write_table(table, row_group_size=ROW_GROUP)


def _span_tables(part: str, spans: Spans, packed: PackedSequences, shape: pa.Schema) -> Iterator[pa.Table]:
    """Yields the rows of sequence_spans, ROW_GROUP at a time."""
    import numpy as np
    import pyarrow as pa

    names, numbers = pa.array(spans.names, pa.string()), np.arange(ROW_GROUP)
    for begin in range(0, len(packed.segments), ROW_GROUP):
        segments, document = packed.segments[begin : begin + ROW_GROUP], packed.document[begin : begin + ROW_GROUP]
        row = begin + numbers[: len(segments)]
        sequence = np.searchsorted(packed.offsets, row, side="right") - 1
        columns: dict[str, np.ndarray | pa.Array] = {
            "part": pa.repeat(pa.scalar(part, pa.string()), len(segments)),
            "sequence": sequence,
            "segment": (row - packed.offsets[sequence]).astype(np.int32),
            "doc_id": pa.ExtensionArray.from_storage(pa.uuid(), spans.doc_id.take(pa.array(document))),
            "source": names.take(pa.array(spans.source[document])),
            "shard": segments[:, 0].astype(np.int32),
            "start": segments[:, 1],
            "length": segments[:, 2],
        }
        yield pa.table([columns[name] for name in shape.names], schema=shape)


def report_section(artifact: Artifact) -> Section:
    """Returns the share, tokens and epochs of each source, and those per phase and bucket if the mixture has several."""
    mixture = json.loads((artifact.path / "mix.json").read_text(encoding="utf-8"))
    sources = tuple({"source": source, **_figures(numbers)} for source, numbers in mixture["sources"].items())
    tables = [SectionTable(sources, numeric=tuple(sources[0])[1:] if sources else ())]
    shares = tuple(
        {
            "phase": str(share["phase"] + 1),
            "source": share["source"],
            "bucket": share["bucket"],
            "tokens available": f"{share['available_tokens']:,}",
            "tokens planned": f"{share['planned_tokens']:,}",
            "tokens in the phase": f"{share['train_tokens']:,}",
            "epochs in the phase": f"{share['epochs']:.2f}",
        }
        for share in mixture["shares"]
    )
    if any(share["phase"] or share["bucket"] for share in mixture["shares"]):
        tables.append(SectionTable(shares, numeric=tuple(shares[0])[3:]))
    return Section("Mixture", tables=tuple(tables))


def _figures(numbers: Mapping[str, float]) -> dict[str, str]:
    return {
        "weight": f"{numbers['weight']:.3f}",
        "tokens available": f"{numbers['available_tokens']:,}",
        "tokens in the mixture": f"{numbers['train_tokens']:,}",
        "epochs in the mixture": f"{numbers['epochs']:.2f}",
    }


STAGE = Stage(
    name="mix",
    config=Mix,
    run=run,
    inputs={"tokens": "encode", "documents": "decontaminate", "filtered": "filter"},
    optional=("documents", "filtered"),
    ancestors=("documents", "filtered"),
    signals=("filtered",),
    summary={
        "train_tokens": "tokens for training",
        "train_documents": "documents for training",
        "validation_documents": "documents held out",
    },
    output="mixture",
    tables=(SEQUENCE_SPANS,),
    section=report_section,
    unit="sequences",
    does="weights per source, packed sequences, validation split",
    versions=(
        "first version",
        "sequences.npy, segments.npy and sequence_spans name sequences and segments, no longer rows and pieces",
        "mix.json names ranges of sequences with their seq_len",
        "every source has validation documents; repeated documents are cut into blocks that are packed on their own; buckets and phases",
        "buckets by texts are in the order of their texts, whatever that of the recipe; equal numbers are in the tier of their middle",
    ),
    distributions=("numpy", "pyarrow"),
)
