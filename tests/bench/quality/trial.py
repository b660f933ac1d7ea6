"""The process of one training: `python -m tests.bench.quality.trial CONTESTANT TOKENS SEED CORPUS FOLDER CHANGES PARENT_PID`.

Writes FOLDER/result.json: nats and bits per byte of the validation text, FLOPs, CPU seconds, peak memory.
"""

from __future__ import annotations

import json
import os
import resource
import sys
from pathlib import Path

from stages.record.processes import die_with_parent, resident_bytes
from tests.bench.quality.contestants import CONTESTANTS, Trial, finished
from tests.bench.quality.wikitext import Corpus


def main(contestant: str, tokens: str, seed: str, corpus: str, folder: str, changes: str, parent: str) -> None:
    """Runs it."""
    die_with_parent(int(parent))
    trial = Trial(Corpus(Path(corpus)), int(tokens), int(seed), Path(folder), json.loads(changes))
    values = finished(CONTESTANTS[contestant].run(trial), trial.corpus)
    used = [resource.getrusage(who) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN)]
    values |= {"cpu_s": sum(one.ru_utime + one.ru_stime for one in used), "peak_bytes": resident_bytes("VmHWM")}
    partial = Path(folder) / "result.partial"
    partial.write_text(json.dumps(values) + "\n")
    os.replace(partial, Path(folder) / "result.json")


if __name__ == "__main__":
    main(*sys.argv[1:])
