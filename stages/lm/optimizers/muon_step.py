"""The step of Muon over flat partitions, and AdamW's step for the parameters that are no hidden matrices.

ZeRO-3 gives a rank a part of every matrix. R matrices of the same shape form a round: each rank receives all parts of one of them, computes
its update, and sends every rank the part that this rank needs. A matrix is therefore computed whole, once, on one rank, and its update
does not depend on the number of ranks.
Guarantee: a group without gradient, or a flat tensor that is not made of whole partitions, is an error.
Cost: two all-to-all exchanges per round. A rank holds two whole fp32 matrices and the intermediate results of the Newton-Schulz steps.
Source: see optimizer_muon.py. The scale sqrt(max(1, rows / columns)) is that of Jordan et al.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
import torch.nn.functional as F
from torch import Tensor
from torch.optim.adamw import adamw

from stages.lm.optimizers.optimizer import ParameterGroup

if TYPE_CHECKING:
    from stages.lm.optimizers.optimizer_muon import Muon

COEFFICIENTS = (3.4445, -4.7750, 2.0315)  # of the polynomial of a Newton-Schulz step: Jordan et al. 2024
EPS = 1e-7  # smallest norm that a matrix is divided by: Jordan et al. 2024


class SteppedGroup(ParameterGroup):
    """A parameter group with the learning rate of this step."""

    lr: float


@dataclass(frozen=True)
class Exchange:
    """This rank among those that share a matrix, and the device of their exchange."""

    rank: int
    ranks: int
    device: torch.device

    def all_to_all(self, parts: Tensor) -> Tensor:
        """Returns [R, n] with row r from rank r. parts: [R, n], row r for rank r."""
        if self.ranks == 1:
            return parts
        received = torch.empty_like(parts)
        dist.all_to_all_single(received, parts)
        return received


class MuonWithAdamW(torch.optim.Optimizer):  # type: ignore[misc]
    """Muon for groups with a matrix shape, AdamW for the others."""

    def __init__(self, groups: list[ParameterGroup], settings: Muon) -> None:
        """Creates the optimizer; see Optimizer.build."""
        super().__init__(groups, {"lr": 0.0})
        self.settings = settings

    @torch.no_grad()  # type: ignore[untyped-decorator]
    def step(self, closure: Any = None) -> None:
        """Makes one step of the parameters of all groups.

        Raises:
            RuntimeError: A parameter has no gradient, or it is not made of whole partitions of its matrices.
        """
        for group in self.param_groups:
            for param in group["params"]:
                if param.grad is None:
                    raise RuntimeError("A parameter has no gradient, so the optimizer cannot update it. Report this as a bug.")
                if group["matrix"] is None:
                    step_adamw(param, self.state[param], group, self.settings)
                else:
                    step_muon(param, self.state[param], group, self.settings)


def step_adamw(param: Tensor, state: dict[str, Tensor], group: SteppedGroup, settings: Muon) -> None:
    """Makes one AdamW step of a parameter in place, in torch's implementation."""
    if not state:
        state |= {"step": torch.tensor(0.0), "exp_avg": torch.zeros_like(param), "exp_avg_sq": torch.zeros_like(param)}
    beta1, beta2 = settings.adamw_betas
    adamw(
        [param], [param.grad], [state["exp_avg"]], [state["exp_avg_sq"]], [], [state["step"]], amsgrad=False, beta1=beta1, beta2=beta2,
        lr=group["lr"] * settings.adamw_learning_rate_ratio, weight_decay=group["weight_decay"], eps=settings.adamw_eps, maximize=False,
    )  # fmt: skip


def step_muon(param: Tensor, state: dict[str, Tensor], group: SteppedGroup, settings: Muon) -> None:
    """Makes one Muon step of all matrices of a flat tensor in place.

    Args:
        param: fp32 partitions of matrices of one shape, one after the other; see Optimizer.build.
        state: Its state: step and momentum.
        group: Its parameter group, with `lr`, `weight_decay` and `matrix`.
        settings: The settings of the optimizer.

    Raises:
        RuntimeError: `param` is not made of whole partitions.
    """
    assert group["matrix"] is not None, "an elementwise group"
    rows, columns = group["matrix"]
    exchange = exchange_of(param)
    each = -(-rows * columns // exchange.ranks)
    if param.numel() % each:
        raise RuntimeError(
            f"A flat tensor of {param.numel()} elements is not made of partitions of {rows} × {columns} matrices over {exchange.ranks} "
            "ranks, so the optimizer cannot update it. Report this as a bug."
        )
    if not state:
        state |= {"step": torch.tensor(0.0), "momentum": torch.zeros_like(param)}
    state["step"] += 1
    state["momentum"].lerp_(param.grad, 1 - settings.momentum)
    param.mul_(1 - group["lr"] * group["weight_decay"])
    dtype = torch.bfloat16 if settings.newton_schulz_precision == "bf16" else torch.float32
    scale = group["lr"] * math.sqrt(max(1.0, rows / columns))
    # DeepSpeed's flat tensors are contiguous, so these views share their memory.
    params, grads, momenta = (tensor.view(-1, each) for tensor in (param, param.grad, state["momentum"]))
    for first in range(0, len(params), exchange.ranks):
        chosen = slice(first, first + exchange.ranks)
        nesterov = torch.lerp(grads[chosen], momenta[chosen], settings.momentum)
        updates = by_whole_matrix(nesterov, (rows, columns), exchange, lambda m: orthogonal(m, settings.newton_schulz_steps, dtype))
        params[chosen].sub_(updates, alpha=scale)


def exchange_of(param: Tensor) -> Exchange:
    """Returns the exchange over all ranks; without a process group, this process is the only rank. NCCL exchanges tensors of GPUs only."""
    if not dist.is_initialized():
        return Exchange(0, 1, param.device)
    device = torch.device("cuda", torch.cuda.current_device()) if dist.get_backend() == "nccl" else param.device
    return Exchange(dist.get_rank(), dist.get_world_size(), device)


def by_whole_matrix(parts: Tensor, shape: tuple[int, int], exchange: Exchange, function: Callable[[Tensor], Tensor]) -> Tensor:
    """Returns this rank's parts of function(matrix), for at most as many matrices as there are ranks. All ranks call it together.

    Args:
        parts: [matrices, n], this rank's parts of the matrices.
        shape: Rows and columns of every matrix.
        exchange: The ranks. Rank r computes matrix r.
        function: Maps a matrix [rows, columns] to one of the same shape and dtype.
    """
    count, each = parts.shape
    sent = F.pad(parts.to(exchange.device), (0, 0, 0, exchange.ranks - count))
    whole = exchange.all_to_all(sent)
    if exchange.rank < count:
        size = shape[0] * shape[1]
        result = function(whole.flatten()[:size].view(shape)).flatten()
        whole = F.pad(result, (0, exchange.ranks * each - size)).view(exchange.ranks, each)
    return exchange.all_to_all(whole)[:count].to(parts.device)


def orthogonal(matrix: Tensor, steps: int, dtype: torch.dtype) -> Tensor:
    """Returns an fp32 matrix with about the singular vectors of `matrix`, and singular values between about 0.7 and 1.2.

    Args:
        matrix: fp32 [rows, columns].
        steps: Newton-Schulz steps. Singular values below about 0.003 of the Frobenius norm need more than five to come near 1.
        dtype: Precision of the steps.
    """
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    x = (matrix / matrix.norm().clamp(min=EPS)).to(dtype)
    x = x.T if tall else x
    for _ in range(steps):
        gram = x @ x.T
        x = torch.addmm(x, torch.addmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return (x.T if tall else x).float()
