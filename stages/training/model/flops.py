"""Computes parameters, FLOPs and the sizes of a checkpoint from a model's shape. It imports neither torch nor NumPy.

Guarantee: parameter counts equal those of the built model (tested).
Source: FLOPs follow appendix B of PaLM (arXiv 2204.02311): 6 per matmul parameter and token, plus 12 · num_hidden_layers ·
num_attention_heads · head_dim · sequence length per token for attention scores, without the causal discount. In place of num_hidden_layers
stand the blocks with attention. In blocks with a sliding window, its length stands for that of a longer sequence. The products of a short
convolution's filter are left out: 3 per channel.
"""

from __future__ import annotations

from typing import NamedTuple

from stages.training.model.config import CONV_TAPS, Lora, ModelConfig


class StateTensors(NamedTuple):
    """The tensors of optimizer state with one element per element of a parameter: of a hidden matrix, and of any other parameter."""

    matrices: int
    others: int


def parameter_count(config: ModelConfig) -> int:
    """Returns the number of trainable parameters; tied embeddings count once."""
    norms = (2 * config.num_hidden_layers + 1) * config.hidden_size
    if config.qk_norm:
        heads = config.num_attention_heads + config.num_key_value_heads if config.norm_placement == "after" else 2
        norms += config.attention_layers * heads * config.head_dim
    tables = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    filters = len(config.conv_layers) * CONV_TAPS * config.hidden_size
    return tables + norms + filters + hidden_matmuls(config)


def matmul_parameters(config: ModelConfig) -> int:
    """Returns the number of parameters in matrix products: the blocks and the output head, without embedding look-up and norms."""
    return hidden_matmuls(config) + config.vocab_size * config.hidden_size


def flops_per_token(config: ModelConfig, seq_len: int, lora: Lora | None = None) -> int:
    """Returns forward and backward FLOPs per training token at a context of `seq_len` tokens. lora: what is trained in place of all weights."""
    return matmul_flops(config, lora) + attention_flops(config, seq_len, min(seq_len, config.sliding_window or seq_len))


def matmul_flops(config: ModelConfig, lora: Lora | None = None) -> int:
    """Returns forward and backward FLOPs of the matrix products per training token. The gradient of a weight that is not trained is left out."""
    return 4 * matmul_parameters(config) + 6 * lora_parameters(config, lora) if lora else 6 * matmul_parameters(config)


def attention_flops(config: ModelConfig, keys: int, keys_in_window: int) -> int:
    """Returns forward and backward FLOPs of attention scores.

    Args:
        config: Shape of the model.
        keys: Number of (query, key) pairs of a block with full attention: of one token, or of a batch.
        keys_in_window: The same of a block with a sliding window.
    """
    windows = len(config.sliding_layers)
    return 12 * _attention_width(config) * ((config.attention_layers - windows) * keys + windows * keys_in_window)


def state_bytes(config: ModelConfig, state_tensors: StateTensors) -> int:
    """Returns the size of the whole optimizer state in bytes, in fp32. The matrices of the blocks are the hidden matrices."""
    hidden = hidden_matmuls(config)
    return 4 * (state_tensors.matrices * hidden + state_tensors.others * (parameter_count(config) - hidden))


def checkpoint_bytes(config: ModelConfig, state_tensors: StateTensors) -> int:
    """Returns the size of one checkpoint in bytes: the fp32 weights and the tensors of the optimizer state."""
    return 4 * parameter_count(config) + state_bytes(config, state_tensors)


def lora_parameters(config: ModelConfig, lora: Lora) -> int:
    """Returns the number of trained parameters of a LoRA."""
    wide, kv = _attention_width(config), config.num_key_value_heads * config.head_dim
    hidden, inner = config.hidden_size, config.intermediate_size
    sides = {"q_proj": hidden + wide, "k_proj": hidden + kv, "v_proj": hidden + kv, "o_proj": wide + hidden}
    attention = config.attention_layers * sum(sides.get(name, 0) for name in lora.targets)
    feed_forward = config.num_hidden_layers * sum(hidden + inner for name in lora.targets if name not in sides)
    return lora.rank * (attention + feed_forward)


def _attention_width(config: ModelConfig) -> int:
    """Returns the channels of all attention heads together."""
    return config.num_attention_heads * config.head_dim


def hidden_matmuls(config: ModelConfig) -> int:
    """Returns the parameters of all blocks that are in matrix products: attention or short convolution, and the feed-forward layers."""
    kv = config.num_key_value_heads * config.head_dim
    attention = config.hidden_size * (2 * _attention_width(config) + 2 * kv)
    convolution = 4 * config.hidden_size**2
    feed_forward = 3 * config.hidden_size * config.intermediate_size
    return config.attention_layers * attention + len(config.conv_layers) * convolution + config.num_hidden_layers * feed_forward
