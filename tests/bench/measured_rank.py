"""A training rank that notes its memory: `python -m tests.bench.measured_rank JOB PARENT_PID`.

It writes the most memory that it has had resident, in bytes, into memory-<rank>.txt in the job's scratch folder.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

from stages.record.processes import resident_bytes
from stages.training.job.job import read_job
from stages.training.loop import rank

if __name__ == "__main__":
    code = rank.main(sys.argv[1:])
    (Path(read_job(Path(sys.argv[1])).scratch) / f"memory-{os.environ['RANK']}.txt").write_text(str(resident_bytes("VmHWM")))
    sys.exit(code)
