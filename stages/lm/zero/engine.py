"""Runs a model under DeepSpeed ZeRO-3, with gloo on the CPU and nccl on GPUs. Nothing needs to be compiled.

Guarantee: every parameter is partitioned over the ranks (the persistence threshold is 0). After `assign`, the fp32 master weights, the
optimizer's state and the copies that the forward pass gathers agree.
Cost: about 4 s to import and start.
Source: ZeRO (arXiv 1910.02054).

Three properties of DeepSpeed, each measured, explain the settings. Its CPU Adam and its shared-memory op need a compiler; therefore we pass
a torch optimizer and mark the op as incompatible. It keeps parameters below the persistence threshold whole unless the threshold is 0. Its
log lines do not concern our users; therefore only errors are logged.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import TYPE_CHECKING, Any, NotRequired, TypedDict

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stages.lm.model.llama import Block, Llama
from stages.lm.optimizers.optimizer import Optimizer, is_hidden_matrix, parameter_groups
from stages.lm.optimizers.optimizer_adamw import AdamW
from stages.lm.ranks.events import PartitionSizes
from stages.lm.train.job import RankJob
from stages.lm.train.training_settings import TrainingSettings
from stages.lm.zero.update_gate import UpdateGate

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

COLLECTIVE_LIMIT = timedelta(days=1)
"""Longest wait in a collective. The launcher ends ranks that hang (lm/ranks/stall.py); this limit must be longer than any wait for a rank
that still makes progress. DeepSpeed's default is 10 minutes, which a rank that reads a large checkpoint exceeds."""
MAX_SHAPES = 64  # of compiled blocks; torch's default of 8 is less than the powers of two from 16 to the tokens of a batch
BUCKET_ELEMENTS = 200_000_000  # largest bucket of gradients and prefetches, in elements; DeepSpeed's default is 500 M


class OffloadConfig(TypedDict):
    """Where DeepSpeed keeps the optimizer's state."""

    device: str
    pin_memory: bool


class ZeroConfig(TypedDict):
    """DeepSpeed's settings of ZeRO, by its own names. Sizes are in elements."""

    stage: int
    stage3_param_persistence_threshold: int
    reduce_bucket_size: int
    stage3_prefetch_bucket_size: int
    overlap_comm: bool
    offload_optimizer: NotRequired[OffloadConfig]


class DeepSpeedConfig(TypedDict):
    """DeepSpeed's settings, by its own names."""

    train_micro_batch_size_per_gpu: int
    gradient_accumulation_steps: int
    gradient_clipping: float
    zero_optimization: ZeroConfig
    zero_allow_untested_optimizer: bool
    zero_force_ds_cpu_optimizer: bool
    steps_per_print: int
    wall_clock_breakdown: bool
    bf16: NotRequired[dict[str, bool]]
    data_types: NotRequired[dict[str, str]]


@dataclass(frozen=True)
class Engine:
    """A started DeepSpeed engine.

    Attributes:
        named: The model's parameters by name, in the model's order; tied parameters come once.
        gate: Decides whether an update is made.
        host_group: The ranks as a process group that sums on the host; None is the default group.
    """

    deep: DeepSpeedEngine
    named: dict[str, nn.Parameter]
    rank: int
    ranks: int
    device: torch.device
    optimizer: Optimizer
    gate: UpdateGate
    host_group: dist.ProcessGroup | None = None

    def set_learning_rate(self, rate: float) -> None:
        """Sets the learning rate of every parameter group."""
        for group in self.deep.optimizer.param_groups:
            group["lr"] = rate

    def update(self, values: Sequence[float | Tensor], refuses: Callable[[float, list[float]], bool]) -> tuple[float, list[float]]:
        """Makes the update of a step, after the backward pass of its last micro-batch.

        Args:
            values: What is summed over the ranks on the way.
            refuses: (gradient norm before clipping, NaN if a gradient is not finite; the sums of the values) -> whether to leave out the
                update. Then weights and the optimizer's state stay as they are, and the gradients are dropped. All ranks must decide alike.

        Returns:
            (the gradient norm, the sums of the values over all ranks in fp64).
        """
        self.gate.refuses, self.gate.pending = refuses, self.total(values)
        self.deep.step()
        return self.gate.norm, self.gate.sums

    def weights(self) -> Iterator[tuple[str, Tensor]]:
        """Yields (parameter name, this rank's flat fp32 partition of it, padding included)."""
        from deepspeed.utils import safe_get_local_fp32_param

        for name, param in self.named.items():
            yield name, safe_get_local_fp32_param(param)

    def total(self, values: Sequence[float | Tensor]) -> Tensor:
        """Returns the sums of the values over all ranks, fp64 on the device. The host does not wait for them."""
        total = torch.stack([torch.as_tensor(value, dtype=torch.float64, device=self.device) for value in values])
        dist.all_reduce(total)
        return total

    def reduce(self, values: Sequence[float | Tensor]) -> list[float]:
        """Returns the sums of the values over all ranks, in fp64. The host waits once for the device, however many values are tensors."""
        sums: list[float] = self.total(values).tolist()
        return sums

    def reduce_on_host(self, values: Sequence[float]) -> list[float]:
        """Returns the sums of numbers over all ranks, in fp64. The host waits for the other ranks, and for no device."""
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total, group=self.host_group)
        sums: list[float] = total.tolist()
        return sums

    def barrier(self) -> None:
        """Waits until all ranks have called it."""
        dist.barrier()


def start(job: RankJob, accumulation: int) -> Engine:
    """Returns the engine, after joining the process group and building model and optimizer. The weights are unset until `assign`.

    Args:
        job: The job.
        accumulation: Micro-batches per step and rank.

    Returns:
        The engine of this rank.

    A RuntimeError is raised if DeepSpeed created parameters in another precision than the settings say.
    """
    prepare_deepspeed()
    import deepspeed
    from deepspeed.utils import groups, set_z3_leaf_modules

    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank) if job.machine.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    deepspeed.init_distributed("nccl" if device.type == "cuda" else "gloo", timeout=COLLECTIVE_LIMIT, verbose=False)
    groups._WORLD_GROUP = dist.new_group(timeout=COLLECTIVE_LIMIT)  # DeepSpeed would make this copy of the group with the default limit
    settings = deepspeed_config(job, accumulation)
    # No dtype argument: with one, DeepSpeed 0.19.8 uses bf16 where fp16 is not supported.
    with deepspeed.zero.Init(config_dict_or_path=settings):
        model = Llama(job.model, job.machine.recompute)
    set_z3_leaf_modules(model, [Block])  # one gather per block: a tenth less time per step on small models
    if job.compiles():
        compile_blocks(model)
    optimizer, built = build_optimizer(job, model)
    deep, *_ = deepspeed.initialize(model=model, optimizer=built, config=settings)
    on_host = dist.new_group(backend="gloo", timeout=COLLECTIVE_LIMIT) if device.type == "cuda" else None
    engine = Engine(deep, dict(deep.module.named_parameters()), rank, ranks, device, optimizer, install_gate(deep.optimizer), on_host)
    refuse_other_precision({param.ds_tensor.dtype for param in engine.named.values()}, job.settings.precision)
    return engine


def install_gate(zero: Any) -> UpdateGate:
    """Returns a gate, after placing it between DeepSpeed's computation of the gradient norm and its update.

    DeepSpeed drops the gradients and makes no update where a group's norm is -1, its mark for gradients that are not finite.

    Args:
        zero: DeepSpeed's optimizer of ZeRO-3.
    """
    from deepspeed.runtime.utils import combine_grad_norm_groups

    gate, norms_of_groups = UpdateGate(), zero._get_norm_groups

    def judged() -> list[Tensor]:
        norms: list[Tensor] = norms_of_groups()
        return [torch.full_like(norm, -1.0) for norm in norms] if gate.closed(combine_grad_norm_groups(norms)) else norms

    zero._get_norm_groups = judged
    return gate


def compile_blocks(model: Llama) -> None:
    """Compiles the inside of each block; the hooks of ZeRO-3 around a block stay as they are. All blocks share one compilation.

    Shapes are constants of the compiled code, which is made at the first forward and backward pass of each shape. Training has one shape of
    tokens and evaluation another, each with some numbers of bounds (powers of two).
    """
    torch._dynamo.config.recompile_limit = MAX_SHAPES
    for block in model.blocks:
        block.forward = torch.compile(block.forward, fullgraph=True, dynamic=False)


def prepare_deepspeed() -> None:
    """Makes DeepSpeed quiet, and keeps it from compiling its shared-memory op, which takes minutes and needs a compiler."""
    warnings.filterwarnings("ignore")
    import deepspeed.ops
    from deepspeed.utils import logger

    logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False


def refuse_other_precision(dtypes: set[torch.dtype], precision: str) -> None:
    """Checks the parameters that DeepSpeed created.

    Args:
        dtypes: Their dtypes.
        precision: The precision of the settings, "fp32" or "bf16".

    Raises:
        RuntimeError: A parameter has another dtype.
    """
    if dtypes != {torch.bfloat16 if precision == "bf16" else torch.float32}:
        found = ", ".join(sorted(map(str, dtypes)))
        raise RuntimeError(f"DeepSpeed made parameters in {found}, but the precision is {precision}.")


def build_optimizer(job: RankJob, model: nn.Module) -> tuple[Optimizer, torch.optim.Optimizer]:
    """Returns the declared optimizer and its torch optimizer.

    A scoring job gets one too, although it makes no step: ZeRO-3 keeps fp32 weights only with an optimizer.
    """
    settings = job.settings
    optimizer, decay = (settings.optimizer, settings.weight_decay) if isinstance(settings, TrainingSettings) else (AdamW(), 0.0)
    embeddings = isinstance(settings, TrainingSettings) and settings.decay_embeddings
    return optimizer, optimizer.build(parameter_groups(model.named_parameters(), decay, embeddings, optimizer.matrix_state is not None))


def deepspeed_config(job: RankJob, accumulation: int) -> DeepSpeedConfig:
    """Returns DeepSpeed's settings for a job. All settings that are not named here keep their default."""
    zero: ZeroConfig = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "reduce_bucket_size": BUCKET_ELEMENTS,
        "stage3_prefetch_bucket_size": BUCKET_ELEMENTS,
        "overlap_comm": job.machine.device == "cuda",
    }
    if job.machine.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": job.machine.device == "cuda"}
    settings: DeepSpeedConfig = {
        "train_micro_batch_size_per_gpu": job.machine.micro_batch_size,
        "gradient_accumulation_steps": accumulation,
        "gradient_clipping": job.settings.max_grad_norm if isinstance(job.settings, TrainingSettings) else 0.0,
        "zero_optimization": zero,
        "zero_allow_untested_optimizer": True,
        "zero_force_ds_cpu_optimizer": False,
        "steps_per_print": 1 << 40,
        "wall_clock_breakdown": False,
    }
    if job.settings.precision == "bf16":
        settings["bf16"] = {"enabled": True}
        settings["data_types"] = {"grad_accum_dtype": "fp32"}
    return settings


def partition_of(param: nn.Parameter) -> int:
    """Returns the number of elements of the parameter on each rank, padding included."""
    return int(param.ds_tensor.numel())


def partition_sizes(engine: Engine) -> PartitionSizes:
    """Returns the element counts of all parameters, on this rank and in the model."""
    params = list(engine.named.values())
    return PartitionSizes(
        held=sum(partition_of(p) for p in params),
        resident=sum(p.numel() for p in params),
        parameters=sum(int(p.ds_numel) for p in params),
    )


def local_state(engine: Engine) -> Iterator[tuple[str, str, Tensor]]:
    """Yields this rank's partitions: (parameter name, "weight" or the name of an optimizer state, flat fp32 tensor)."""
    from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_optimizer_state

    for name, param in engine.named.items():
        yield name, "weight", safe_get_local_fp32_param(param)
        for what in engine.optimizer.tensors(is_hidden_matrix(name)):
            yield name, what, safe_get_local_optimizer_state(param, what)


def optimizer_steps(engine: Engine, step: int) -> int:
    """Returns the number of updates that the optimizer counted, or `step` if it does not count them.

    Raises:
        RuntimeError: The counts of the parameter groups differ.
    """
    names = {*engine.optimizer.counts(True), *engine.optimizer.counts(False)}
    counts = {int(state[name]) for state in engine.deep.optimizer.optimizer.state.values() for name in names & set(state)}
    if len(counts) > 1:
        raise RuntimeError(f"The optimizer's groups have different step counts: {sorted(counts)}.")
    return counts.pop() if counts else step


def assign(engine: Engine, partition: Callable[[str, str, int, int], Tensor], step: int = 0) -> None:
    """Sets the weights and, for step > 0, the optimizer's state.

    Args:
        engine: The started engine.
        partition: (parameter name, "weight" or the name of an optimizer state, begin, length) -> flat fp32 slice of the full tensor. Beyond
            the end of the tensor, the slice is zero.
        step: Updates that the optimizer has made. Every group gets its own state tensors.
    """
    from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

    zero, optimizer = engine.deep.optimizer, engine.optimizer
    if step:
        for number, flat in enumerate(zero.fp32_partitioned_groups_flat):
            matrix = zero.param_groups[zero.sub_group_to_group_id[number]]["matrix"] is not None
            counts = {name: torch.tensor(float(step)) for name in optimizer.counts(matrix)}
            zero.optimizer.state[flat] = counts | {name: torch.zeros_like(flat) for name in optimizer.tensors(matrix)}
    for name, param in engine.named.items():
        length = partition_of(param)
        begin = engine.rank * length
        safe_set_local_fp32_param(param, partition(name, "weight", begin, length))
        for what in optimizer.tensors(is_hidden_matrix(name)) if step else ():
            safe_set_local_optimizer_state(param, partition(name, what, begin, length), what)
    for group in range(len(zero.fp16_groups)):  # as at the end of a step: copies the master weights into the gathered copies
        zero._reassign_or_swap_out_partitioned_parameters(group)
    engine.barrier()


def stop() -> None:
    """Leaves the process group."""
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
