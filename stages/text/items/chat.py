"""The chat format: Llama 3's template, as a Jinja string for the tokenizer and as a function that also says where the loss is.

Guarantee: `render` gives exactly the ids of the tokenizer's own `apply_chat_template`, and marks the assistant's words and
the end-of-turn token after them (left out, a model never learns to stop). Cost: one call of `encode` per message part.
Source: Meta, Llama 3 model card and prompt format (the header and end-of-turn tokens, content trimmed).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence

BOS = "<|begin_of_text|>"
EOS = "<|end_of_text|>"
START_HEADER = "<|start_header_id|>"
END_HEADER = "<|end_header_id|>"
END_OF_TURN = "<|eot_id|>"
PAD = "<|pad|>"

SPECIAL_TOKENS = (BOS, EOS, START_HEADER, END_HEADER, END_OF_TURN, PAD)
"""In the order of their ids, which follow the ids of the ordinary vocabulary."""

ROLES = ("system", "user", "assistant")

TEMPLATE = (
    "{{ '" + BOS + "' }}"
    "{% for message in messages %}"
    "{{ '" + START_HEADER + "' + message['role'] + '" + END_HEADER + "\n\n' + message['content'] | trim + '" + END_OF_TURN + "' }}"
    "{% endfor %}"
    "{% if add_generation_prompt %}{{ '" + START_HEADER + "assistant" + END_HEADER + "\n\n' }}{% endif %}"
)
"""Jinja chat template for tokenizer_config.json."""

Encode = Callable[[str], Sequence[int]]


def render(messages: Sequence[Mapping[str, str]], encode: Encode, last_only: bool = False) -> tuple[list[int], list[int]]:
    """A conversation as (ids, loss_mask), both of the same length; mask 1 = train on predicting this token.

    encode: text -> ids, special tokens recognised, none added. The loss lies on assistant content and its <|eot_id|>;
    with last_only on the last assistant message alone (the completion of a preference pair).
    """
    ids = list(encode(BOS))
    mask = [0] * len(ids)
    for number, message in enumerate(messages):
        head = list(encode(header(message["role"])))
        body = [*encode(message["content"].strip()), *encode(END_OF_TURN)]
        trained = message["role"] == "assistant" and (not last_only or number == len(messages) - 1)
        ids += head + body
        mask += [0] * len(head) + [int(trained)] * len(body)
    return ids, mask


def render_prompt(messages: Sequence[Mapping[str, str]], encode: Encode) -> list[int]:
    """A conversation with the assistant's header behind it, ready for an answer."""
    return [*render(messages, encode)[0], *encode(header("assistant"))]


def header(role: str) -> str:
    """The tokens before a message of `role`."""
    return f"{START_HEADER}{role}{END_HEADER}\n\n"


def special_token_in(text: str) -> str:
    """The first special token spelt out in `text`, or "": such text would forge a turn when it is rendered."""
    return next((token for token in SPECIAL_TOKENS if token in text), "")


def complete_prompt(first_half: str) -> str:
    """The question of the completion task; benchmark, chat and preference data ask it alike."""
    return f"Complete: {first_half}"


def what_prompt(name: str) -> str:
    """The question about a documented object.

    >>> what_prompt("textwrap.dedent")
    'What does textwrap.dedent do?'
    """
    return f"What does {name} do?"
