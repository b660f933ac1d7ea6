"""The chat format: Llama 3's template, as a Jinja string for the tokenizer and as a function that also returns the loss mask.

Guarantee: `render` returns exactly the ids of the tokenizer's own `apply_chat_template`. The mask covers the assistant's words and the
end-of-turn token after them (without this token a model never learns to stop).
Cost: one call of `encode` per message part.
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
    """Returns a conversation as (ids, loss_mask), both of the same length. A mask of 1 trains the prediction of this token.

    Args:
        messages: Messages with "role" and "content".
        encode: Function from text to ids that recognises special tokens and adds none.
        last_only: Whether only the last message is trained, if it is an assistant message (the completion of a preference pair). Otherwise
            all assistant messages are trained, each with its <|eot_id|>.
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
    """Returns the ids of a conversation followed by the assistant's header, ready for an answer."""
    return [*render(messages, encode)[0], *encode(header("assistant"))]


def header(role: str) -> str:
    """Returns the tokens before a message of `role`."""
    return f"{START_HEADER}{role}{END_HEADER}\n\n"


def special_token_in(text: str) -> str:
    """Returns the first special token that is spelt out in `text`; "" without one. Such text would forge a turn when it is rendered."""
    return next((token for token in SPECIAL_TOKENS if token in text), "")


def complete_prompt(first_half: str) -> str:
    """Returns the question of the completion task. Benchmark, chat and preference data use the same wording."""
    return f"Complete: {first_half}"


def what_prompt(name: str) -> str:
    """Returns the question about a documented object.

    >>> what_prompt("textwrap.dedent")
    'What does textwrap.dedent do?'
    """
    return f"What does {name} do?"
