"""DeepSpeed ZeRO-3 around a model: the real stage-3 engine, gloo on the CPU and nccl on GPUs, with nothing to compile.

Guarantee: every parameter is partitioned over the ranks (no persistence threshold), and after `assign` the fp32 masters,
the optimizer's moments and the copies that the forward pass gathers agree. Cost: about 4 s to import and start.
Source: ZeRO (arXiv 1910.02054). Traps, each measured: DeepSpeed's CPU Adam and its shared-memory op want a compiler, so
a torch optimizer is the client's and the op is declared absent; parameters below a threshold stay whole unless it is
0; its log lines are for its own users.
"""

from __future__ import annotations

import contextlib
import logging
import os
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import torch
import torch.distributed as dist
from torch import Tensor, nn

from stages.lm.model.llama import Block, Llama
from stages.lm.train.job import RankJob
from stages.lm.train.optimizer import Optimizer, parameter_groups
from stages.lm.train.optimizer_adamw import AdamW
from stages.lm.train.training_settings import TrainingSettings

if TYPE_CHECKING:
    from deepspeed import DeepSpeedEngine

BUCKET_ELEMENTS = 200_000_000  # gradients and prefetches are handled in pieces of at most this; DeepSpeed's default is 500 M


@dataclass(frozen=True)
class Engine:
    """A started engine. named: the model's parameters by name, tied ones once, in the model's order."""

    deep: DeepSpeedEngine
    named: dict[str, nn.Parameter]
    rank: int
    ranks: int
    device: torch.device
    optimizer: Optimizer

    def set_learning_rate(self, rate: float) -> None:
        for group in self.deep.optimizer.param_groups:
            group["lr"] = rate

    def grad_norm(self) -> float:
        """The global gradient norm of the last step, before clipping."""
        return float(self.deep.get_global_grad_norm())

    def reduce(self, values: list[float]) -> list[float]:
        """Sums over the ranks, in fp64."""
        total = torch.tensor(values, dtype=torch.float64, device=self.device)
        dist.all_reduce(total)
        return total.tolist()

    def barrier(self) -> None:
        dist.barrier()


def start(job: RankJob, accumulation: int) -> Engine:
    """Joins the process group and builds the partitioned model and optimizer. The weights are still unset: use `assign`."""
    warnings.filterwarnings("ignore")
    torch.set_num_threads(int(os.environ.get("OMP_NUM_THREADS", "1")))
    import deepspeed
    import deepspeed.ops
    from deepspeed.utils import logger, set_z3_leaf_modules

    logger.setLevel(logging.ERROR)
    deepspeed.ops.__compatible_ops__["deepspeed_shm_comm"] = False
    rank, ranks = int(os.environ["RANK"]), int(os.environ["WORLD_SIZE"])
    device = torch.device("cuda", rank) if job.machine.device == "cuda" else torch.device("cpu")
    if device.type == "cuda":
        torch.cuda.set_device(device)
    deepspeed.init_distributed("nccl" if device.type == "cuda" else "gloo", verbose=False)
    settings = deepspeed_config(job, accumulation)
    with deepspeed.zero.Init(config_dict_or_path=settings):  # given a dtype, it takes bf16 where there is no fp16 (0.19.8)
        model = Llama(job.model, job.machine.activation_checkpointing)
    set_z3_leaf_modules(model, [Block])  # gathers a block's parameters together: a tenth less time per step on small models
    optimizer, built = build_optimizer(job, model)
    deep, *_ = deepspeed.initialize(model=model, optimizer=built, config=settings)
    engine = Engine(deep, dict(deep.module.named_parameters()), rank, ranks, device, optimizer)
    found = {param.ds_tensor.dtype for param in engine.named.values()}
    if found != {torch.bfloat16 if job.settings.precision == "bf16" else torch.float32}:
        raise RuntimeError(f"DeepSpeed made parameters in {found}, but the precision is {job.settings.precision}.")
    return engine


def build_optimizer(job: RankJob, model: nn.Module) -> tuple[Optimizer, torch.optim.Optimizer]:
    """The job's optimizer and torch's. A scoring job gets one too, which makes no step: ZeRO-3 keeps fp32 weights with an optimizer only."""
    settings = job.settings
    optimizer, decay = (settings.optimizer, settings.weight_decay) if isinstance(settings, TrainingSettings) else (AdamW(), 0.0)
    embeddings = isinstance(settings, TrainingSettings) and settings.decay_embeddings
    return optimizer, optimizer.build(parameter_groups(model.named_parameters(), decay, embeddings))


def deepspeed_config(job: RankJob, accumulation: int) -> dict[str, Any]:
    """DeepSpeed's settings for a job; all that is not named here is its default."""
    zero: dict[str, Any] = {
        "stage": 3,
        "stage3_param_persistence_threshold": 0,
        "reduce_bucket_size": BUCKET_ELEMENTS,
        "stage3_prefetch_bucket_size": BUCKET_ELEMENTS,
        "overlap_comm": job.machine.device == "cuda",
    }
    if job.machine.offload_optimizer:
        zero["offload_optimizer"] = {"device": "cpu", "pin_memory": job.machine.device == "cuda"}
    settings: dict[str, Any] = {
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
        settings |= {"bf16": {"enabled": True}, "data_types": {"grad_accum_dtype": "fp32"}}
    return settings


def partition_of(param: nn.Parameter) -> int:
    """Elements of the parameter that each rank holds, padding included."""
    return int(param.ds_tensor.numel())


def partition_sizes(engine: Engine) -> dict[str, int]:
    """Elements of parameters: held by this rank, resident whole between steps (0 under ZeRO-3), and in the model."""
    params = list(engine.named.values())
    return {
        "held": sum(partition_of(p) for p in params),
        "resident": sum(p.numel() for p in params),
        "parameters": sum(int(p.ds_numel) for p in params),
    }


def local_state(engine: Engine) -> Iterator[tuple[str, str, Tensor]]:
    """This rank's partitions: (parameter, "weight" or a state tensor of the optimizer, fp32 tensor [partition])."""
    from deepspeed.utils import safe_get_local_fp32_param, safe_get_local_optimizer_state

    for name, param in engine.named.items():
        yield name, "weight", safe_get_local_fp32_param(param)
        for what in engine.optimizer.tensors():
            yield name, what, safe_get_local_optimizer_state(param, what)


def optimizer_steps(engine: Engine, step: int) -> int:
    """The updates that the optimizer says it made, the same in every group; of one that does not count, `step`."""
    counts = {int(state[name]) for state in engine.deep.optimizer.optimizer.state.values() for name in engine.optimizer.counts()}
    if len(counts) > 1:
        raise RuntimeError(f"The optimizer's groups disagree about its step: {sorted(counts)}.")
    return counts.pop() if counts else step


def assign(engine: Engine, partition: Callable[[str, str, int, int], Tensor], step: int = 0) -> None:
    """Sets weights (and, for step > 0, the optimizer's state) from `partition(name, what, begin, length)`, a flat fp32 slice of the full
    parameter, zero beyond its end. The state is made per group, each its own tensors."""
    from deepspeed.utils import safe_set_local_fp32_param, safe_set_local_optimizer_state

    zero, optimizer = engine.deep.optimizer, engine.optimizer
    if step:
        for flat in zero.fp32_partitioned_groups_flat:
            counts = {name: torch.tensor(float(step)) for name in optimizer.counts()}
            zero.optimizer.state[flat] = counts | {name: torch.zeros_like(flat) for name in optimizer.tensors()}
    for name, param in engine.named.items():
        length = partition_of(param)
        begin = engine.rank * length
        safe_set_local_fp32_param(param, partition(name, "weight", begin, length))
        for what in optimizer.tensors() if step else ():
            safe_set_local_optimizer_state(param, partition(name, what, begin, length), what)
    for group in range(len(zero.fp16_groups)):  # what a step does at its end: copies the masters into what is gathered
        zero._reassign_or_swap_out_partitioned_parameters(group)
    engine.barrier()


def stop() -> None:
    """Leaves the process group."""
    with contextlib.suppress(RuntimeError):
        dist.destroy_process_group()
