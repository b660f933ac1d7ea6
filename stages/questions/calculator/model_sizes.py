"""Shapes of models by their size alone: the published ones of Llama 3, and for other sizes a rule.

Guarantee: the answer says which of the two it is. The rule is for planning; nothing was trained by it here.
Source: Llama 3 (arXiv 2407.21783), table 3.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from stages.record.contract.errors import RecipeError
from stages.training.model import flops
from stages.training.model.config import ModelConfig

VOCAB_SIZE, SEQ_LEN, ROPE_THETA = 128_256, 8192, 500_000.0
"""Of Llama 3."""
PUBLISHED = {"8B": (32, 4096, 32, 14336), "70B": (80, 8192, 64, 28672), "405B": (126, 16384, 128, 53248)}
"""Size -> blocks, channels, heads and channels of the feed-forward layer; key-value heads are KV_HEADS."""
KV_HEADS, PER_HEAD, FEED_FORWARD = 8, 128, 3.5
"""Key-value heads and channels of a head at every size of Llama 3; channels of the feed-forward layer per channel, of 8B and 70B."""
MOST_BLOCKS = 1000


@dataclass(frozen=True)
class SizedShape:
    """A shape, and where it is from."""

    shape: ModelConfig
    source: str


def sized_shape(params: float, seq_len: int = SEQ_LEN) -> SizedShape:
    """Returns the shape of a size: that of Llama 3 for 8B, 70B and 405B, else that of the rule with the nearest number of parameters.

    By the rule, a model of n blocks has n heads of PER_HEAD channels, FEED_FORWARD times as many channels in the feed-forward layer, the
    vocabulary of Llama 3, a head of its own, and the largest number of key-value heads up to KV_HEADS that divides n.

    Args:
        params: Number of parameters.
        seq_len: Context length of training, in tokens.

    Raises:
        RecipeError: The rule has no shape as small or as large.
    """
    for name, (blocks, width, heads, inner) in PUBLISHED.items():
        if params == float(name[:-1]) * 1e9:
            return SizedShape(_shape((blocks, width, heads, KV_HEADS, inner), seq_len), f"Llama 3 {name} (arXiv 2407.21783, table 3)")
    low, high = _by_rule(1, seq_len), _by_rule(MOST_BLOCKS, seq_len)
    if not flops.parameter_count(low) <= params <= flops.parameter_count(high):
        raise RecipeError(
            f"There is no rule for the shape of a model of {params:,.0f} parameters.",
            where="--params",
            do=f"Name {flops.parameter_count(low):,} to {flops.parameter_count(high):.1e}, or give a recipe, which has the shape.",
        )
    counts = {n: flops.parameter_count(_by_rule(n, seq_len)) for n in range(1, MOST_BLOCKS + 1)}
    blocks = min(counts, key=lambda n: abs(counts[n] - params))
    rule = f"by a rule, not published: {blocks} blocks and heads, feed-forward x {FEED_FORWARD:g}"
    return SizedShape(_by_rule(blocks, seq_len), rule)


def _by_rule(blocks: int, seq_len: int) -> ModelConfig:
    width = blocks * PER_HEAD
    return _shape((blocks, width, blocks, math.gcd(blocks, KV_HEADS), int(FEED_FORWARD * width)), seq_len)


def _shape(sizes: tuple[int, int, int, int, int], seq_len: int) -> ModelConfig:
    blocks, width, heads, kv_heads, inner = sizes
    return ModelConfig(
        num_hidden_layers=blocks, hidden_size=width, num_attention_heads=heads, num_key_value_heads=kv_heads, intermediate_size=inner,
        vocab_size=VOCAB_SIZE, max_position_embeddings=seq_len, rope_theta=ROPE_THETA,
    )  # fmt: skip
