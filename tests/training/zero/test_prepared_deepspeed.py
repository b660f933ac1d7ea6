"""What starting a rank does not load."""

from __future__ import annotations

import subprocess
import sys

from tests.conftest import PROJECT

START = """
import sys
from stages.training.zero.deepspeed_settings import prepare_deepspeed
prepare_deepspeed()
from deepspeed.runtime import compiler
from deepspeed.runtime.zero.muon.muon_optimizer import MuonWithAuxAdam
assert "torch._inductor.compile_fx" not in sys.modules
import torch
assert compiler.compile() is torch.compile, "what it marks from now on is compiled as ever"
"""


def test_a_rank_does_not_load_the_compiler_with_deepspeed() -> None:
    done = subprocess.run([sys.executable, "-c", START], cwd=PROJECT, capture_output=True, text=True, check=False, timeout=200)
    assert done.returncode == 0, done.stderr
