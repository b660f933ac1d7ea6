"""The model that lm-eval's tasks query: an LM class of lm-eval over stages/lm/infer/score.py.

Guarantee: the log-likelihoods equal those of lm-eval's HF wrapper with a BOS before the context, except in rolling perplexity: the wrapper
adds a second BOS there, and this class does not. Of a tokenizer without BOS they equal the wrapper's, which puts nothing before a context and
the end-of-text token before a text without context. Equal requests of one call are computed once.
Cost: every distinct request goes through the model once, in batches.
Source: lm-eval 0.4.13, TemplateLM.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any, Protocol

from stages.lm.infer.harness import windows
from stages.lm.infer.score import Progress, token_logprobs

if TYPE_CHECKING:
    from lm_eval.api.model import LM


class ChatTokenizer(Protocol):
    """The part of a transformers tokenizer that this module uses."""

    bos_token: str | None
    bos_token_id: int | None
    eos_token_id: int

    def encode(self, text: str, *, add_special_tokens: bool) -> list[int]:
        """Returns the token ids of a text, with a BOS if special tokens are added."""

    def apply_chat_template(self, conversation: list[dict[str, str]], *, tokenize: bool, add_generation_prompt: bool) -> str:
        """Returns a conversation as text in the chat format."""


class LoglikelihoodRequest(Protocol):
    """The part of lm-eval's Instance that this module uses: the text to score is the first of `args`."""

    args: tuple[str, ...]


class LogLikelihoods:
    """The methods of an lm-eval LM for log-likelihoods only. It refuses tasks that generate text.

    Args:
        model: A Hugging Face causal model.
        tokenizer: A transformers tokenizer.
        max_length: Largest number of tokens in a forward pass. Longer contexts are cut on the left.
        batch_size: Sequences per forward pass.
        progress: See `token_logprobs`.
    """

    def __init__(self, model: Any, tokenizer: ChatTokenizer, max_length: int, batch_size: int, progress: Progress | None = None) -> None:
        """Creates the LM; it computes nothing before the first request."""
        super().__init__()
        self.tokenizer = tokenizer
        self._model, self._max_length, self._batch_size, self._progress = model, max_length, batch_size, progress
        self._known: dict[str, list[int]] = {}

    @property
    def eot_token_id(self) -> int:
        """The id of the end-of-text token."""
        return self.tokenizer.eos_token_id

    @property
    def prefix_token_id(self) -> int:
        """The id of the token before a text without context: the BOS; without BOS the end-of-text token."""
        return self.tokenizer.eos_token_id if self.tokenizer.bos_token_id is None else self.tokenizer.bos_token_id

    @property
    def tokenizer_name(self) -> str:
        """The name under which lm-eval caches requests."""
        return "loam"

    def apply_chat_template(self, chat_history: list[dict[str, str]], add_generation_prompt: bool = True) -> str:
        """Returns a conversation as text in the chat format."""
        return self.tokenizer.apply_chat_template(chat_history, tokenize=False, add_generation_prompt=add_generation_prompt)

    def tok_encode(self, string: str, add_special_tokens: bool | None = None, **kwargs: Any) -> list[int]:
        """Returns the token ids of a text. By default they begin with one BOS if there is one, also if the text itself begins with it."""
        if add_special_tokens is None:
            add_special_tokens = not (self.tokenizer.bos_token and string.startswith(self.tokenizer.bos_token))
        known = f"{add_special_tokens:d}{string}"
        if known not in self._known:
            self._known[known] = self.tokenizer.encode(string, add_special_tokens=add_special_tokens)
        return self._known[known]

    def _loglikelihood_tokens(
        self, requests: list[tuple[tuple[str, str], list[int], list[int]]], disable_tqdm: bool = False, **kwargs: Any
    ) -> list[tuple[float, bool]]:
        different = {(tuple(context), tuple(continuation)): 0 for _, context, continuation in requests}
        sequences = []
        for number, (context, continuation) in enumerate(different):
            different[context, continuation] = number
            ids = (context + continuation)[-(self._max_length + 1) :]
            sequences.append((ids, max(len(ids) - len(continuation), 1)))
        scored = token_logprobs(self._model, sequences, self._batch_size, self._progress)
        answers = [scored[different[tuple(context), tuple(continuation)]] for _, context, continuation in requests]
        return [(float(logp.sum()), greedy) for logp, greedy in answers]

    def loglikelihood_rolling(self, requests: Sequence[LoglikelihoodRequest], disable_tqdm: bool = False) -> list[float]:
        """Returns the log-probability of each whole text, in nats."""
        sums = []
        for request in requests:
            ids = self.tok_encode(request.args[0], add_special_tokens=False)
            parts = windows([self.prefix_token_id, *ids], self._max_length)
            sums.append(sum(float(logp.sum()) for logp, _ in token_logprobs(self._model, parts, self._batch_size)))
        return sums

    def generate_until(self, requests: Sequence[LoglikelihoodRequest], disable_tqdm: bool = False) -> list[str]:
        """Refuses to generate text.

        Raises:
            NotImplementedError: Always.
        """
        raise NotImplementedError("Loam scores choices and continuations; a task that generates text cannot be evaluated with it.")


def make_lm(model: Any, tokenizer: ChatTokenizer, max_length: int, batch_size: int, progress: Progress | None = None) -> LM:
    """Returns the LM for lm-eval's tasks; for the arguments see `LogLikelihoods`."""
    from lm_eval.api.model import TemplateLM

    class LoamLM(LogLikelihoods, TemplateLM):  # type: ignore[misc]
        """The methods above, as a subclass of lm-eval's base class, which the module imports only here because it takes seconds."""

    return LoamLM(model, tokenizer, max_length, batch_size, progress)
