"""Refuses a training that needs more memory than the machine has, before any rank starts.

Guarantee: on CPUs the estimates of all ranks together are compared with the machine's memory and with the limit of the process's cgroup; on
GPUs that of one rank with the memory of each GPU. Memory that other processes use does not count, because it may be free later.
The estimate may be wrong by 15 %, so a training is refused only if it needs more than that above what there is.
Cost: reads a few small files, and of trimmed sequences their lengths.
Source: https://docs.kernel.org/admin-guide/cgroup-v2.html (memory.max) and cgroup-v1/memory.html (memory.limit_in_bytes).
"""

from __future__ import annotations

import os
from contextlib import suppress
from pathlib import Path

import numpy as np

from stages.training.data.reader import SequenceReader
from stages.training.job.job import JobError, RankJob
from stages.training.model.training_memory import TrainingLoad, rank_memory_bytes

GIB = 1 << 30
ERROR = 0.15
"""How far the estimate may be from the true peak (tests/bench/bench_memory.py): only what surely does not fit is refused."""


def rank_bytes(job: RankJob) -> int:
    """Returns the estimated memory of one rank of a training job, in bytes."""
    machine, settings = job.machine, job.training
    load = TrainingLoad(
        machine.ranks, machine.zero_stage, machine.micro_batch_size, _longest(job), settings.precision, machine.recompute,
        settings.optimizer.state_tensors(), machine.device, machine.offload_optimizer, settings.checkpoint_every_steps != 0,
    )  # fmt: skip
    return rank_memory_bytes(job.model, load)


def _longest(job: RankJob) -> int:
    """Returns the tokens to which the longest batch that the job trains on is padded."""
    seq_len, trim_to = job.train.seq_len, job.training.loss.trim_to
    if not trim_to:
        return max(phase.seq_len for phase in job.phases if phase.first_step < job.steps)
    reader = SequenceReader(job.train)
    ends = np.concatenate([[0], np.cumsum(reader.segments[:, 2])])[reader.offsets]
    return min(seq_len, -(-int(np.diff(ends).max(initial=1)) // trim_to) * trim_to)


def refuse_too_little_memory(job: RankJob) -> None:
    """Compares the estimated memory of a training job with that of this machine.

    Args:
        job: The job.

    Raises:
        JobError: The machine has too little. The message names the estimate, the memory and the settings to change.
    """
    machine, each = job.machine, rank_bytes(job)
    if machine.device == "cuda":
        has, needed, where = gpu_bytes(machine.ranks), each, "the GPU with the least memory"
    else:
        has, needed, where = limit_bytes(), each * machine.ranks, "this machine"
    if needed <= has * (1 + ERROR):
        return
    other = f", runtime.zero_stage (3 in place of {machine.zero_stage})" if machine.zero_stage != 3 and machine.ranks > 1 else ""
    ranks = "" if machine.device == "cuda" else ", runtime.cpu_ranks"
    offload = ", runtime.offload_optimizer" if machine.device == "cuda" and not machine.offload_optimizer else ""
    raise JobError(
        f"The training needs about {needed / GIB:.1f} GiB of memory ({machine.ranks} ranks with {each / GIB:.1f} GiB each), but {where} has "
        f"{has / GIB:.1f} GiB. Settings that change it: runtime.micro_batch_size (now {machine.micro_batch_size}), runtime.recompute (now "
        f"{machine.recompute}){other}{offload}{ranks}, and the model's shape."
    )


def gpu_bytes(ranks: int) -> int:
    """Returns the memory of the one with the least of the first `ranks` GPUs, in bytes."""
    import torch

    return min(int(torch.cuda.mem_get_info(number)[1]) for number in range(ranks))


def limit_bytes(root: Path = Path("/")) -> int:
    """Returns the memory that this process may use, in bytes: that of the machine, or the limit of its cgroup if that is lower.

    Args:
        root: The folder that has proc/ and sys/.
    """
    limits = [os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")]
    with suppress(OSError):  # no cgroups: there is no such limit
        for line in (root / "proc/self/cgroup").read_text(encoding="utf-8").splitlines():
            _, kinds, path = line.split(":", 2)
            folder, name = ("sys/fs/cgroup", "memory.max") if not kinds else ("sys/fs/cgroup/memory", "memory.limit_in_bytes")
            if kinds and "memory" not in kinds.split(","):
                continue
            parts = Path(path.lstrip("/"))
            # A limit of an outer group holds too. In a container, the mounted root is the container's own group.
            for group in (parts, *parts.parents):
                with suppress(OSError, ValueError):  # no file, or "max"
                    limits.append(int((root / folder / group / name).read_text(encoding="utf-8")))
    return min(limits)
