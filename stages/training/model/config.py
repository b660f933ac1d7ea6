"""The shape of a model, as the recipe, `model.json` and `loam plan` use it. The module does not import torch.

Guarantee: the model of every ModelConfig can be built; an impossible combination of values raises pydantic's ValidationError, a ValueError.
Source: Llama 3 (arXiv 2407.21783) for the architecture, Llama 3.1 and YaRN (arXiv 2309.00071) for the scaling of RoPE, Qwen3 (arXiv 2505.09388)
for the norm on queries and keys and for a head_dim of its own, LFM2 (arXiv 2511.23404) for short convolutions in place of attention, OLMo 2
(arXiv 2501.00656) for norms after the halves of a block, OLMo 3 (arXiv 2512.13961) and Mistral (arXiv 2310.06825) for sliding windows.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import JsonValue, ValidationInfo, field_validator, model_validator

from stages.record.settings import Field, OneOf, StageConfig

Recompute = Literal["none", "feed_forward", "block"]
"""What the backward pass computes again instead of keeping it: nothing, the inside of feed-forward layers, or the inside of blocks."""
CONV_TAPS = 3
"""Tokens that a short convolution sees: the token itself and the two before it, as in LFM2."""
MAX_DEPTH = 64
"""Largest depth from which a shape is derived: 4,096 channels."""


class RopeScaling(StageConfig):
    """Scaling of the RoPE frequencies for a longer context, with the field names of transformers; `name` is its rope_type.

    A frequency is judged by its turns in the original context.
    """

    name: str
    """Name of the scaling."""
    factor: float = Field(ge=1, le=1e6)
    """Divisor of the low frequencies; 8 in Llama 3.1 and OLMo 3, 32 in Llama 3.2."""
    original_max_position_embeddings: int = Field(ge=1, le=1 << 31)
    """The original context, in tokens; 8,192 in Llama 3.1 and OLMo 3."""


class Llama3Scaling(RopeScaling):
    """The scaling of Llama 3.1 and 3.2."""

    name: Literal["llama3"] = "llama3"
    """Name of the scaling."""
    low_freq_factor: float = Field(1.0, gt=0, le=1e6)
    """Turns in the original context below which a frequency is divided by factor. 1 in Llama 3.1."""
    high_freq_factor: float = Field(4.0, gt=0, le=1e6)
    """Turns in the original context above which a frequency stays. Between the two it is interpolated. 4 in Llama 3.1."""

    @model_validator(mode="after")
    def _low_is_below_high(self) -> Self:
        if self.low_freq_factor >= self.high_freq_factor:
            raise ValueError(
                f"low_freq_factor {self.low_freq_factor:g} is not below high_freq_factor {self.high_freq_factor:g}; change one of them."
            )
        return self


class YarnScaling(RopeScaling):
    """YaRN (arXiv 2309.00071), the scaling of OLMo 3. It also multiplies cos and sin, and so the scores of attention by the square."""

    name: Literal["yarn"] = "yarn"
    """Name of the scaling."""
    beta_slow: float = Field(1.0, gt=0, le=1e6)
    """Turns in the original context below which a frequency is divided by factor. 1 in the paper."""
    beta_fast: float = Field(32.0, gt=0, le=1e6)
    """Turns in the original context above which a frequency stays. Between the two it is interpolated by the number of the channel. 32 in the
    paper."""
    attention_factor: float = Field(None, gt=0, le=1e6, validate_default=True)
    """Factor of cos and sin. null: 0.1 · ln(factor) + 1, as in the paper."""

    @field_validator("attention_factor", mode="before")
    @classmethod
    def _of_the_paper(cls, value: Any, info: ValidationInfo) -> Any:
        """Returns the factor of the paper for null, so that a shape has one form, however the recipe writes it."""
        return 0.1 * math.log(info.data.get("factor", 1.0)) + 1 if value is None else value

    @model_validator(mode="after")
    def _slow_is_below_fast(self) -> Self:
        if self.beta_slow >= self.beta_fast:
            raise ValueError(f"beta_slow {self.beta_slow:g} is not below beta_fast {self.beta_fast:g}; change one of them.")
        return self


ROPE_SCALINGS: Mapping[str, type[RopeScaling]] = {"llama3": Llama3Scaling, "yarn": YarnScaling}
"""name -> class. A scaling without a name is llama3."""
LoraTarget = Literal["q_proj", "k_proj", "v_proj", "o_proj", "gate_proj", "up_proj", "down_proj"]
LORA_TARGETS: Mapping[LoraTarget, str] = {
    "q_proj": "attention.query", "k_proj": "attention.key", "v_proj": "attention.value", "o_proj": "attention.out",
    "gate_proj": "ffn.gate", "up_proj": "ffn.up", "down_proj": "ffn.down",
}  # fmt: skip
"""Name of a matrix in Llama of transformers -> its name inside a block."""


class Lora(StageConfig):
    """A training of two thin matrices beside each chosen matrix of the blocks, in place of all weights (LoRA, arXiv 2106.09685).

    The output of a chosen matrix becomes W x + alpha / rank · up (down x). W and all other weights stay as they are.
    """

    rank: int = Field(ge=1, le=4096, decides=True)
    """Rows of `down` and columns of `up`. 8 to 64 are usual."""
    alpha: float = Field(gt=0, le=1e6, decides=True)
    """Numerator of the scale alpha / rank. Usual: rank, or twice as much."""
    dropout: float = Field(0.0, ge=0, lt=1, decides=True)
    """Share of the inputs of `down` that are zero in a step, chosen anew for each step, token and adapter; the others are divided by 1 - dropout,
    and an evaluation uses all. 0.05 and 0.1 are usual. It costs memory: each adapter keeps an input of its own for the backward pass."""
    targets: tuple[LoraTarget, ...] = Field(tuple(LORA_TARGETS), min_length=1, decides=True)
    """Matrices of every block, by their names in transformers' Llama. All is the choice of QLoRA (arXiv 2305.14314)."""

    @property
    def scale(self) -> float:
        """Factor of the two matrices' product."""
        return self.alpha / self.rank


class ModelShape(StageConfig):
    """The part of a model's shape that a recipe gives, with the field names of transformers' config.json (except qk_norm).

    The tokenizer decides the vocabulary, and mix.seq_len the context length. A recipe writes either depth or num_hidden_layers.
    """

    depth: int | None = Field(None, ge=1, le=MAX_DEPTH, exclude=True)
    """Transformer blocks, in place of num_hidden_layers. What the section does not give is then derived from it: the other fields without a
    default, tie_word_embeddings, qk_norm, conv_layers, optimizer, embedding_std, learning rate, batch, budget, warm-up. With a budget in epochs,
    Muon's learning rate and what counts in steps must be given. `loam plan` shows each value with its source. No key holds depth."""
    num_hidden_layers: int = Field(ge=1, le=10_000)
    """Transformer blocks."""
    hidden_size: int = Field(ge=1, le=1 << 20)
    """Channels of the residual stream."""
    num_attention_heads: int = Field(ge=1, le=1 << 20)
    """Attention heads. Must divide hidden_size, except in a model with qk_norm that gives head_dim."""
    num_key_value_heads: int = Field(ge=1)
    """Key-value heads (grouped-query attention, arXiv 2305.13245). Must divide num_attention_heads."""
    intermediate_size: int = Field(ge=1, le=1 << 24)
    """Channels inside the SwiGLU feed-forward layer."""
    rope_theta: float = Field(10_000.0, ge=1, le=1e30)
    """Base of the RoPE frequencies (arXiv 2104.09864); 500,000 in Llama 3."""
    rope_scaling: Annotated[RopeScaling | None, OneOf(ROPE_SCALINGS)] = None
    """Scaling of the RoPE frequencies, as in Llama 3.1 and 3.2, or YaRN, as in OLMo 3. Blocks with a sliding window have unscaled RoPE. null: all
    blocks have it."""
    rms_norm_eps: float = Field(1e-5, gt=0, lt=1)
    """Epsilon of RMSNorm, as in Llama."""
    tie_word_embeddings: bool = False
    """Whether the output head shares the embedding table, as in small Llama 3.2 models."""
    qk_norm: bool = False
    """Whether queries and keys pass an RMSNorm, as in Qwen3. Such a model is exported as Qwen3ForCausalLM, except with conv_layers."""
    head_dim: int = Field(None, ge=1, le=1 << 20, validate_default=True)
    """Channels of an attention head, an even number. null: hidden_size / num_attention_heads. Qwen3 has 128 at every size."""
    conv_layers: tuple[int, ...] = ()
    """Blocks, counted from 0, with a gated convolution over 3 tokens in place of attention, as in LFM2. At least one block keeps attention. Needs
    qk_norm. Such a model is exported as Lfm2ForCausalLM."""

    rope_free_layers: tuple[int, ...] = ()
    """Blocks, counted from 0, whose attention does not rotate queries and keys, as every fourth in SmolLM3. Not with qk_norm. Such a model is
    exported as SmolLM3ForCausalLM."""
    norm_placement: Literal["before", "after"] = "before"
    """Where a block has its norms: before attention and feed-forward layer, as in Llama, or after each of them, as in OLMo 2, whose norms on queries
    and keys are over the channels of all heads together. "after" needs qk_norm, and does not go with conv_layers. Such a model is exported as
    Olmo2ForCausalLM, or Olmo3ForCausalLM with sliding_layers."""
    sliding_layers: tuple[int, ...] = ()
    """Blocks, counted from 0, whose attention sees sliding_window tokens: three of four in OLMo 3. Without qk_norm it must be all, as in Mistral
    7B v0.1, and such a model is exported as MistralForCausalLM. Not with conv_layers or rope_free_layers; with rope_scaling only in a model with
    norm_placement after."""
    sliding_window: int | None = Field(None, ge=1, le=1 << 31)
    """Tokens that attention sees in the blocks of sliding_layers: the token itself and those before it in its document. 4,096 in OLMo 3."""

    @field_validator("head_dim", mode="before")
    @classmethod
    def _equal_shares(cls, value: Any, info: ValidationInfo) -> Any:
        """Returns hidden_size / num_attention_heads for null, so that a shape has one form, however the recipe writes it.

        Raises:
            ValueError: There is no such whole number.
        """
        if value is not None:
            return value
        width, heads, qk_norm = (info.data.get(name) for name in ("hidden_size", "num_attention_heads", "qk_norm"))
        if width and heads and not width % heads:
            return width // heads
        if width and heads and qk_norm:
            raise ValueError(f"model.hidden_size {width} is not divisible by model.num_attention_heads {heads}; give model.head_dim.")
        return 2  # the shape is refused for another field or as a whole; a second error would mislead

    @model_validator(mode="after")
    def _can_be_built(self) -> Self:
        if self.depth is not None:  # a recipe that only depth describes has lost it: see pretrain
            raise ValueError("model.depth and model.num_hidden_layers are two ways to give the blocks; give one of them.")
        if (
            self.hidden_size % self.num_attention_heads and not self.qk_norm
        ):  # LlamaForCausalLM of transformers refuses it with any head_dim
            raise ValueError(
                f"model.hidden_size {self.hidden_size} is not divisible by model.num_attention_heads {self.num_attention_heads}; change one of "
                "them, or set model.qk_norm and model.head_dim."
            )
        if self.head_dim % 2:
            raise ValueError(
                f"A head has {self.head_dim} channels, which RoPE cannot rotate in pairs; make model.head_dim even (by default it is "
                "model.hidden_size / model.num_attention_heads)."
            )
        if isinstance(self.rope_scaling, YarnScaling) and self.rope_theta == 1:
            raise ValueError("model.rope_theta 1 gives all channels one frequency, between which YaRN cannot interpolate; make it larger.")
        if self.num_attention_heads % self.num_key_value_heads:
            raise ValueError(
                f"model.num_attention_heads {self.num_attention_heads} is not divisible by model.num_key_value_heads {self.num_key_value_heads}; change one of them."
            )
        return self

    @model_validator(mode="after")
    def _layers_are_blocks(self) -> Self:
        for name in ("conv_layers", "rope_free_layers", "sliding_layers"):
            layers: tuple[int, ...] = getattr(self, name)
            if layers and (list(layers) != sorted(set(layers)) or layers[0] < 0 or layers[-1] >= self.num_hidden_layers):
                raise ValueError(
                    f"model.{name} {list(layers)} must name different blocks in ascending order, from 0 to {self.num_hidden_layers - 1}."
                )
        if self.rope_free_layers and self.qk_norm:
            raise ValueError(
                "model.rope_free_layers does not go with model.qk_norm, because the class that such a model is exported to (SmolLM3) has none; "
                "remove one of them."
            )
        return self

    @model_validator(mode="after")
    def _convolutions_are_not_alone(self) -> Self:
        layers = self.conv_layers
        if not layers:
            return self
        if len(layers) == self.num_hidden_layers:
            raise ValueError("model.conv_layers names every block; leave attention to at least one.")
        if not self.qk_norm:
            raise ValueError(
                "model.conv_layers needs model.qk_norm, because the class that such a model is exported to (LFM2) has it; set it."
            )
        return self

    @model_validator(mode="after")
    def _norms_are_those_of_one_class(self) -> Self:
        if self.norm_placement == "after" and (self.conv_layers or not self.qk_norm):
            raise ValueError(
                "model.norm_placement after needs model.qk_norm and no model.conv_layers, because the class that such a model is exported to "
                "(OLMo 2) is so; change one of them."
            )
        return self

    @model_validator(mode="after")
    def _windows_are_those_of_one_class(self) -> Self:
        if bool(self.sliding_layers) != (self.sliding_window is not None):
            raise ValueError("model.sliding_layers and model.sliding_window go together; give both of them or none.")
        if not self.sliding_layers:
            return self
        if self.conv_layers or self.rope_free_layers:
            other = "conv_layers" if self.conv_layers else "rope_free_layers"
            raise ValueError(f"model.sliding_layers does not go with model.{other}; remove one of them.")
        everywhere = len(self.sliding_layers) == self.num_hidden_layers
        if not self.qk_norm and not everywhere:
            raise ValueError(
                "model.sliding_layers must name every block of a model without model.qk_norm, because the class that it is exported to (Mistral) "
                "has its window in all of them; name them, or set model.qk_norm."
            )
        if self.rope_scaling and (self.norm_placement == "before" or everywhere):
            raise ValueError(
                "model.rope_scaling goes with model.sliding_layers only in a model with model.norm_placement after and a block without a window: "
                "blocks with a window keep their RoPE, as in OLMo 3; remove one of the two."
            )
        return self

    @property
    def attention_layers(self) -> int:
        """Number of blocks with attention."""
        return self.num_hidden_layers - len(self.conv_layers)

    def window_of(self, layer: int) -> int | None:
        """Returns the tokens that attention sees in a block; None for all."""
        return self.sliding_window if layer in self.sliding_layers else None

    @property
    def architecture(self) -> str:
        """The class of transformers that has the parts of the model, as which it is exported."""
        if self.conv_layers:
            return "Lfm2ForCausalLM"
        if self.rope_free_layers:
            return "SmolLM3ForCausalLM"
        if self.norm_placement == "after":
            return "Olmo3ForCausalLM" if self.sliding_layers else "Olmo2ForCausalLM"
        if self.qk_norm:
            return "Qwen3ForCausalLM"
        return "MistralForCausalLM" if self.sliding_layers else "LlamaForCausalLM"


class ModelConfig(ModelShape):
    """The whole shape of a model: what the recipe gives, the vocabulary and the context length."""

    vocab_size: int = Field(ge=1)
    """Entries of the vocabulary."""
    max_position_embeddings: int = Field(ge=1)
    """Sequence length of training, in tokens."""

    def to_json(self) -> dict[str, JsonValue]:
        """Returns the fields as plain values, those of rope_scaling in a mapping of their own."""
        return self.model_dump(mode="json")


def write_model_config(config: ModelConfig, path: Path) -> None:
    """Writes model.json with sorted keys, so equal configs give equal bytes."""
    path.write_text(json.dumps(config.to_json(), indent=1, sort_keys=True) + "\n", encoding="utf-8")


def read_model_config(path: Path) -> ModelConfig:
    """Returns the config in a model.json."""
    return ModelConfig.model_validate_json(path.read_text(encoding="utf-8"))
