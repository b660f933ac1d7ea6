"""Where real crawls, chats, preferences and benchmarks are, if this machine has them: the only file that looks outside the repository.

The environment variable LOAM_REAL_DATA names the folder; without it, the folder beside the repository is looked for. Its layout is that
of the made data (tests/made/variants.py). Nothing depends on it: tests take the fixture `data`, which gives the made data always and the
real data where they are.
"""

from __future__ import annotations

import os
from pathlib import Path

PROJECT = Path(__file__).resolve().parents[2]
VARIABLE = "LOAM_REAL_DATA"
NOT_HERE = "real variant: there is no real data on this machine"
"""Why a test skips its `real` variant."""


def real_folder() -> Path:
    """The folder of the real data, which need not exist."""
    return Path(os.environ.get(VARIABLE) or PROJECT.parent / "shared" / "corpora")
