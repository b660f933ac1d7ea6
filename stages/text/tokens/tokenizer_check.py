"""Checks a tokenizer that Loam did not train, and lists what the rest of the pipeline could not use.

Guarantee: a tokenizer without faults is byte-level BPE that encodes any text and decodes it back unchanged. The chat format's tokens have
ids of their own. Only <|begin_of_text|> is put before a text. Chats render as in stages/text/items/chat.py. The ids of the vocabulary have
no gap.
Cost: under a second, 15 s for 262,000 ids. Hostile files could use all memory or run without end, so call `judge_files` in a confined
process.
Source: the requirements of stages/text/tokens/bpe.py, stages/text/items/chat.py and the stages that read a tokenizer.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any, NamedTuple, TypedDict

from stages.text.items.chat import BOS, END_OF_TURN, SPECIAL_TOKENS, TEMPLATE, header, render
from stages.text.tokens.bpe import encode_texts, tokenizer_config

if TYPE_CHECKING:
    from jinja2.sandbox import SandboxedEnvironment
    from pydantic import JsonValue
    from tokenizers import Tokenizer

MAX_IDS = 1 << 24  # sixteen million; the largest tokenizers in use have 262,144
MAX_TEMPLATE = 1 << 20  # limit in characters, for a template and for what it renders
MAX_POWER = 64
PROBES = (
    "".join(map(chr, [*range(0x250), 0x3B1, 0x5D0, 0x939, 0x4E2D, 0xAC00, 0x1F600, 0x10FFFD])),
    " a space at both ends ", "two  blanks\tand\ttabs\n\n\nlines\r\n", "e\u0301 \u00e9 \ufb01 \uff21 \u2126", "it's 12345, don't",
)  # fmt: skip
"""Probe texts: bytes of all kinds, white space, and characters that a normalizer would change."""
CHAT = (
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "What does textwrap.dedent do?\n"},
    {"role": "assistant", "content": "Remove common leading white space."},
)


class JudgedTokenizer(TypedDict):
    """Sentences on what the pipeline could not use, and the number of ids (0 with faults)."""

    faults: list[str]
    size: int


class StatedToken(NamedTuple):
    """A token that tokenizer.json adds to the vocabulary, with the id that it states."""

    content: str
    id: int


def judge_files(tokenizer: str, config: str = "", template: str = "") -> JudgedTokenizer:
    """Returns what the pipeline could not use, and the number of ids.

    Args:
        tokenizer: Path of tokenizer.json.
        config: Path of tokenizer_config.json; "" without one.
        template: Path of chat_template.jinja; "" without one.
    """
    from pathlib import Path

    try:
        texts = [Path(path).read_text(encoding="utf-8") if path else "" for path in (tokenizer, config, template)]
    except UnicodeDecodeError as error:
        return {"faults": [f"It is not UTF-8: {error.reason}."], "size": 0}
    faults = tokenizer_faults(*texts)
    return {"faults": faults, "size": 0 if faults else _load(texts[0]).get_vocab_size()}


def _load(text: str) -> Tokenizer:
    from tokenizers import Tokenizer

    return Tokenizer.from_str(text)


def tokenizer_faults(text: str, config: str = "", template: str = "") -> list[str]:
    """Returns what the pipeline could not use, one sentence each; an empty list if there is no fault.

    Args:
        text: Content of tokenizer.json.
        config: Content of tokenizer_config.json; "" without one.
        template: Content of chat_template.jinja; "" without one.
    """
    try:
        raw = json.loads(text)
        settings = json.loads(config or "{}")
    except ValueError as error:  # also raised for an integer with thousands of digits
        return [f"It is not JSON: {error}."]
    except RecursionError:
        return ["It is not JSON of a tokenizer: it is nested too deeply."]
    model = raw.get("model") if isinstance(raw, dict) else None
    if not isinstance(model, dict) or not isinstance(settings, dict) or {"vocab", "merges"} - set(model) or model.get("type") != "BPE":
        return ["It is not a byte-level BPE tokenizer in the format of Hugging Face tokenizers."]
    if odd := [i for i in _stated_ids(raw, model) if type(i) is not int or not 0 <= i < MAX_IDS]:
        return [f"It has the id {json.dumps(odd[0])[:40]}; ids are whole numbers from 0 to {MAX_IDS - 1:,}."]
    chat, plain = _load(text), _load(text)
    plain.encode_special_tokens = True
    missing = [token for token in SPECIAL_TOKENS if chat.token_to_id(token) is None]
    if missing:
        return [f"It has no token {', '.join(missing)}."]
    added = [StatedToken(token["content"], token["id"]) for token in raw["added_tokens"]]
    basic = list(_vocabulary_faults(chat, bool(model.get("dropout")), added))
    return basic or [*_text_faults(plain), *_chat_faults(chat), *_config_faults(settings, template)]


def _stated_ids(raw: Mapping[str, JsonValue], model: Mapping[str, JsonValue]) -> Iterator[JsonValue]:
    """Yields every id in the file, of any type.

    The ids are checked before loading. The library would accept an id of 4 billion, and the model would be built for it.
    """
    vocabulary = model["vocab"]
    yield from vocabulary.values() if isinstance(vocabulary, dict) else ()
    added = raw.get("added_tokens")
    yield from (token.get("id") for token in (added if isinstance(added, list) else ()) if isinstance(token, dict))


def _vocabulary_faults(tokenizer: Tokenizer, dropout: bool, added: list[StatedToken]) -> Iterator[str]:
    from tokenizers import pre_tokenizers

    vocabulary = tokenizer.get_vocab()
    bytes_missing = [c for c in pre_tokenizers.ByteLevel.alphabet() if c not in vocabulary]
    if bytes_missing:
        yield f"It is not byte-level: {len(bytes_missing)} of the 256 bytes have no token."
    if sorted(vocabulary.values()) != list(range(len(vocabulary))):
        yield f"Its {len(vocabulary):,} ids are not 0 to {len(vocabulary) - 1:,}; the model's embedding would have holes."
    elif wrong := next((t for t in added if tokenizer.token_to_id(t.content) != t.id), None):  # the library counts on silently
        yield f"It states the id {wrong.id:,} for {wrong.content[:40]!r}, which is read as {tokenizer.token_to_id(wrong.content):,}."
    if dropout:
        yield "It has BPE dropout, so a text has no fixed ids."
    if tokenizer.truncation or tokenizer.padding:
        yield "It truncates or pads texts."


def _text_faults(plain: Tokenizer) -> Iterator[str]:
    texts = [*PROBES, *(f"A {token} spelt out." for token in SPECIAL_TOKENS)]
    special = {plain.token_to_id(token): token for token in SPECIAL_TOKENS}
    for text, ids in zip(texts, encode_texts(plain, texts), strict=True):
        taken = [special[i] for i in ids if i in special]
        if taken:
            yield f"{taken[0]} is not marked as special: a text that spells it out would be taken for a command."
        elif plain.decode(ids, skip_special_tokens=False) != text:
            yield f"It does not give a text back: {text[:24]!r} comes back as {plain.decode(ids, skip_special_tokens=False)[:24]!r}."
            return


def _chat_faults(tokenizer: Tokenizer) -> Iterator[str]:
    def encode(text: str) -> list[int]:
        return list(tokenizer.encode(text, add_special_tokens=False).ids)

    for token in SPECIAL_TOKENS:
        if encode(token) != [tokenizer.token_to_id(token)]:
            yield f"{token} is not one token."
    if list(tokenizer.encode("text").ids) != [*encode(BOS), *encode("text")]:
        yield f"Its post-processor does not put {BOS}, and nothing else, before a text."
    whole = BOS + "".join(header(m["role"]) + m["content"].strip() + END_OF_TURN for m in CHAT)
    if encode(whole) != render(CHAT, encode)[0]:
        yield "A chat has other ids as a whole than message by message."


def _config_faults(settings: Mapping[str, JsonValue], template: str) -> Iterator[str]:
    config = tokenizer_config()
    ours = {"bos_token": config["bos_token"], "eos_token": config["eos_token"], "pad_token": config["pad_token"]}
    for name in ours:
        given = settings.get(name)
        token = given.get("content") if isinstance(given, dict) else given
        if token not in (None, ours[name]):
            yield f"Its {name} is {token}, the pipeline's is {ours[name]}."
    theirs = template or settings.get("chat_template")
    if theirs and (fault := _template_fault(theirs)):
        yield fault


def _template_fault(theirs: JsonValue) -> str:
    from jinja2 import TemplateError

    if not isinstance(theirs, str):
        return "It has several chat templates; the pipeline has one."
    if len(theirs) > MAX_TEMPLATE:
        return f"Its chat template has {len(theirs):,} characters."
    environment = _sandbox()
    ours = tokenizer_config()
    for prompt in (False, True):
        values = {"messages": CHAT, "add_generation_prompt": prompt, "bos_token": ours["bos_token"], "eos_token": ours["eos_token"]}
        try:
            rendered = environment.from_string(theirs).render(values)
        except MemoryError:
            return "Its chat template needs too much memory."
        except RecursionError:
            return "Its chat template calls itself without end."
        except (TemplateError, TypeError, ValueError, LookupError, AttributeError, ArithmeticError, AssertionError) as error:
            return f"Its chat template cannot be rendered: {str(error)[:200]}."
        if rendered != environment.from_string(TEMPLATE).render(values):
            return f"Its chat template is not the pipeline's (Llama 3's): it renders {rendered[:60]!r} …"
    return ""


def _sandbox() -> SandboxedEnvironment:
    """Returns an environment that renders untrusted templates.

    It allows no access to Python's own attributes, no changes to arguments and no operator with unbounded growth.
    """
    from jinja2.exceptions import SecurityError
    from jinja2.sandbox import ImmutableSandboxedEnvironment

    class Bounded(ImmutableSandboxedEnvironment):
        intercepted_binops = frozenset(["*", "**", "%"])

        def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
            texts = [value for value in (left, right) if isinstance(value, str | list | tuple)]
            counts = [value for value in (left, right) if isinstance(value, int)]
            if operator == "**" and not (isinstance(right, int | float) and abs(right) <= MAX_POWER):
                raise SecurityError("a power beyond what a template needs")
            if operator == "*" and texts and counts and len(texts[0]) * counts[0] > MAX_TEMPLATE:
                raise SecurityError("a text multiplied beyond what a template needs")
            if operator == "%" and isinstance(left, str):
                raise SecurityError("a text formatted with %")
            return super().call_binop(context, operator, left, right)

    return Bounded(trim_blocks=True, lstrip_blocks=True)
