"""Causal attention inside segments: a token attends to itself and to earlier tokens of its own segment, and to nothing else.

A batch of B sequences is one row of T = B·L tokens. `bounds` says where its segments begin and end. There is no mask of [L, L] entries, so
memory grows with T alone, and the work with the sum of squares of the segments' lengths.
Guarantee: equals attention under a dense mask (tested, with gradients). What one segment holds changes no bit of another segment's output.
Cost: on a GPU in 16 bit one launch of torch's variable-length flash attention. Elsewhere one call of torch's flash kernel per segment, in fp32.
Source: FlashAttention (arXiv 2205.14135, 2307.08691).

Shape legend: T tokens of all sequences, H attention heads, K key-value heads (K divides H), C channels per head, S segments.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor

HALF = (torch.bfloat16, torch.float16)


def segment_attention(q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, bounds: Tensor, longest: int) -> Tensor:
    """Returns the output of attention, [T, H, C].

    Args:
        q_THC: Queries.
        k_TKC: Keys.
        v_TKC: Values.
        bounds: int32 [S + 1], on the device of the queries. Segment i is the tokens bounds[i] to bounds[i + 1]; the last entry is T.
        longest: An upper bound of the segments' lengths, in tokens.
    """
    if q_THC.device.type == "cpu":
        out: Tensor = attend_on_cpu(q_THC, k_TKC, v_TKC, bounds)[0]
        return out
    if q_THC.dtype in HALF:
        from torch.nn.attention.varlen import varlen_attn

        return varlen_attn(q_THC, k_TKC, v_TKC, bounds, bounds, longest, longest, window_size=(-1, 0), enable_gqa=True)
    return attend_by_segment(q_THC, k_TKC, v_TKC, bounds)


def attend_by_segment(q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, bounds: Tensor) -> Tensor:
    """Returns the output of attention by one differentiable call of torch per segment, [T, H, C]. For fp32 on a GPU, uncompiled.

    Keys and values are repeated: torch's memory-efficient kernel does not share them, and its plain one keeps the square of a segment.
    """
    groups = q_THC.shape[1] // k_TKC.shape[1]
    parts = []
    for here in _slices(bounds, len(q_THC)):
        q, k, v = _heads(q_THC[here]), _wide(k_TKC[here], groups), _wide(v_TKC[here], groups)
        parts.append(_back(F.scaled_dot_product_attention(q, k, v, is_causal=True)))
    return torch.cat(parts)


@torch.library.custom_op("loam::attend_on_cpu", mutates_args=())  # type: ignore[untyped-decorator]
def attend_on_cpu(q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
    """Returns the output of attention [T, H, C] and the logarithm of the sum of exponentials of each query's scores, fp32 [T, H].

    It is one operator, so a compiled block holds no loop over segments, and torch keeps one output instead of one per segment. It computes in
    fp32 whatever the dtype.
    """
    groups = q_THC.shape[1] // k_TKC.shape[1]
    out_THC, sums_TH = torch.empty_like(q_THC), q_THC.new_empty(q_THC.shape[:2], dtype=torch.float32)
    for here in _slices(bounds, len(q_THC)):
        out, sums = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu(
            _wide(q_THC[here]), _wide(k_TKC[here], groups), _wide(v_TKC[here], groups), 0.0, True
        )
        out_THC[here], sums_TH[here] = _back(out), sums[0].T
    return out_THC, sums_TH


@torch.library.custom_op("loam::attend_on_cpu_backward", mutates_args=())  # type: ignore[untyped-decorator]
def attend_on_cpu_backward(
    gradient_THC: Tensor, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, out_THC: Tensor, sums_TH: Tensor, bounds: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    """Returns the gradients of queries, keys and values, in the shapes of those."""
    groups = q_THC.shape[1] // k_TKC.shape[1]
    dq_THC, dk_TKC, dv_TKC = torch.empty_like(q_THC), torch.empty_like(k_TKC), torch.empty_like(v_TKC)
    for here in _slices(bounds, len(q_THC)):
        dq, dk, dv = torch.ops.aten._scaled_dot_product_flash_attention_for_cpu_backward(
            _wide(gradient_THC[here]), _wide(q_THC[here]), _wide(k_TKC[here], groups), _wide(v_TKC[here], groups),
            _wide(out_THC[here]), sums_TH[here].T[None], 0.0, True,
        )  # fmt: skip
        dq_THC[here] = _back(dq)
        dk_TKC[here], dv_TKC[here] = (_back(d).unflatten(1, (-1, groups)).sum(2) for d in (dk, dv))
    return dq_THC, dk_TKC, dv_TKC


@attend_on_cpu.register_fake  # type: ignore[untyped-decorator]
def _shape_of_output(q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, bounds: Tensor) -> tuple[Tensor, Tensor]:
    return torch.empty_like(q_THC), q_THC.new_empty(q_THC.shape[:2], dtype=torch.float32)


@attend_on_cpu_backward.register_fake  # type: ignore[untyped-decorator]
def _shape_of_gradients(
    gradient_THC: Tensor, q_THC: Tensor, k_TKC: Tensor, v_TKC: Tensor, out_THC: Tensor, sums_TH: Tensor, bounds: Tensor
) -> tuple[Tensor, Tensor, Tensor]:
    return torch.empty_like(q_THC), torch.empty_like(k_TKC), torch.empty_like(v_TKC)


def _keep(ctx: Any, inputs: tuple[Tensor, ...], output: tuple[Tensor, Tensor]) -> None:
    q_THC, k_TKC, v_TKC, bounds = inputs
    ctx.save_for_backward(q_THC, k_TKC, v_TKC, *output, bounds)


def _backward(ctx: Any, gradient_THC: Tensor, _: Tensor) -> tuple[Tensor | None, ...]:
    return *attend_on_cpu_backward(gradient_THC, *ctx.saved_tensors), None


attend_on_cpu.register_autograd(_backward, setup_context=_keep)


def _slices(bounds: Tensor, tokens: int) -> Iterator[slice]:
    """Yields the tokens of each segment that has any.

    Raises:
        ValueError: The bounds do not cover the tokens; the outputs of the others would not be computed.
    """
    ends = bounds.tolist()
    if (ends[0], ends[-1]) != (0, tokens):
        raise ValueError(f"The bounds of the segments go from {ends[0]} to {ends[-1]}, but the batch has {tokens} tokens.")
    yield from (slice(begin, end) for begin, end in zip(ends, ends[1:], strict=False) if end > begin)


def _heads(x: Tensor) -> Tensor:
    """Returns [tokens, heads, C] as the [1, heads, tokens, C] that torch's kernels take, without a copy."""
    return x.transpose(0, 1)[None]


def _wide(x: Tensor, groups: int = 1) -> Tensor:
    """Returns [tokens, heads, C] in fp32 as [1, heads · groups, tokens, C] for torch's kernels on CPUs.

    They take as many key-value heads as query heads, and their backward pass in bf16 is four times slower than in fp32 (measured).
    """
    return _heads((x.repeat_interleave(groups, 1) if groups > 1 else x).float())


def _back(x: Tensor) -> Tensor:
    """Returns [1, heads, tokens, C] as [tokens, heads, C], without a copy."""
    return x[0].transpose(0, 1)
