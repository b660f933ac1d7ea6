"""A Llama-style decoder: RMSNorm, RoPE, grouped-query attention, SwiGLU, optional tied embeddings, optional QK-norm.

Guarantee: a token attends only to itself and to earlier tokens of its own segment. The logits equal those of transformers'
LlamaForCausalLM (with QK-norm: Qwen3ForCausalLM) on the converted weights (tested). Initial weights depend only on the seed, the
parameter's name and its shape, so they are the same for any number of ranks. Constructors leave parameters uninitialised and the trainer
fills them from `initial_value`, so ZeRO-3 never holds the whole model.
Source: Llama (arXiv 2302.13971, 2407.21783), RoPE (lm/model/rope.py), GQA (2305.13245), SwiGLU (2002.05202), QK-norm as in Qwen3.

Shape legend: B sequences, L tokens per sequence, D hidden size, H attention heads, K key-value heads, C channels per head, V vocabulary,
N kept positions. A segment is the part of a packed sequence that comes from one document (`docs` numbers them).
"""

from __future__ import annotations

import hashlib

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch.utils.checkpoint import checkpoint

from stages.lm.model.config import ModelConfig
from stages.lm.model.rope import rotate, rotation_at


class Linear(nn.Module):  # type: ignore[misc]
    """x @ weight.T without bias. The weight is uninitialised, or the given parameter of another module (tied embeddings)."""

    def __init__(self, width_in: int, width_out: int, weight: nn.Parameter | None = None) -> None:
        """Creates the weight, or takes the given one."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(width_out, width_in)) if weight is None else weight

    def forward(self, x: Tensor) -> Tensor:
        """Returns x @ weight.T, [..., width_out]."""
        return F.linear(x, self.weight)


class Embedding(nn.Module):  # type: ignore[misc]
    """Look-up in a [V, D] table, which is uninitialised."""

    def __init__(self, vocab_size: int, hidden_size: int) -> None:
        """Creates the table."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(vocab_size, hidden_size))

    def forward(self, tokens_BL: Tensor) -> Tensor:
        """Returns the rows of the table at the tokens, [B, L, D]."""
        return F.embedding(tokens_BL, self.weight)


class RMSNorm(nn.Module):  # type: ignore[misc]
    """x / rms(x) · weight over the last dimension, normalised in fp32."""

    def __init__(self, hidden_size: int, eps: float) -> None:
        """Creates the weight."""
        super().__init__()
        self.weight = nn.Parameter(torch.empty(hidden_size))
        self.eps = eps

    def forward(self, x: Tensor) -> Tensor:
        """Returns the normalised x, in the dtype of x."""
        return F.rms_norm(x.float(), (x.shape[-1],), None, self.eps).to(x.dtype) * self.weight


class Attention(nn.Module):  # type: ignore[misc]
    """Grouped-query attention under a mask, with rotated queries and keys."""

    def __init__(self, config: ModelConfig) -> None:
        """Creates the four projections and, with QK-norm, the two norms."""
        super().__init__()
        self.num_attention_heads, self.num_key_value_heads, self.head_dim = (
            config.num_attention_heads,
            config.num_key_value_heads,
            config.head_dim,
        )
        width, kv_width = config.num_attention_heads * config.head_dim, config.num_key_value_heads * config.head_dim
        self.query = Linear(config.hidden_size, width)
        self.key = Linear(config.hidden_size, kv_width)
        self.value = Linear(config.hidden_size, kv_width)
        self.out = Linear(width, config.hidden_size)
        self.query_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None
        self.key_norm = RMSNorm(config.head_dim, config.rms_norm_eps) if config.qk_norm else None

    def forward(self, x_BLD: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: Cache | None = None) -> Tensor:
        """Returns the attention's output, [B, L, D]. With a cache, it also attends to the tokens in the cache."""
        b, length, _ = x_BLD.shape
        q_BLHC = self.query(x_BLD).view(b, length, self.num_attention_heads, self.head_dim)
        k_BLKC = self.key(x_BLD).view(b, length, self.num_key_value_heads, self.head_dim)
        v_BKLC = self.value(x_BLD).view(b, length, self.num_key_value_heads, self.head_dim).transpose(1, 2)
        if self.query_norm is not None and self.key_norm is not None:
            q_BLHC, k_BLKC = self.query_norm(q_BLHC), self.key_norm(k_BLKC)
        q_BHLC = rotate(q_BLHC.transpose(1, 2), *rotation)
        k_BKLC = rotate(k_BLKC.transpose(1, 2), *rotation)
        if cache is not None:
            k_BKLC, v_BKLC = cache.append(k_BKLC, v_BKLC)
        groups = self.num_attention_heads // self.num_key_value_heads
        if groups > 1:
            k_BKLC, v_BKLC = k_BKLC.repeat_interleave(groups, 1), v_BKLC.repeat_interleave(groups, 1)
        y_BHLC = F.scaled_dot_product_attention(q_BHLC, k_BKLC, v_BKLC, attn_mask=mask)
        return self.out(y_BHLC.transpose(1, 2).reshape(b, length, -1))


class FeedForward(nn.Module):  # type: ignore[misc]
    """SwiGLU: down(silu(gate(x)) · up(x))."""

    def __init__(self, config: ModelConfig) -> None:
        """Creates the three projections."""
        super().__init__()
        self.gate = Linear(config.hidden_size, config.intermediate_size)
        self.up = Linear(config.hidden_size, config.intermediate_size)
        self.down = Linear(config.intermediate_size, config.hidden_size)

    def forward(self, x_BLD: Tensor) -> Tensor:
        """Returns the feed-forward layer's output, [B, L, D]."""
        return self.down(F.silu(self.gate(x_BLD)) * self.up(x_BLD))


class Block(nn.Module):  # type: ignore[misc]
    """Attention and feed-forward. Each has a norm before it and adds its output to the residual stream."""

    def __init__(self, config: ModelConfig) -> None:
        """Creates the two halves and their norms."""
        super().__init__()
        self.attention_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.attention = Attention(config)
        self.ffn_norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.ffn = FeedForward(config)

    def forward(self, x_BLD: Tensor, rotation: tuple[Tensor, Tensor], mask: Tensor, cache: Cache | None = None) -> Tensor:
        """Returns the residual stream after the block, [B, L, D]."""
        x_BLD = x_BLD + self.attention(self.attention_norm(x_BLD), rotation, mask, cache)
        return x_BLD + self.ffn(self.ffn_norm(x_BLD))


class Cache:
    """Keys and values of earlier tokens in one layer, for generation."""

    def __init__(self) -> None:
        """Creates an empty cache."""
        self.keys: Tensor | None = None
        self.values: Tensor | None = None

    def append(self, keys: Tensor, values: Tensor) -> tuple[Tensor, Tensor]:
        """Returns the keys and values of all tokens so far, after adding those of new tokens; [B, K, tokens, C] each."""
        if self.keys is not None and self.values is not None:
            keys, values = torch.cat([self.keys, keys], 2), torch.cat([self.values, values], 2)
        self.keys, self.values = keys, values
        return keys, values


class Llama(nn.Module):  # type: ignore[misc]
    """The whole decoder. With `checkpointing`, the backward pass recomputes the activations of each block."""

    def __init__(self, config: ModelConfig, checkpointing: bool = False) -> None:
        """Creates the decoder of a shape."""
        super().__init__()
        self.config, self.checkpointing = config, checkpointing
        self.embedding = Embedding(config.vocab_size, config.hidden_size)
        self.blocks = nn.ModuleList([Block(config) for _ in range(config.num_hidden_layers)])
        self.norm = RMSNorm(config.hidden_size, config.rms_norm_eps)
        self.head = Linear(config.hidden_size, config.vocab_size, self.embedding.weight if config.tie_word_embeddings else None)

    def forward(
        self,
        tokens_BL: Tensor,
        positions_BL: Tensor,
        docs_BL: Tensor,
        keep_BL: Tensor | None = None,
        caches: list[Cache] | None = None,
        mask: Tensor | None = None,
    ) -> Tensor:
        """Returns logits [B, L, V], or with `keep_BL` those of the kept positions, [N, V].

        Args:
            tokens_BL: Token ids, int64.
            positions_BL: Position of each token in its segment, int64.
            docs_BL: Segment number of each token, int64; -1 is padding.
            keep_BL: Positions that get logits, bool. A loss needs only those with a label, and the head is the most expensive layer.
            caches: One cache per block, for generation only.
            mask: Bool [B, 1, L, all keys], for generation only. It replaces the mask from `docs_BL`.
        """
        x_BLD = self.embedding(tokens_BL)
        rotation = rotation_at(positions_BL[:, None], self.config)
        mask = document_mask(docs_BL) if mask is None else mask
        for number, block in enumerate(self.blocks):
            if self.checkpointing and self.training:
                x_BLD = checkpoint(block, x_BLD, rotation, mask, use_reentrant=False)
            else:
                x_BLD = block(x_BLD, rotation, mask, caches[number] if caches else None)
        x_BLD = self.norm(x_BLD)
        return self.head(x_BLD if keep_BL is None else x_BLD[keep_BL])


def document_mask(docs_BL: Tensor) -> Tensor:
    """Returns the attention mask, bool [B, 1, L, L]: True where a query (dim 2) may see a key (dim 3) of its segment that is not later.

    Padding counts as a segment (-1). Therefore every query sees at least one key; a softmax over no key would be NaN.
    """
    length = docs_BL.shape[1]
    causal_LL = torch.ones(length, length, dtype=torch.bool, device=docs_BL.device).tril()
    return ((docs_BL[:, :, None] == docs_BL[:, None, :]) & causal_LL)[:, None]


def initial_value(name: str, shape: tuple[int, ...], config: ModelConfig, seed: int) -> Tensor:
    """Returns the fp32 initial value of parameter `name`.

    Norms are ones. All other parameters are normal with std 1/sqrt(fan-in). Matrices that write to the residual stream are also divided by
    sqrt(2 · num_hidden_layers). Every parameter has its own generator, so the values do not depend on the number of ranks.

    1/sqrt(fan-in) is 0.016 at the width of Llama-3-8B, near the usual 0.02. It also suits narrow models: at width 128, a std of 0.02 was
    measured to cost 1.3 nats after 300,000 tokens.

    Args:
        name: Name of the parameter in our decoder.
        shape: Its full shape; the last dimension is the fan-in.
        config: Shape of the model.
        seed: Seed of the recipe.

    Source: LeCun et al. 1998 for 1/sqrt(fan-in), GPT-2 for the residual scaling.
    """
    if "norm" in name:
        return torch.ones(shape)
    std = shape[-1] ** -0.5
    if name.endswith(("out.weight", "down.weight")):
        std /= (2 * config.num_hidden_layers) ** 0.5
    digest = hashlib.sha256(f"{seed} {name}".encode()).digest()
    generator = torch.Generator().manual_seed(int.from_bytes(digest[:8], "little") >> 1)
    return torch.empty(shape).normal_(0.0, std, generator=generator)


def build(config: ModelConfig, weights: dict[str, Tensor]) -> Llama:
    """Returns the whole model on the CPU in evaluation mode, for scoring and export.

    Args:
        config: Shape of the model.
        weights: Parameter name -> full tensor, as `checkpoint.consolidate` returns them.

    Raises:
        ValueError: The weights do not match the model.
    """
    model = Llama(config)
    missing = model.load_state_dict(weights, strict=False).missing_keys
    unexpected = sorted(set(weights) - set(model.state_dict()))
    missing = [name for name in missing if not (config.tie_word_embeddings and name == "head.weight")]
    if missing or unexpected:
        raise ValueError(f"These weights are of another model: missing {missing[:3]}, unexpected {unexpected[:3]}.")
    model.eval()
    return model
