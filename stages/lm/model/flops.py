"""Computes parameters, FLOPs and memory of a model from its shape. It imports neither torch nor NumPy.

Guarantee: parameter counts equal those of the built model (tested). Memory is an estimate: exact for ZeRO-3 states, sums of the largest
tensors for activations.
Source: FLOPs follow appendix B of PaLM (arXiv 2204.02311): 6 per matmul parameter and token, plus 12 · num_hidden_layers ·
num_attention_heads · head_dim · sequence length per token for attention scores, without the causal discount.
"""

from __future__ import annotations

from typing import NamedTuple

from stages.lm.model.config import ModelConfig, Recompute


class StateTensors(NamedTuple):
    """The tensors of optimizer state with one element per element of a parameter: of a hidden matrix, and of any other parameter."""

    matrices: int
    others: int


def parameter_count(config: ModelConfig) -> int:
    """Returns the number of trainable parameters; tied embeddings count once."""
    norms = (2 * config.num_hidden_layers + 1) * config.hidden_size
    if config.qk_norm:
        norms += 2 * config.num_hidden_layers * config.head_dim
    tables = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    return tables + norms + config.num_hidden_layers * _block_matmuls(config)


def matmul_parameters(config: ModelConfig) -> int:
    """Returns the number of parameters in matrix products: the blocks and the output head, without embedding look-up and norms."""
    return config.num_hidden_layers * _block_matmuls(config) + config.vocab_size * config.hidden_size


def flops_per_token(config: ModelConfig, seq_len: int) -> int:
    """Returns forward and backward FLOPs per training token at a context of `seq_len` tokens."""
    return 6 * matmul_parameters(config) + attention_flops(config, seq_len)


def attention_flops(config: ModelConfig, keys: int) -> int:
    """Returns forward and backward FLOPs of attention scores for a number of (query, key) pairs: `keys` of one token, or the pairs of a batch."""
    return 12 * config.num_hidden_layers * _attention_width(config) * keys


def training_memory_bytes(
    config: ModelConfig, ranks: int, micro_batch_size: int, seq_len: int, precision: str, recompute: Recompute, state_tensors: StateTensors
) -> int:
    """Returns the estimated peak memory of one rank under ZeRO-3, in bytes.

    States are exact: fp32 weight, gradient and optimizer state (16 bytes per parameter with AdamW's two state tensors) plus the bf16 copy,
    divided over the ranks. Activations are the tensors that an uncompiled block keeps for its backward pass. The loss keeps hidden states and
    an fp32 gradient of the head; its chunk of logits (lm/model/linear_cross_entropy.py) is left out. The sum also contains the gathered
    weights of two blocks, the embedding and the head.

    Args:
        config: Shape of the model.
        ranks: Ranks that share the states.
        micro_batch_size: Sequences per forward pass of a rank.
        seq_len: Tokens per sequence.
        precision: "fp32" or "bf16".
        recompute: What the backward pass computes again.
        state_tensors: Tensors of optimizer state per parameter.
    """
    params = parameter_count(config)
    width_bytes = 2 if precision == "bf16" else 4
    states = (params * (8 + (width_bytes if precision == "bf16" else 0)) + state_bytes(config, state_tensors)) // ranks
    tokens = micro_batch_size * seq_len
    attention, ffn = _kept_bytes(config, width_bytes)
    layer = attention + ffn
    kept = {"none": layer, "feed_forward": attention + config.hidden_size * width_bytes, "block": config.hidden_size * width_bytes}[
        recompute
    ]
    again = 0 if recompute == "none" else ffn if recompute == "feed_forward" else layer
    loss = 2 * tokens * config.hidden_size * width_bytes + config.vocab_size * config.hidden_size * 4
    activations = tokens * (config.num_hidden_layers * kept + again + 3 * config.intermediate_size * width_bytes) + loss
    gathered = 2 * _block_matmuls(config) * width_bytes + 2 * config.vocab_size * config.hidden_size * width_bytes
    return states + activations + gathered


def state_bytes(config: ModelConfig, state_tensors: StateTensors) -> int:
    """Returns the size of the whole optimizer state in bytes, in fp32. The matrices of the blocks are the hidden matrices."""
    hidden = config.num_hidden_layers * _block_matmuls(config)
    return 4 * (state_tensors.matrices * hidden + state_tensors.others * (parameter_count(config) - hidden))


def checkpoint_bytes(config: ModelConfig, state_tensors: StateTensors) -> int:
    """Returns the size of one checkpoint in bytes: the fp32 weights and the tensors of the optimizer state."""
    return 4 * parameter_count(config) + state_bytes(config, state_tensors)


def _kept_bytes(config: ModelConfig, width_bytes: int) -> tuple[int, int]:
    """Returns the bytes that the two halves of a block keep per token for the backward pass: attention and feed-forward.

    Of a norm: its input in fp32, the normalised values and the output. Of attention: queries, keys, values and output. Of SwiGLU: gate, its
    silu, up and their product.
    """
    norm = config.hidden_size * (4 + 2 * width_bytes)
    heads = 2 * (config.num_attention_heads + config.num_key_value_heads) * config.head_dim
    return norm + heads * width_bytes, norm + 4 * config.intermediate_size * width_bytes


def _attention_width(config: ModelConfig) -> int:
    """Returns the channels of all attention heads together."""
    return config.num_attention_heads * config.head_dim


def _block_matmuls(config: ModelConfig) -> int:
    """Returns the parameters of one block that are in matrix products: query and out, key and value, and the feed-forward layer."""
    kv = config.num_key_value_heads * config.head_dim
    return config.hidden_size * (2 * _attention_width(config) + 2 * kv) + 3 * config.hidden_size * config.intermediate_size
