"""The chat format: Llama 3's template, as a Jinja string for the tokenizer and as a function that also returns the loss mask.

An imported tokenizer can have other special tokens (`ChatTokens`).
Guarantee: `render` returns exactly the ids of the tokenizer's own `apply_chat_template`, unless a message spells out a special token: then
`render` takes the spelling as ordinary characters. The mask covers the assistant's words and the
end-of-turn token after them (without this token a model never learns to stop).
Cost: one call of `encode` per message part.
Source: Meta, Llama 3 model card and prompt format (the header and end-of-turn tokens, content trimmed).
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields

BOS = "<|begin_of_text|>"
EOS = "<|end_of_text|>"
START_HEADER = "<|start_header_id|>"
END_HEADER = "<|end_header_id|>"
END_OF_TURN = "<|eot_id|>"
PAD = "<|pad|>"

SPECIAL_TOKENS = (BOS, EOS, START_HEADER, END_HEADER, END_OF_TURN, PAD)
"""In the order of their ids, which follow the ids of the ordinary vocabulary."""

ROLES = ("system", "user", "assistant")


@dataclass(frozen=True)
class ChatTokens:
    """The special tokens of a tokenizer by their role. The defaults are Llama 3's names, and <|pad|>.

    An imported tokenizer need not have bos, and none of the headers. Such a role is the empty text.

    Attributes:
        bos: Begins a text or a chat.
        eos: Ends a text.
        start_header: Begins the header of a message.
        end_header: Ends the header of a message.
        end_of_turn: Ends a message.
        pad: Fills a sequence.
        after_header: Text between header and message. Empty for a tokenizer that would join it with the message to other tokens.
    """

    bos: str = BOS
    eos: str = EOS
    start_header: str = START_HEADER
    end_header: str = END_HEADER
    end_of_turn: str = END_OF_TURN
    pad: str = PAD
    after_header: str = "\n\n"

    def by_role(self) -> dict[str, str]:
        """Returns role -> token, in the order of the roles, without the roles that have none. Two roles may have one token."""
        return {role: token for role in TOKEN_ROLES if (token := getattr(self, role))}

    @property
    def can_chat(self) -> bool:
        """Whether there are tokens for the headers of messages."""
        return bool(self.start_header and self.end_header)


TOKEN_ROLES = tuple(one.name for one in fields(ChatTokens) if one.name != "after_header")
LLAMA3 = ChatTokens()

Encode = Callable[[str], Sequence[int]]


@dataclass(frozen=True)
class ChatFormat:
    """How a tokenizer encodes chats.

    Attributes:
        tokens: Its special tokens.
        ids: Special token -> id.
        encode: Function from text to ids that adds no special token and recognises none, so that no text can forge a turn.
    """

    tokens: ChatTokens
    ids: Mapping[str, int]
    encode: Encode

    @property
    def document_start(self) -> int:
        """The id before a document: bos; without bos eos, as in a stream of documents that eos separates (Qwen3, and lm-eval's scoring)."""
        return self.ids[self.tokens.bos or self.tokens.eos]

    @property
    def special(self) -> dict[str, int]:
        """Role -> id, without the roles that have no token."""
        return {role: self.ids[token] for role, token in self.tokens.by_role().items()}


def template(tokens: ChatTokens = LLAMA3) -> str:
    """Returns the Jinja chat template for tokenizer_config.json. tokens: they can chat."""
    quoted = {role: token.replace("\\", "\\\\").replace("'", "\\'") for role, token in tokens.by_role().items()}
    begin = f"{{{{ '{quoted['bos']}' }}}}" if tokens.bos else ""
    start, end, turn = quoted["start_header"], quoted["end_header"] + tokens.after_header, quoted["end_of_turn"]
    return (
        f"{begin}"
        "{% for message in messages %}"
        f"{{{{ '{start}' + message['role'] + '{end}' + message['content'] | trim + '{turn}' }}}}"
        "{% endfor %}"
        f"{{% if add_generation_prompt %}}{{{{ '{start}assistant{end}' }}}}{{% endif %}}"
    )


TEMPLATE = template()


def render(messages: Sequence[Mapping[str, str]], form: ChatFormat, last_only: bool = False) -> tuple[list[int], list[int]]:
    """Returns a conversation as (ids, loss_mask), both of the same length. A mask of 1 trains the prediction of this token.

    Args:
        messages: Messages with "role" and "content".
        form: The tokenizer's format.
        last_only: Whether only the last message is trained, if it is an assistant message (the completion of a preference pair). Otherwise
            all assistant messages are trained, each with its end-of-turn token.
    """
    ids = [form.ids[form.tokens.bos]] if form.tokens.bos else []
    mask = [0] * len(ids)
    for number, message in enumerate(messages):
        head = _header(message["role"], form)
        body = [*form.encode(message["content"].strip()), form.ids[form.tokens.end_of_turn]]
        trained = message["role"] == "assistant" and (not last_only or number == len(messages) - 1)
        ids += head + body
        mask += [0] * len(head) + [int(trained)] * len(body)
    return ids, mask


def render_prompt(messages: Sequence[Mapping[str, str]], form: ChatFormat) -> list[int]:
    """Returns the ids of a conversation followed by the assistant's header, ready for an answer."""
    return [*render(messages, form)[0], *_header("assistant", form)]


def render_answer(messages: Sequence[Mapping[str, str]], answer: str, form: ChatFormat) -> tuple[list[int], list[int]]:
    """Returns (ids before an answer of the assistant, ids of the answer), split where the loss of `render` begins.

    The end-of-turn token after the answer is left out.
    """
    ids, mask = render([*messages, {"role": "assistant", "content": answer}], form, last_only=True)
    first = mask.index(1)
    return ids[:first], ids[first:-1]


def prompt_ids(text: str, form: ChatFormat, chat: bool) -> list[int]:
    """Returns the ids of a prompt as training has them: as what a user says in the chat format, or as the beginning of a document.

    Args:
        text: The prompt.
        form: The tokenizer's format.
        chat: Whether the chat format is used.
    """
    return render_prompt([{"role": "user", "content": text}], form) if chat else [form.document_start, *form.encode(text)]


def _header(role: str, form: ChatFormat) -> list[int]:
    """Returns the tokens before a message of `role`."""
    tokens, ids = form.tokens, form.ids
    between = form.encode(tokens.after_header) if tokens.after_header else ()
    return [ids[tokens.start_header], *form.encode(role), ids[tokens.end_header], *between]


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
