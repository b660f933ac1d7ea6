"""Memory and CPU time of the loss and its gradients at a large vocabulary, each way in a process of its own.

`python -m tests.bench.train.head_loss WAY VOCABULARY TOKENS PARENT_PID` is one of these processes. Hidden states of 256 channels, fp32. The
memory is the most that the process has had resident, less what it had with the inputs in memory; gradients of both inputs count.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import time
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

from stages.record.processes import die_with_parent, resident_bytes

VOCABULARY, TOKENS, WIDTH = 128_256, 8_192, 256
PROJECT = Path(__file__).resolve().parents[3]
PLAIN = "logits, then F.cross_entropy"
NEEDED_BYTES = 14
"""Of plain logits, per token and entry of the vocabulary: see stages/training/losses/linear_cross_entropy.py."""

FAILED = "failed"
SPARE_BYTES = 3e9
"""Left to other processes, so that the kernel ends none of them."""


def plain(hidden: Any, weight: Any, labels: Any) -> Any:
    import torch.nn.functional as F

    return F.cross_entropy(F.linear(hidden, weight), labels, reduction="sum")


def ours(hidden: Any, weight: Any, labels: Any) -> Any:
    from stages.training.losses.linear_cross_entropy import cross_entropy_sum

    return cross_entropy_sum(hidden, weight, labels)[0]


def torchs(hidden: Any, weight: Any, labels: Any) -> Any:
    import torch
    import torch.nn.functional as F

    return F.linear_cross_entropy(hidden, weight, labels, reduction="sum", options=torch.nn.LinearCrossEntropyOptions())


WAYS: Mapping[str, Callable[[Any, Any, Any], Any]] = {
    PLAIN: plain,
    "loam: cross_entropy_sum": ours,
    "F.linear_cross_entropy(options=LinearCrossEntropyOptions())": torchs,
}


def rows(vocabulary: int = VOCABULARY, tokens: int = TOKENS) -> list[dict[str, Any]]:
    """One row per way. The plain one is left out if this machine has too little memory free. All ways must agree."""
    import psutil

    found: dict[str, dict[str, float]] = {}
    table: list[dict[str, Any]] = []
    needed = NEEDED_BYTES * vocabulary * tokens + SPARE_BYTES
    for way in WAYS:
        row: dict[str, Any] = {"loss and backward": way, "peak MB above the inputs": "-", "CPU s": "-", "note": ""}
        table.append(row)
        free = psutil.virtual_memory().available
        if way == PLAIN and free < needed:
            row["note"] = f"left out: it needs about {needed / 1e9:.0f} GB, and {free / 1e9:.0f} GB are free"
            continue
        command = [sys.executable, "-m", "tests.bench.train.head_loss", way, str(vocabulary), str(tokens), str(os.getpid())]
        variables = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONPATH": str(PROJECT)}
        done = subprocess.run(command, cwd=PROJECT, env=variables, capture_output=True, text=True, check=False)
        if done.returncode:
            row["note"] = f"{FAILED} with code {done.returncode}: {done.stderr.strip().splitlines()[-1:]}"
            continue
        found[way] = json.loads(done.stdout)
        row |= {"peak MB above the inputs": f"{found[way]['bytes'] / 1e6:,.0f}", "CPU s": f"{found[way]['cpu_s']:.1f}"}
    for name in ("loss", "hidden_norm", "weight_norm"):
        values = [way[name] for way in found.values()]
        assert all(math.isclose(value, values[0], rel_tol=1e-4) for value in values), f"{name} differs: {values}"
    return table


def main(way: str, vocabulary: int, tokens: int) -> None:
    """Computes loss and gradients in this process, and prints what they took as JSON."""
    import torch

    torch.manual_seed(0)
    hidden = torch.randn(tokens, WIDTH, requires_grad=True)
    weight = torch.nn.Parameter(torch.randn(vocabulary, WIDTH).mul_(WIDTH**-0.5))
    labels = torch.randint(vocabulary, (tokens,))
    small = torch.randn(8, WIDTH, requires_grad=True), torch.randn(16, WIDTH, requires_grad=True), torch.arange(8)
    WAYS[way](*small).backward()  # imports
    before, start = resident_bytes("VmRSS"), time.process_time()
    loss = WAYS[way](hidden, weight, labels)
    loss.backward()
    cpu_s, most = time.process_time() - start, resident_bytes("VmHWM")
    assert hidden.grad is not None and weight.grad is not None
    norms = {"hidden_norm": float(hidden.grad.norm()), "weight_norm": float(weight.grad.norm())}
    print(json.dumps({"bytes": most - before, "cpu_s": cpu_s, "loss": float(loss), **norms}))


if __name__ == "__main__":
    die_with_parent(int(sys.argv[4]))
    main(sys.argv[1], int(sys.argv[2]), int(sys.argv[3]))
