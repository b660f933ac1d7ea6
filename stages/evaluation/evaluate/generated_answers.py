"""Lets an exported model write the answers of tasks that generate, in batches, up to stop strings.

Guarantee: greedy. An answer ends before the first stop string, at a stop token of the model or after its limit of tokens, and does not depend
on the other prompts of its batch, except for rounding. Prompts of a batch are padded on the left and the padding is masked.
Cost: one forward pass per batch over the prompts, then one token per row and pass on a cache of keys and values, until every row has ended.
Source: generate() of transformers; the way lm-eval's HF wrapper cuts answers (a test compares the results).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import StrEnum
from typing import Any

import torch


class StopReason(StrEnum):
    """Why an answer ended."""

    STOP_STRING = "stop_string"
    END_TOKEN = "end_token"
    LENGTH = "length"


@dataclass(frozen=True)
class GeneratedAnswer:
    """What a model wrote, without the stop string, and why it ended."""

    text: str
    stop: StopReason


class StopStrings:
    """Ends a row whose written text has a stop string: a criterion of generate().

    Attributes:
        lengths: Tokens that each row had written when it ended; None where it has not.
    """

    def __init__(self, tokenizer: Any, until: Sequence[str], prompt_tokens: int, rows: int) -> None:
        """Creates the criterion. prompt_tokens: length of the padded prompts."""
        self._tokenizer, self._until, self._first = tokenizer, [stop for stop in until if stop], prompt_tokens
        self._tail = 1 + max((len(stop.encode()) for stop in self._until), default=0)  # a token has a byte at least
        self.lengths: list[int | None] = [None] * rows

    def __call__(self, input_ids: torch.Tensor, scores: torch.Tensor | None = None, **kwargs: Any) -> torch.Tensor:
        """Returns which rows have ended: bool [rows]."""
        written = input_ids[:, self._first :].tolist()
        for row, ids in enumerate(written):
            if self.lengths[row] is None and self._until:
                text = self._tokenizer.decode(ids[-self._tail :], skip_special_tokens=False)
                if any(stop in text for stop in self._until):
                    self.lengths[row] = len(ids)
        return torch.tensor([length is not None for length in self.lengths], device=input_ids.device)


@torch.inference_mode()  # type: ignore[untyped-decorator]
def generated_answers(
    model: Any, tokenizer: Any, prompts: Sequence[Sequence[int]], until: Sequence[str], new_tokens: int
) -> list[GeneratedAnswer]:
    """Returns what a model writes after each prompt of a batch.

    Args:
        model: A Hugging Face causal model whose generation config names the stop tokens.
        tokenizer: Its tokenizer.
        prompts: Token ids of each prompt, at least one.
        until: Stop strings.
        new_tokens: Largest number of tokens of an answer.
    """
    from transformers import StoppingCriteriaList

    stops = model.generation_config.eos_token_id
    ends = set(stops if isinstance(stops, list) else [stops])
    pad = tokenizer.eos_token_id if tokenizer.pad_token_id is None else tokenizer.pad_token_id
    device = next(model.parameters()).device
    length = max(map(len, prompts))
    ids_BT = torch.full((len(prompts), length), pad, dtype=torch.long)
    mask_BT = torch.zeros_like(ids_BT)
    for row, ids in enumerate(prompts):
        ids_BT[row, length - len(ids) :] = torch.tensor(ids, dtype=torch.long)
        mask_BT[row, length - len(ids) :] = 1
    stopping = StopStrings(tokenizer, until, length, len(prompts))
    whole = model.generate(
        ids_BT.to(device), attention_mask=mask_BT.to(device), do_sample=False, max_new_tokens=new_tokens, pad_token_id=pad, use_cache=True,
        stopping_criteria=StoppingCriteriaList([stopping]),
    )  # fmt: skip
    answers = []
    for row in range(len(prompts)):
        written = whole[row, length:].tolist()[: stopping.lengths[row]]
        end = next((place for place, token in enumerate(written) if token in ends), len(written))
        text = tokenizer.decode(written[:end], skip_special_tokens=True)
        answer = _before(text, until)
        ended = StopReason.END_TOKEN if end < len(written) else StopReason.LENGTH
        stopped = len(answer) < len(text) or end == len(written) and stopping.lengths[row] is not None
        answers.append(GeneratedAnswer(answer, StopReason.STOP_STRING if stopped else ended))
    return answers


def _before(text: str, until: Sequence[str]) -> str:
    for stop in until:
        if stop:
            text = text.partition(stop)[0]
    return text
