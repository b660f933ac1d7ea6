"""Trains and loads a byte-level BPE tokenizer like Llama 3's: its split pattern, all bytes in the vocabulary, special tokens at the end.

Guarantee: the same texts give the same tokenizer.json on any number of threads (merges are counted, not sampled; ties are broken by token
id). Any string is encoded without an unknown token.
Cost: memory grows with the number of distinct words; 95 MB of text took 1.2 GB.
Source: Hugging Face tokenizers; the pattern is from Llama 3's tokenizer.json.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import TYPE_CHECKING, TypedDict

from stages.text.items.chat import BOS, LLAMA3, SPECIAL_TOKENS, ChatFormat, ChatTokens, template

if TYPE_CHECKING:
    from tokenizers import Tokenizer

LLAMA3_SPLIT = r"(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\r\n\p{L}\p{N}]?\p{L}+|\p{N}{1,3}| ?[^\s\p{L}\p{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
SMALLEST_VOCABULARY = 256 + len(SPECIAL_TOKENS)
BATCH_DOCUMENTS = 256
CHAT_TOKENS = "chat_tokens.json"
"""File of an imported tokenizer with other special tokens than Llama 3's: the fields of ChatTokens."""


class CorpusTooSmallError(ValueError):
    """The texts have fewer frequent pairs than the vocabulary needs merges."""

    def __init__(self, vocab_size: int, reachable: int) -> None:
        """Makes the message. vocab_size: the required size. reachable: the largest size that the texts give."""
        super().__init__(
            f"The vocabulary should have {vocab_size:,} tokens, but the texts give only {reachable:,} (too few repeated words)."
        )
        self.reachable = reachable


def train_bpe(texts: Iterable[str], vocab_size: int, min_frequency: int = 2) -> Tokenizer:
    """Returns a trained tokenizer of exactly `vocab_size` tokens, special tokens included.

    Args:
        texts: Training texts.
        vocab_size: Number of tokens.
        min_frequency: Smallest number of occurrences at which a pair of tokens becomes a token.

    Raises:
        ValueError: `vocab_size` is smaller than SMALLEST_VOCABULARY.
        CorpusTooSmallError: The texts give fewer tokens.
    """
    from tokenizers import AddedToken, Regex, Tokenizer, decoders, models, pre_tokenizers, processors, trainers

    if vocab_size < SMALLEST_VOCABULARY:
        raise ValueError(
            f"A byte-level vocabulary has at least {SMALLEST_VOCABULARY} tokens (256 bytes and the special ones), not {vocab_size}."
        )
    tokenizer = Tokenizer(models.BPE())
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([
        pre_tokenizers.Split(Regex(LLAMA3_SPLIT), behavior="isolated"),
        pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False),
    ])  # fmt: skip
    tokenizer.decoder = decoders.ByteLevel()
    trainer = trainers.BpeTrainer(
        vocab_size=vocab_size - len(SPECIAL_TOKENS),
        min_frequency=min_frequency,
        initial_alphabet=sorted(pre_tokenizers.ByteLevel.alphabet()),
        show_progress=False,
    )
    tokenizer.train_from_iterator(_batches(texts), trainer)
    tokenizer.add_special_tokens([AddedToken(token, special=True, normalized=False) for token in SPECIAL_TOKENS])
    tokenizer.post_processor = processors.TemplateProcessing(
        single=f"{BOS} $A", pair=f"{BOS} $A {BOS} $B", special_tokens=[(BOS, tokenizer.token_to_id(BOS))]
    )
    if tokenizer.get_vocab_size() < vocab_size:
        raise CorpusTooSmallError(vocab_size, tokenizer.get_vocab_size())
    return tokenizer


def save(tokenizer: Tokenizer, folder: Path) -> None:
    """Writes tokenizer.json and tokenizer_config.json. `transformers.AutoTokenizer` loads the folder."""
    tokenizer.save(str(folder / "tokenizer.json"))
    write_config(folder, LLAMA3)


def write_config(folder: Path, tokens: ChatTokens) -> None:
    """Writes tokenizer_config.json, and chat_tokens.json if the special tokens are not Llama 3's."""
    _write_json(folder / "tokenizer_config.json", tokenizer_config(tokens))
    if tokens != LLAMA3:
        _write_json(folder / CHAT_TOKENS, asdict(tokens))


def read_chat_tokens(folder: Path) -> ChatTokens:
    """Returns the special tokens of a tokenizer artifact: those of chat_tokens.json, or Llama 3's without this file."""
    path = folder / CHAT_TOKENS
    return ChatTokens(**json.loads(path.read_text(encoding="utf-8"))) if path.exists() else LLAMA3


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, indent=2, ensure_ascii=False) + "\n", encoding="utf-8")


class TokenizerConfig(TypedDict):
    """The content of tokenizer_config.json, in the names of `transformers`."""

    tokenizer_class: str
    bos_token: str
    eos_token: str
    pad_token: str
    clean_up_tokenization_spaces: bool
    model_input_names: list[str]
    chat_template: str


def tokenizer_config(tokens: ChatTokens = LLAMA3) -> TokenizerConfig:
    """Returns the content of tokenizer_config.json, chat template included."""
    return {
        "tokenizer_class": "PreTrainedTokenizerFast",
        "bos_token": tokens.bos,
        "eos_token": tokens.eos,
        "pad_token": tokens.pad,
        "clean_up_tokenization_spaces": False,
        "model_input_names": ["input_ids", "attention_mask"],
        "chat_template": template(tokens),
    }


def load_plain(path: Path) -> Tokenizer:
    """Returns the tokenizer of tokenizer.json for text from outside: a special token that is spelt out in a text is ordinary characters."""
    from tokenizers import Tokenizer

    tokenizer = Tokenizer.from_file(str(path))
    tokenizer.encode_special_tokens = True
    return tokenizer


def load_chat(path: Path) -> Tokenizer:
    """Returns the tokenizer of tokenizer.json for rendered chats: special tokens are recognised."""
    from tokenizers import Tokenizer

    return Tokenizer.from_file(str(path))


def load_chat_format(folder: Path) -> ChatFormat:
    """Returns how the tokenizer of an artifact encodes chats."""
    return chat_format(load_plain(folder / "tokenizer.json"), read_chat_tokens(folder))


def chat_format(plain: Tokenizer, tokens: ChatTokens) -> ChatFormat:
    """Returns how a tokenizer encodes chats.

    Args:
        plain: The tokenizer, which takes the spelling of a special token as ordinary characters.
        tokens: Its special tokens.

    Raises:
        ValueError: The tokenizer does not have one of them.
    """
    ids: dict[str, int] = {}
    for role, token in tokens.by_role().items():
        found = plain.token_to_id(token)
        if found is None:
            raise ValueError(f"The tokenizer has no token {token!r}, which is its {role} by {CHAT_TOKENS}.")
        ids[token] = found
    return ChatFormat(tokens, ids, lambda text: plain.encode(text, add_special_tokens=False).ids)


def encode_texts(tokenizer: Tokenizer, texts: Sequence[str]) -> list[list[int]]:
    """Returns the token ids of texts. No special token is added."""
    return [encoding.ids for encoding in tokenizer.encode_batch_fast(list(texts), add_special_tokens=False)]


def _batches(texts: Iterable[str]) -> Iterable[list[str]]:
    batch: list[str] = []
    for text in texts:
        batch.append(text)
        if len(batch) == BATCH_DOCUMENTS:
            yield batch
            batch = []
    if batch:
        yield batch
