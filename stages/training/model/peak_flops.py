"""The peak of a device: the FLOP/s of a dense matrix product, of which training reaches a share (MFU).

Guarantee: the peak of a GPU is a figure of its maker, and None for a GPU that is not listed. The peak of a CPU is measured.
Cost: a measurement takes MEASURE_S seconds once per process and precision.
Source: model FLOPs utilization, appendix B of PaLM (arXiv 2204.02311).
The module imports torch only to measure.
"""

from __future__ import annotations

import time
from functools import cache
from typing import TYPE_CHECKING

from stages.training.model.gpus import gpu_peak_flops

if TYPE_CHECKING:
    import torch
    from torch import Tensor

PRODUCT_WIDTH = 1024
PRODUCT_FLOPS = 2 * PRODUCT_WIDTH**3
MEASURE_S = 0.2


def peak_flops(device: torch.device, precision: str) -> float | None:
    """Returns the peak FLOP/s of the device of one rank; None where it is not known: for other GPUs, and on a GPU in fp32.

    Args:
        device: The device.
        precision: "fp32" or "bf16".
    """
    import torch

    if device.type == "cuda":
        return gpu_peak_flops(torch.cuda.get_device_name(device)) if precision == "bf16" else None
    return measured_flops(precision)


def operands(precision: str) -> tuple[Tensor, Tensor]:
    """Returns two matrices of width PRODUCT_WIDTH on the CPU. They do not draw from torch's global generator."""
    import torch

    values = torch.rand(2, PRODUCT_WIDTH, PRODUCT_WIDTH, generator=torch.Generator().manual_seed(0))
    first, second = values.to(torch.bfloat16 if precision == "bf16" else torch.float32)
    return first, second


@cache
def measured_flops(precision: str) -> float:
    """Returns the FLOP/s of the fastest of some square matrix products on the CPU, with torch's threads of this process."""
    first, second = operands(precision)
    first @ second  # the first product also starts threads and loads kernels
    seconds: list[float] = []
    begin = time.perf_counter()
    while not seconds or time.perf_counter() - begin < MEASURE_S:
        start = time.perf_counter()
        first @ second
        seconds.append(time.perf_counter() - start)
    return PRODUCT_FLOPS / min(seconds)
