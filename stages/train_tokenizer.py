"""train_tokenizer: trains the tokenizer on the documents of the recipe.

Guarantee: the same documents give the same files, whatever the number of threads or the order of files in the file system. If the
documents exceed `max_train_bytes`, a hash of doc_id chooses the sample.
Cost: one pass over doc_ids and text lengths, then one pass over the texts. Memory grows with the number of distinct words.
Source: stages/text/tokenizer/bpe.py.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from pydantic import Field

from stages.core.contract.declaration import Artifact, Context, ExternalFile, Importer, Outcome, Stage
from stages.core.contract.errors import RecipeError, StageError
from stages.settings import StageConfig
from stages.text.items.chat import TOKEN_ROLES

if TYPE_CHECKING:
    import numpy as np

MEASURED_BYTES = 4_000_000
SNIPPET = 'Correct it: from tokenizers import Tokenizer; tokenizer = Tokenizer.from_file("tokenizer.json"); ...; tokenizer.save("tokenizer.json").'
IMPORTABLE = ("tokenizer.json", "tokenizer_config.json", "chat_template.jinja")


class TrainTokenizer(StageConfig):
    """Settings of the train_tokenizer stage: byte-level BPE with Llama 3's split pattern, special tokens and chat template."""

    vocab_size: int = Field(32_768, ge=262, le=1 << 20)
    """Number of tokens in the vocabulary, including special tokens (Llama 3: 128,256; Grattafiori et al. 2024)."""
    min_frequency: int = Field(2, ge=1)
    """Number of occurrences from which a pair of tokens can become a token. The trainer's own default, 0, merges chance pairs."""
    max_train_bytes: int = Field(2_000_000_000, ge=1)
    """Maximum size of the training text (bytes). Tens of GB exhaust the memory of large machines and can overflow the trainer's 32-bit pair
    counts (huggingface/tokenizers issues 1681, 1546 and 1170). In our measurement, 95 MB took 1.2 GB of memory."""


def run(config: TrainTokenizer, inputs: Mapping[str, Artifact], out: Path, ctx: Context) -> Outcome:
    """Trains, writes the tokenizer's two files, and measures bytes per token on at most about 4 MB of the training sample.

    Returns:
        The outcome. Its rows are the tokens of the vocabulary.

    Raises:
        StageError: There are no documents, or too few for the vocabulary.
    """
    from stages.text.tokenizer.bpe import CorpusTooSmallError, encode_texts, load_plain, save, train_bpe

    files = sorted((inputs["documents"].path / "documents").glob("*.parquet"))
    chosen, train_bytes, available_bytes = _sample(files, config.max_train_bytes, ctx.seed)
    documents = int(sum(int(mask.sum()) for mask in chosen))
    if not documents:
        raise StageError(
            "There are no documents to train a tokenizer on.", where="documents", do="Look at the drop reasons of the stages before."
        )
    ctx.log(f"training on {documents:,} documents, {train_bytes / 1e6:,.1f} MB of {available_bytes / 1e6:,.1f} MB")
    try:
        tokenizer = train_bpe(_texts(files, chosen, ctx, documents), config.vocab_size, config.min_frequency)
    except CorpusTooSmallError as error:
        raise StageError(
            str(error),
            where=f"train_tokenizer.vocab_size = {config.vocab_size}",
            do=f"Set train_tokenizer.vocab_size to at most {error.reachable}, or give the crawl more text.",
        ) from None
    save(tokenizer, out)
    plain = load_plain(out / "tokenizer.json")
    measured_bytes = measured_tokens = 0
    for text in _texts(files, chosen):
        measured_bytes += len(text.encode())
        measured_tokens += len(encode_texts(plain, [text])[0])
        if measured_bytes >= MEASURED_BYTES:
            break
    return Outcome(
        rows=config.vocab_size,
        summary={
            "vocab_size": config.vocab_size,
            "train_documents": documents,
            "train_bytes": train_bytes,
            "available_bytes": available_bytes,
            "bytes_per_token": round(measured_bytes / max(measured_tokens, 1), 4),
        },
    )


def import_files(files: tuple[ExternalFile, ...], out: Path, ctx: Context) -> Outcome:
    """Imports a user's tokenizer, with Loam's tokenizer_config.json. tokenizer.json is unchanged unless it lacks something.

    Returns:
        The outcome. Its rows are the ids of the vocabulary.

    Raises:
        RecipeError: When tokenizer.json is missing, or when the pipeline cannot use the tokenizer.
    """
    from stages.core.run.confined import ConfinedError, confined
    from stages.text.items.chat import ChatTokens
    from stages.text.tokenizer import tokenizer_check
    from stages.text.tokenizer.bpe import write_config

    found = {file.name: Path(file.uri) for file in files}
    if "tokenizer.json" not in found:
        raise RecipeError("There is no tokenizer.json.", where=files[0].uri, do="Save the tokenizer as a fast one of Hugging Face.")
    try:
        judged = confined(tokenizer_check.judge_files, *(str(found.get(name, "")) for name in IMPORTABLE), dict(ctx.mapping))
        faults, do = judged["faults"], judged["do"]
    except ConfinedError as error:
        faults, do = [f"It {error}."], ""
    if faults:
        raise RecipeError(
            "The pipeline cannot use this tokenizer:" + "".join(f"\n  - {fault}" for fault in faults),
            where=str(found["tokenizer.json"]),
            do=do or f"{SNIPPET} Then import it again.",
        )
    mended: str = judged["text"]
    (out / "tokenizer.json").write_bytes(mended.encode() if mended else found["tokenizer.json"].read_bytes())
    write_config(out, ChatTokens(**judged["tokens"]))
    changes = {"changes": " ".join(judged["changes"])} if judged["changes"] else {}
    return Outcome(rows=judged["size"], summary={"vocab_size": judged["size"], **changes})


def _sample(files: list[Path], limit: int, seed: int) -> tuple[list[np.ndarray], int, int]:
    """Returns (per file a mask of the documents to train on, their bytes, the available bytes)."""
    import numpy as np
    import pyarrow.compute as pc

    from stages.core.tables.parquet import count_rows, read_batches
    from stages.text.basics.hash_sampling import hash_values, key_bytes, lowest

    numbers, sizes, counts = [], [], []
    for path in files:
        counts.append(count_rows(path))
        for batch in read_batches(path, ["doc_id", "text"]):
            numbers.append(hash_values(seed, "tokenizer sample", key_bytes(batch.column("doc_id").storage)))
            sizes.append(np.asarray(pc.binary_length(batch.column("text"))).astype(np.int64))
    if not numbers:
        return [], 0, 0
    size = np.concatenate(sizes)
    available = int(size.sum())
    chosen = np.ones(size.size, dtype=bool) if available <= limit else lowest(np.concatenate(numbers), size, limit)
    return np.split(chosen, np.cumsum(counts)[:-1]), int(size[chosen].sum()), available


def _texts(files: list[Path], chosen: list[np.ndarray], ctx: Context | None = None, total: int = 0) -> Iterator[str]:
    from stages.core.tables.parquet import read_rows

    done = 0
    for path, mask in zip(files, chosen, strict=True):
        for row, wanted in zip(read_rows(path, ["text"]), mask, strict=True):
            if wanted:
                yield row["text"]
                done += 1
                if ctx and done % 256 == 0:
                    ctx.progress(done, total, "documents", "reading")


STAGE = Stage(
    name="train_tokenizer",
    config=TrainTokenizer,
    run=run,
    inputs={"documents": "decontaminate"},
    summary={"vocab_size": "tokens of the vocabulary", "bytes_per_token": "bytes of training text per token"},
    output="tokenizer",
    unit="vocabulary entries",
    does="byte-level BPE with chat tokens and template",
    versions=("first version",),
    distributions=("tokenizers",),
    importer=Importer(IMPORTABLE, import_files, maps=TOKEN_ROLES),
)
