"""How often the host waits for the device in a step under DeepSpeed."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from tests.conftest import PROJECT


def test_no_micro_batch_makes_the_host_wait(tmp_path: Path) -> None:
    """Four micro-batches. On a GPU, only update_gate.py and utils.py wait for the device; the others read tensors that are on the CPU there too."""
    done = subprocess.run(
        [sys.executable, "-m", "tests.training.toys.host_waits", str(tmp_path)], cwd=PROJECT, env={**os.environ, "PYTHONPATH": str(PROJECT)},
        capture_output=True, text=True, timeout=200, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stderr[-2000:]
    found = json.loads(done.stdout.splitlines()[-1])
    assert found.pop("attention.py") == 2 * 4, "the CPU's operator of attention; a GPU has another"
    assert found == {
        "engine.py": 1,  # reduce_on_host, which reads the CPU
        "update_gate.py": 1,  # losses and norm together
        "utils.py": 1,  # DeepSpeed's own check of the norm, after the gate
    }
