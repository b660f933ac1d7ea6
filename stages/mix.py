"""mix: plans the packed sequences: which tokens to train on, how often, in which sequence, and which documents are for validation.

Guarantee: the token count of every source is exact. Every chosen token occurs exactly once per epoch. A segment lies in one document, and a
sequence has at most seq_len tokens. A document is in the train part or in the validation part, never in both.
Cost: about 300 bytes of memory and 3 µs per document; no second copy of the tokens.
Source: best-fit packing, Ding et al. 2024 (stages/text/tokens/packing.py); the limit of four epochs, Muennighoff et al. 2023, "Scaling
Data-Constrained Language Models".
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field, model_validator

from stages.core.contract.declaration import Artifact, Context, Outcome, Stage
from stages.core.contract.errors import StageError
from stages.core.contract.report_section import Section, SectionTable
from stages.core.tables.training_tables import SEQUENCE_SPANS
from stages.settings import StageConfig

if TYPE_CHECKING:
    import numpy as np
    import pyarrow as pa

    from stages.text.tokens.spans import Spans


class Mix(StageConfig):
    """Settings of the mix stage: weights per source, token counts, packing and the validation part."""

    seq_len: int = Field(4096, ge=8, le=1 << 24)
    """Tokens per packed sequence: the context length of pre-training."""
    weights: dict[str, float] = Field(default_factory=dict)
    """Relative weight of each source in the training tokens. Without weights, every source counts in proportion to its size."""
    total_tokens: int | None = Field(None, ge=1, le=10**16)
    """Training tokens over all sources; null uses every source exactly once."""
    max_epochs: float = Field(4.0, gt=0)
    """Maximum number of epochs of a source. More than four epochs add little (Muennighoff et al. 2023)."""
    validation_frac: float = Field(0.005, gt=0, lt=0.5)
    """Share of documents held out for validation, chosen by hash of doc_id and seed."""
    max_validation_documents: int = Field(2_000, ge=1)
    """Maximum number of held-out documents."""

    @model_validator(mode="after")
    def _weights_need_a_total(self) -> Mix:
        if self.weights and self.total_tokens is None:
            raise ValueError(
                "weights decide shares of total_tokens: set mix.total_tokens, or leave mix.weights empty to take every source once"
            )
        if any(weight < 0 for weight in self.weights.values()) or (self.weights and not sum(self.weights.values())):
            raise ValueError("mix.weights are not negative, and at least one is above 0")
        if sum(self.weights.values()) > 1e12 or any(0 < weight < 1e-12 for weight in self.weights.values()):
            raise ValueError("mix.weights lie between 1e-12 and 1e12, in all too; only their ratios count")
        return self


def run(config: Mix, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Writes train/ and validation/ (the packed sequences), sequence_spans/ and mix.json (the counts).

    Returns:
        The outcome. Its rows are the training sequences.

    Raises:
        StageError: There are too few documents, or the settings do not fit the sources.
    """
    import numpy as np

    from stages.lm.data.mixture import Mixture, SourceShare, TrainPart, ValidationPart, write_mixture
    from stages.lm.data.phases import SequenceRange
    from stages.text.tokens.spans import cut_to_tokens, read_spans, select_validation

    spans = read_spans(sorted((inputs["tokens"].path / "spans").glob("*.parquet")))
    held_out = select_validation(spans, config.validation_frac, config.max_validation_documents, ctx.seed)
    if held_out.all():
        raise StageError(
            f"{held_out.size} documents are too few to hold one out for validation and train on the rest.",
            where="mix",
            do="Give the crawl more pages, or loosen the filters.",
        )
    pool = np.flatnonzero(~held_out)
    counts = _train_tokens(config, spans, pool)
    slices: list[np.ndarray] = []
    sources: dict[str, SourceShare] = {}
    for source, (number, wanted, available) in counts.items():
        documents = pool[spans.source[pool] == number]
        slices.append(cut_to_tokens(spans, documents, wanted, ctx.seed))
        weight = config.weights.get(source, available / int(spans.length[pool].sum()))
        sources[source] = SourceShare(weight, available, wanted, wanted / available if available else 0.0)
        ctx.progress(len(sources), len(counts), "sources", source)
    train = TrainPart(**_write_part(out, "train", spans, np.concatenate(slices), config.seq_len))
    validation_documents = np.flatnonzero(held_out)
    whole = np.stack([validation_documents, np.zeros_like(validation_documents), spans.length[validation_documents]], axis=1)
    counts_of_validation = _write_part(out, "validation", spans, whole, config.seq_len)
    validation = ValidationPart(int(held_out.sum()), int(spans.bytes[held_out].sum()), **counts_of_validation)
    write_mixture(
        Mixture(config.seq_len, (SequenceRange(0, train.sequences, config.seq_len),), sources, train, validation), out / "mix.json"
    )
    documents_trained = int(np.unique(np.concatenate(slices)[:, 0]).size)
    return Outcome(
        rows=train.sequences,
        tokens=train.tokens,
        summary={
            "train_sequences": train.sequences,
            "train_tokens": train.tokens,
            "train_documents": documents_trained,
            "sequence_fill_frac": round(train.tokens / (train.sequences * config.seq_len), 6),
            "validation_documents": int(held_out.sum()),
            "validation_tokens": validation.tokens,
            "epochs_most_repeated": round(max(s.epochs for s in sources.values()), 6),
        },
    )


def _train_tokens(config: Mix, spans: Spans, pool: np.ndarray) -> dict[str, tuple[int, int, int]]:
    """Returns source -> (its number, training tokens, available tokens) for every source with training tokens.

    Raises:
        StageError: When a weight names an unknown source, or a source would need more than max_epochs.
    """
    import numpy as np

    from stages.text.tokens.spans import apportion

    available = np.bincount(spans.source[pool], weights=spans.length[pool], minlength=len(spans.names)).astype(np.int64)
    unknown = sorted(set(config.weights) - set(spans.names))
    if unknown:
        raise StageError(
            f"mix.weights names {unknown[0]!r}, which is not a source of the documents.",
            where="mix.weights",
            do=f"The sources are: {', '.join(spans.names)}. A crawl names them in its settings (crawl.source, crawl.sources, "
            "crawl.site.source, crawl.docs.source), imported documents in the field source of a record or else by the name of their file.",
        )
    if config.total_tokens is None:
        wanted = available.tolist()
    else:
        weights = [config.weights.get(name, 0.0) for name in spans.names] if config.weights else available.tolist()
        wanted = apportion(config.total_tokens, weights)
    for name, tokens, most in zip(spans.names, wanted, available.tolist(), strict=True):
        if tokens > most * config.max_epochs:
            raise StageError(
                f"The mixture takes {tokens:,} tokens of source {name!r}, which has {most:,}: {tokens / max(most, 1):.2f} epochs, "
                f"more than mix.max_epochs = {config.max_epochs:g}.",
                where="mix.total_tokens",
                do="Lower mix.total_tokens or the weight of this source, crawl more of it, or raise mix.max_epochs.",
            )
    return {
        name: (number, tokens, int(most))
        for number, (name, tokens, most) in enumerate(zip(spans.names, wanted, available, strict=True))
        if tokens
    }


def _write_part(out: Path, part: str, spans: Spans, taken: np.ndarray, seq_len: int) -> dict[str, int]:
    """Packs (document, offset, length) slices into sequences, and writes <part>/*.npy and sequence_spans/<part>.parquet.

    Returns:
        The number of sequences, segments and tokens.
    """
    import numpy as np

    from stages.text.tokens.spans import pack_sequences

    document, segments, offsets = pack_sequences(spans, taken, seq_len)
    folder = out / part
    folder.mkdir(parents=True)
    np.save(folder / "segments.npy", segments)
    np.save(folder / "sequences.npy", offsets)
    _write_sequence_spans(out / "sequence_spans" / f"{part}.parquet", part, spans, document, segments, offsets)
    return {"sequences": len(offsets) - 1, "segments": len(segments), "tokens": int(segments[:, 2].sum())}


def _write_sequence_spans(path: Path, part: str, spans: Spans, document: np.ndarray, segments: np.ndarray, offsets: np.ndarray) -> None:
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    from stages.core.tables.parquet import schema

    shape = schema(**SEQUENCE_SPANS.types)
    per_sequence = np.diff(offsets)
    columns: dict[str, np.ndarray | pa.Array] = {
        "part": pa.repeat(pa.scalar(part, pa.string()), len(segments)),
        "sequence": np.repeat(np.arange(len(per_sequence)), per_sequence),
        "segment": (np.arange(len(segments)) - np.repeat(offsets[:-1], per_sequence)).astype(np.int32),
        "doc_id": pa.ExtensionArray.from_storage(pa.uuid(), spans.doc_id.take(pa.array(document))),
        "source": pa.array(spans.names, pa.string()).take(pa.array(spans.source[document])),
        "shard": segments[:, 0].astype(np.int32),
        "start": segments[:, 1],
        "length": segments[:, 2],
    }
    path.parent.mkdir(parents=True, exist_ok=True)
    table = pa.table([columns[name] for name in shape.names], schema=shape)
    pq.write_table(table, path, compression="zstd", row_group_size=1 << 17)


def report_section(artifact: Artifact) -> Section:
    """Returns the weight, tokens and epochs of each source."""
    sources = json.loads((artifact.path / "mix.json").read_text(encoding="utf-8"))["sources"]
    rows = tuple(
        {
            "source": source,
            "weight": f"{numbers['weight']:.3f}",
            "tokens available": f"{numbers['available_tokens']:,}",
            "tokens in the mixture": f"{numbers['train_tokens']:,}",
            "epochs in the mixture": f"{numbers['epochs']:.2f}",
        }
        for source, numbers in sources.items()
    )
    return Section("Mixture", tables=(SectionTable(rows, numeric=tuple(rows[0])[1:] if rows else ()),))


STAGE = Stage(
    name="mix",
    config=Mix,
    run=run,
    inputs={"tokens": "encode"},
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
    ),
    distributions=("numpy", "pyarrow"),
)
