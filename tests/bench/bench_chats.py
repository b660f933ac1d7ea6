"""Chats to ids and loss masks, beside transformers: `python -m tests.bench.bench_chats`.

`render` of stages/examples/items/chat.py against `apply_chat_template` of transformers with the same tokenizer, on the chats of the real data, or on made
ones. Loam's template has generation blocks, in which both find what is trained. A template without them shows transformers no mask, and Loam asks it for
the beginnings of each chat. The rounds alternate; a row has the CPU seconds of the median round, and how many chats have the same ids (and mask).
"""

from __future__ import annotations

import argparse
import json
import statistics
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from flows.cli.printing import print_table
from stages.examples.items.chat import render
from stages.examples.items.chat_template import GENERATION, compile_template
from stages.tokens.tokenizer.bpe import load_chat_format
from tests.bench.bench_encode import trained
from tests.bench.corpus import described, input_data
from tests.bench.probe import probe

VOCABULARY = 16_000  # of a tokenizer of these chats; others are trained on the crawl
END = GENERATION.pattern.replace("generation", "endgeneration")

Chat = list[dict[str, Any]]
Rendered = tuple[list[int], list[int] | None]


def main() -> None:
    parser = argparse.ArgumentParser(prog="python -m tests.bench.bench_chats")
    parser.add_argument("--rounds", type=int, default=5)
    given = parser.parse_args()
    lines = [line for file in sorted(input_data().part("sft").glob("*.messages.jsonl")) for line in file.read_text("utf-8").splitlines()]
    chats = [json.loads(line)["messages"] for line in lines]
    print(f"{probe()}\n{described()}", flush=True)
    print_table([row(chats, blocks, given.rounds) for blocks in (True, False)])
    print(probe())


def row(chats: Sequence[Chat], blocks: bool, rounds: int) -> dict[str, Any]:
    """Returns the row of Loam's template, with its generation blocks or without them."""
    import re

    from transformers import AutoTokenizer

    folder = trained([turn["content"] for chat in chats for turn in chat], VOCABULARY)
    form, peer = load_chat_format(folder), AutoTokenizer.from_pretrained(folder)
    assert form.template is not None
    if not blocks:
        peer.chat_template = re.sub(END, "", GENERATION.sub("", form.template.source))
        form = replace(form, template=compile_template(peer.chat_template, form.template.variables, form.template.special))

    def theirs(chat: Chat) -> Rendered:
        found = peer.apply_chat_template(chat, tokenize=True, return_dict=True, return_assistant_tokens_mask=blocks)
        return found["input_ids"], found["assistant_masks"] if blocks else None

    sides: tuple[Callable[[Chat], Rendered], ...] = (lambda chat: render(chat, form), theirs)
    seconds: tuple[list[float], ...] = ([], [])
    for _ in range(rounds):
        found = []
        for side, took in zip(sides, seconds, strict=True):
            began = time.process_time()
            found.append([side(chat) for chat in chats])
            took.append(time.process_time() - began)
    same = sum(a == b and mask in (None, own) for (a, own), (b, mask) in zip(*found, strict=True))
    ours, others = map(statistics.median, seconds)
    return {"template": "with blocks" if blocks else "without blocks", "chats": len(chats), "loam CPU s": f"{ours:.2f}",
            "transformers CPU s": f"{others:.2f}", "ratio": f"{others / ours:.2f}", "same": same}  # fmt: skip


if __name__ == "__main__":
    main()
