"""Adds to an imported tokenizer what the pipeline needs and what it lacks: special tokens, post-processor, chat template.

Guarantee: ids that the tokenizer has keep their text; new tokens follow them. Every change is a sentence for the user. A tokenizer that lacks
nothing is not changed.
Cost: milliseconds beside the load of the tokenizer. Call it in a confined process, as tokenizer_check.py does.
Source: TemplateProcessing and AddedToken of Hugging Face tokenizers.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from stages.text.items.chat import LLAMA3, TOKEN_ROLES, ChatTokens, render
from stages.text.tokenizer.bpe import chat_format

if TYPE_CHECKING:
    from pydantic import JsonValue
    from tokenizers import Tokenizer

BETWEEN = ("\n\n", "\n", "")
"""Texts between header and message, the first that fits: a tokenizer may join Llama 3's two line breaks with the words after them."""
MAY_SHARE = frozenset({"bos", "eos", "end_of_turn"})
"""Roles that may have one token, as <|endoftext|> begins and ends texts in GPT-2. The others must be told apart in a sequence."""
DIFFERENT = len(TOKEN_ROLES) - len(MAY_SHARE) + 1
"""Number of different special tokens that the roles need at least."""
PROBE = (
    {"role": "system", "content": " Be brief. "},
    {"role": "user", "content": "What does textwrap.dedent do?\n"},
    {"role": "assistant", "content": "\tRemove common leading white space.\n\n  1 2"},
    *({"role": "user", "content": content} for content in ("éa 漢 …", "漢字", "1 2", ".5, _x", "(a)", "-", "…")),
)


@dataclass(frozen=True)
class MendedTokenizer:
    """A tokenizer with everything that the pipeline needs.

    Attributes:
        text: The content of tokenizer.json.
        tokens: Its special tokens.
        size: Number of ids.
        changes: What was chosen or added, one sentence each; empty if it is the given tokenizer with Llama 3's names.
    """

    text: str
    tokens: ChatTokens
    size: int
    changes: tuple[str, ...] = ()


def choose_tokens(tokenizer: Tokenizer, settings: Mapping[str, JsonValue], mapping: Mapping[str, str]) -> tuple[ChatTokens, list[str]]:
    """Returns the special tokens, and what is wrong with the mapping, one sentence each.

    A role gets the token that the mapping gives; else Llama 3's name if the tokenizer has it; else the token of tokenizer_config.json; else
    Llama 3's name, which is added.

    Args:
        tokenizer: The tokenizer.
        settings: Content of tokenizer_config.json.
        mapping: Role -> token.
    """
    faults = [
        f"It has no token {token!r}, to which {role} is mapped." for role, token in mapping.items() if tokenizer.token_to_id(token) is None
    ]
    chosen: dict[str, str] = dict(mapping)
    for role, name in LLAMA3.by_role().items():
        stated = _stated(settings.get(f"{role}_token"))
        free = role in MAY_SHARE or stated not in chosen.values()
        has_own = tokenizer.token_to_id(name) is None and stated and tokenizer.token_to_id(stated) is not None
        chosen.setdefault(role, stated if has_own and free else name)
    tokens = ChatTokens(**chosen)
    owner: dict[str, str] = {}
    for role, token in tokens.by_role().items():
        other = owner.setdefault(token, role)
        if other != role and not {role, other} <= MAY_SHARE:
            faults.append(f"{other} and {role} are both {token!r}, but a sequence needs two tokens: map one of them to another token.")
    return tokens, faults


def mend(tokenizer: Tokenizer, text: str, tokens: ChatTokens) -> MendedTokenizer:
    """Returns the tokenizer with its special tokens marked as special, a post-processor and a chat format that fits.

    Args:
        tokenizer: The tokenizer; it is changed.
        text: The content of the tokenizer.json that it was loaded from.
        tokens: Its special tokens; those that it lacks are added.
    """
    from tokenizers import AddedToken, processors

    before, changes = tokenizer.get_vocab_size(), []
    names = list(dict.fromkeys(tokens.by_role().values()))
    missing = [name for name in names if tokenizer.token_to_id(name) is None]
    special = special_tokens(tokenizer)
    if unmarked := [name for name in names if name not in special]:
        tokenizer.add_special_tokens([AddedToken(name, special=True, normalized=False) for name in unmarked])
    if missing:
        changes.append(
            f"Added the special tokens {', '.join(missing)}: the vocabulary grows from {before:,} to {tokenizer.get_vocab_size():,}. A model that "
            f"was trained with this tokenizer has {before:,}{_continued(len(special))}"
        )
    if marked := [name for name in unmarked if name not in missing]:
        changes.append(f"Marked {', '.join(marked)} as special.")
    bos = tokenizer.token_to_id(tokens.bos)
    if list(tokenizer.encode("text").ids) != [bos, *tokenizer.encode("text", add_special_tokens=False).ids]:
        tokenizer.post_processor = processors.TemplateProcessing(
            single=[tokens.bos, "$A"], pair=[tokens.bos, "$A", tokens.bos, "$B"], special_tokens=[(tokens.bos, bos)]
        )
        changes.append(f"Replaced the post-processor: it puts {tokens.bos} before a text.")
    if changes:
        text = str(tokenizer.to_str())
    tokens = replace(tokens, after_header=_between(tokenizer, tokens))
    if tokens != LLAMA3:
        changes.insert(0, f"Uses {', '.join(f'{role} = {token}' for role, token in tokens.by_role().items())}.")
    if tokens.after_header != LLAMA3.after_header:
        changes.append(
            f"The chat format has {tokens.after_header!r} after a header: this tokenizer joins line breaks with the words after them."
        )
    return MendedTokenizer(text, tokens, tokenizer.get_vocab_size(), tuple(changes))


def special_tokens(tokenizer: Tokenizer) -> list[str]:
    """Returns the tokens that a tokenizer marks as special, in the order of their ids."""
    return [token.content for _, token in sorted(tokenizer.get_added_tokens_decoder().items()) if token.special]


def _continued(special: int) -> str:
    """Returns the end of a sentence on a trained model whose tokenizer has `special` special tokens: how it can be used."""
    if special >= DIFFERENT:
        return "; to use it, map each role to a token that the tokenizer has."
    return (
        f" and cannot be continued with chats: they need {DIFFERENT} different special tokens, and the tokenizer has {special:,}. "
        "Pretrain a new model, which has the grown vocabulary."
    )


def whole_chat(tokens: ChatTokens) -> str:
    """Returns the probe chat as the chat template renders it."""
    messages = (
        f"{tokens.start_header}{m['role']}{tokens.end_header}{tokens.after_header}{m['content'].strip()}{tokens.end_of_turn}" for m in PROBE
    )
    return tokens.bos + "".join(messages)


def renders_alike(tokenizer: Tokenizer, tokens: ChatTokens) -> bool:
    """Returns whether a chat has the same ids as a whole and message by message."""
    whole = list(tokenizer.encode(whole_chat(tokens), add_special_tokens=False).ids)
    tokenizer.encode_special_tokens = True
    parts = render(PROBE, chat_format(tokenizer, tokens))[0]
    tokenizer.encode_special_tokens = False
    return whole == parts


def _between(tokenizer: Tokenizer, tokens: ChatTokens) -> str:
    """Returns the first text between header and message with which a chat renders alike; Llama 3's if none does."""
    return next((one for one in BETWEEN if renders_alike(tokenizer, replace(tokens, after_header=one))), LLAMA3.after_header)


def _stated(value: JsonValue) -> str:
    """Returns the token that an entry of tokenizer_config.json names; empty without one."""
    token = value.get("content") if isinstance(value, dict) else value
    return token if isinstance(token, str) else ""
