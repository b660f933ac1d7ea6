"""Continues a sequence of tokens, greedily or by sampling, with a cache of keys and values.

Guarantee: temperature 0 gives the same tokens as recomputing every prefix (tested). Sampling depends only on the logits and the seed.
Cost: one forward pass over the prompt, then one forward pass of one token per new token.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Sequence

import torch

from stages.lm.model.llama import Cache, Llama


@torch.no_grad()  # type: ignore[untyped-decorator]
def generate(
    model: Llama, prompt: Sequence[int], max_new_tokens: int, stop: Collection[int] = (), temperature: float = 0.0, seed: int = 0
) -> Iterator[int]:
    """Yields new tokens until a stop token, max_new_tokens, or the end of the model's context. A stop token is not yielded.

    Args:
        model: The model, with its weights.
        prompt: Token ids.
        max_new_tokens: Largest number of new tokens.
        stop: Token ids that end the text.
        temperature: Divides the logits before sampling. 0 takes the most likely token.
        seed: Seed of the sampling.

    Raises:
        ValueError: The prompt is empty or fills the context.
    """
    limit = model.config.max_position_embeddings
    if not 0 < len(prompt) < limit:
        raise ValueError(f"The prompt has {len(prompt)} tokens; it needs at least 1 and fewer than the context's {limit}.")
    device = model.embedding.weight.device
    generator = torch.Generator(device).manual_seed(seed)
    caches = [Cache() for _ in model.blocks]
    tokens, seen = list(prompt), 0
    for _ in range(min(max_new_tokens, limit - len(prompt))):
        new = torch.tensor([tokens[seen:]], device=device)
        count = new.shape[1]
        positions = torch.arange(seen, seen + count, device=device)[None]
        mask = torch.ones(count, seen + count, dtype=torch.bool, device=device).tril(seen)[None, None]
        logits_V = model(new, positions, torch.zeros_like(new), caches=caches, mask=mask)[0, -1].float()
        seen += count
        if temperature > 0:
            chosen = int(torch.multinomial((logits_V / temperature).softmax(-1), 1, generator=generator))
        else:
            chosen = int(logits_V.argmax())
        if chosen in stop:
            return
        tokens.append(chosen)
        yield chosen
