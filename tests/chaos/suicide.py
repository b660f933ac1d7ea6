"""A run that kills itself just before its n-th call of a function that changes a folder: `python -m tests.chaos.suicide N HOME`.

N = 0 never. It walks as `loam run` does, without Prefect, so that hundreds of moments can be
tried; the last line tells how many such calls a whole run makes.
"""

from __future__ import annotations

import os
import signal
import sys
from collections.abc import Callable
from functools import wraps
from typing import Any

WATCHED = ("rename", "replace", "link", "unlink", "rmdir", "mkdir", "fsync")
UNTIL = "conversations"
SETTINGS = ["benchmarks.docstrings.packages=[datasketch]", "benchmarks.docstrings.items=5", "conversations.docstrings.what=5",
            "conversations.docstrings.complete=5"]  # fmt: skip


def main(nth: int, home: str) -> None:
    """Walks two small nodes with every watched function counted."""
    from flows.execute import run_nodes
    from flows.opened_recipe import open_session

    session = open_session("tiny", SETTINGS, home)
    calls = [0]

    def counted(function: Callable[..., Any]) -> Callable[..., Any]:
        @wraps(function)
        def call(*values: Any, **named: Any) -> Any:
            calls[0] += 1
            if calls[0] == nth:
                os.kill(os.getpid(), signal.SIGKILL)
            return function(*values, **named)

        return call

    for name in WATCHED:
        setattr(os, name, counted(getattr(os, name)))
    run_nodes(session, session.steps(UNTIL), lambda node, perform: perform(lambda event: None), {"flow": "pretrain", "until": UNTIL})
    print(calls[0])


if __name__ == "__main__":
    main(int(sys.argv[1]), sys.argv[2])
