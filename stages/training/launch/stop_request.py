"""The launcher's request that the ranks stop after their step: a file `stop` in the scratch folder.

It is a file and not a signal, because a signal to the process group reaches the ranks too, at another moment each. The first rank looks at
the file in every step, and the ranks agree on the answer in a sum that they make anyway.
Guarantee: a request holds for one start of the ranks; the launcher withdraws it before it starts them.
Cost: one stat per step.
"""

from __future__ import annotations

from pathlib import Path


def stop_path(scratch: Path) -> Path:
    """Returns the path of the request."""
    return scratch / "stop"


def request_stop(scratch: Path) -> None:
    """Asks the ranks to save a snapshot after their step and to leave."""
    stop_path(scratch).touch()


def withdraw_stop(scratch: Path) -> None:
    """Removes a request of an earlier start."""
    stop_path(scratch).unlink(missing_ok=True)


def stop_requested(scratch: Path) -> bool:
    """Returns whether the ranks are to stop."""
    return stop_path(scratch).exists()
