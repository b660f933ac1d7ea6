"""Loads an exported model, and writes an answer piece by piece: transformers' generate in a thread, read through its streamer.

Guarantee: the same weights, prompt, settings and seed give the same text on one machine; temperature 0 is greedy and gives what generate gives
without sampling. Nothing but the seed decides what is drawn: top-k is off. The model comes from safetensors of its folder, without network and
without remote code (stages/evaluation/evaluate/score.py).
Cost: the weights once in memory; one forward pass per token, with the keys and values of all tokens before kept.
Source: TextIteratorStreamer and StoppingCriteria of transformers.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from threading import Event
from typing import TYPE_CHECKING, Any

from stages.questions.talk.exported_model import ExportedModel
from stages.questions.talk.sampling import Sampling, drawn_by

if TYPE_CHECKING:
    from torch import Tensor

    from stages.examples.items.chat import ChatFormat


@dataclass(frozen=True)
class LoadedModel:
    """An exported model in memory. model, tokenizer: those of transformers. form: how prompts are encoded. context: in tokens."""

    found: ExportedModel
    model: Any
    tokenizer: Any
    form: ChatFormat
    context: int


def load(found: ExportedModel) -> LoadedModel:
    """Returns an exported model, on a GPU if there is one, else in float32 on the CPU. No library asks the network from here on."""
    os.environ["HF_HUB_OFFLINE"] = "1"
    import torch

    from stages.evaluation.evaluate.score import load_model, load_tokenizer
    from stages.tokens.tokenizer.bpe import load_chat_format

    folder = found.artifact.path
    model = load_model(folder, "cuda" if torch.cuda.is_available() else "cpu")
    return LoadedModel(found, model, load_tokenizer(folder), load_chat_format(folder), int(model.config.max_position_embeddings))


class WrittenAnswer:
    """An answer that is being written. Iterate over it once, for its text in pieces.

    Attributes:
        text: The text so far.
        tokens: Number of its tokens, once it is complete.
        ended: Whether the model ended it, and neither the limit of tokens nor `stop`.
    """

    def __init__(self, loaded: LoadedModel, ids: Sequence[int], sampling: Sampling, seed: int) -> None:
        """Prepares the answer; iterating starts it. ids: the prompt. seed: from 0 to 2^63 - 1."""
        self.text, self.tokens, self.ended = "", 0, False
        self._loaded, self._ids, self._sampling, self._seed = loaded, list(ids), sampling, seed
        self._stopped = Event()

    def stop(self) -> None:
        """Ends the answer after the token that is being computed."""
        self._stopped.set()

    def __iter__(self) -> Iterator[str]:
        """Yields the text in pieces. An error of the model is raised here. Whoever stops reading stops the answer."""
        from transformers import TextIteratorStreamer

        streamer = TextIteratorStreamer(self._loaded.tokenizer, skip_prompt=True, skip_special_tokens=True)
        with ThreadPoolExecutor(1) as thread:
            written = thread.submit(self._write, streamer)
            written.add_done_callback(lambda done: streamer.end())  # also after an error, so that reading ends
            try:
                for piece in streamer:
                    self.text += piece
                    if piece:
                        yield piece
            finally:
                self.stop()
        written.result()

    def _write(self, streamer: Any) -> None:
        import torch

        model, limit = self._loaded.model, self._sampling.most(self._loaded.context)
        given = torch.tensor([self._ids], device=model.device)
        torch.manual_seed(self._seed)
        whole = model.generate(
            given, attention_mask=torch.ones_like(given), max_new_tokens=limit, streamer=streamer,
            stopping_criteria=[self._is_stopped], **drawn_by(self._sampling),
        )  # fmt: skip
        written = whole[0, len(self._ids) :].tolist()
        self.tokens = len(written)
        stops = model.generation_config.eos_token_id
        self.ended = bool(written) and written[-1] in (stops if isinstance(stops, list) else [stops])

    def _is_stopped(self, ids_BL: Tensor, scores: object, **rest: object) -> Tensor:
        import torch

        return torch.full((ids_BL.shape[0],), self._stopped.is_set(), device=ids_BL.device, dtype=torch.bool)


def seeded_generate(generate: Callable[..., Any], context: int) -> Callable[..., Any]:
    """Returns transformers' generate, seeded where it runs, because requests wait for each other. It ends at the end of the context.

    Args:
        generate: The method of a model.
        context: Tokens that the model can read.
    """

    def generated(*, input_ids: Any, generation_config: Any, **rest: Any) -> Any:
        import torch

        generation_config.max_new_tokens = min(generation_config.max_new_tokens, context - input_ids.shape[1])  # the handler reads it again
        torch.manual_seed(generation_config.seed)
        return generate(input_ids=input_ids, generation_config=generation_config, **rest)

    return generated
