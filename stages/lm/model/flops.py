"""Parameters, FLOPs and memory of a model from its shape alone. Pure arithmetic: no torch, no numpy.

Guarantee: parameter counts equal those of the built model (tested). FLOPs follow PaLM's appendix B (arXiv 2204.02311):
6 per matmul parameter and token, plus 12 · depth · width · sequence length for attention scores without the causal
discount. Memory is an estimate: exact for ZeRO-3 states, a rule of thumb for activations.
"""

from __future__ import annotations

from stages.lm.model.config import ModelConfig


def parameter_count(config: ModelConfig) -> int:
    """All trainable parameters; tied embeddings count once."""
    norms = (2 * config.num_hidden_layers + 1) * config.hidden_size
    if config.qk_norm:
        norms += 2 * config.num_hidden_layers * config.head_dim
    tables = config.vocab_size * config.hidden_size * (1 if config.tie_word_embeddings else 2)
    return tables + norms + config.num_hidden_layers * _block_matmuls(config)


def matmul_parameters(config: ModelConfig) -> int:
    """Parameters that multiply every token: the blocks and the output head, not the embedding look-up or the norms."""
    return config.num_hidden_layers * _block_matmuls(config) + config.vocab_size * config.hidden_size


def flops_per_token(config: ModelConfig, seq_len: int) -> int:
    """Forward and backward FLOPs of one training token at `seq_len` tokens of context."""
    return 6 * matmul_parameters(config) + 12 * config.num_hidden_layers * config.hidden_size * seq_len


def training_memory_bytes(
    config: ModelConfig, ranks: int, micro_batch_size: int, seq_len: int, precision: str, checkpointing: bool, state_tensors: int
) -> int:
    """Estimated peak bytes on one rank under ZeRO-3.

    States, exact: fp32 weight, optimizer state and gradient (16 bytes with AdamW's two state tensors) over the ranks, plus the low-precision
    copy. Activations, a guess after Korthikanti et al. (arXiv 2205.05198): 34 bytes per token, layer and channel in 16 bit
    (2 with checkpointing), plus logits and their gradient in fp32.
    """
    params = parameter_count(config)
    width_bytes = 2 if precision == "bf16" else 4
    states = params * (8 + 4 * state_tensors + (width_bytes if precision == "bf16" else 0)) // ranks
    tokens = micro_batch_size * seq_len
    per_layer = (2 if checkpointing else 34) * width_bytes // 2
    activations = tokens * config.hidden_size * config.num_hidden_layers * per_layer + tokens * config.vocab_size * 8
    gathered = 2 * _block_matmuls(config) * width_bytes + 2 * config.vocab_size * config.hidden_size * width_bytes
    return states + activations + gathered


def checkpoint_bytes(config: ModelConfig, state_tensors: int) -> int:
    """Bytes of one checkpoint: the fp32 weights and the tensors of the optimizer's state."""
    return 4 * (1 + state_tensors) * parameter_count(config)


def _block_matmuls(config: ModelConfig) -> int:
    kv = config.num_key_value_heads * config.head_dim
    return config.hidden_size * (2 * config.hidden_size + 2 * kv) + 3 * config.hidden_size * config.intermediate_size
