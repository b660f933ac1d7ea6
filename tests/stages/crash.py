"""An extract worker whose process dies by SIGSEGV at the page that contains CRASH."""

from __future__ import annotations

import os
import signal
from pathlib import Path
from typing import Any

from stages.corpus.extract import html, visible_text
from stages.record.tables import shards


def crash_at(work: shards.ShardFunction, folder: Path, task: Any) -> None:
    """Runs the work of a worker on one shard, with a parser that crashes."""
    parse = html.parse

    def crashing(page: str, *limits: Any, **prepared: Any) -> Any:
        if "CRASH" in page:
            os.kill(os.getpid(), signal.SIGSEGV)
        return parse(page, *limits, **prepared)

    html.parse = visible_text.parse = crashing  # type: ignore[assignment]
    shards._one(work, folder, task)
