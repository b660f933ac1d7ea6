"""Delivery of events to a file or an HTTP endpoint, in order, for a sender that must not be stopped by it.

Guarantee: an event that is not taken is kept in a file beside the run's record, said once, and sent by a later run if not by this one.
Cost: one write or post per event, and at most BUDGET_S of a run, whatever the endpoint does: once it does not answer in PATIENCE_S or
cannot be reached, the run's events wait for one more attempt at its end.
Source: the HTTP transport of openlineage-python (`api/v1/lineage`, bearer token), which leaves ordering and keeping to its user.
"""

from __future__ import annotations

import json
import os
import re
import sys
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from queue import Empty, SimpleQueue
from typing import Any
from urllib.parse import urlsplit

from stages.core.contract.errors import RecipeError
from stages.core.contract.secrets import redact
from stages.core.store.files import write_durably

PATIENCE_S = 5.0
"""How long one delivery may take in all; a library's time-out starts again with each byte that drips in."""
BUDGET_S = 10.0
"""How long all deliveries of a run may take; the last PATIENCE_S are for those at its end."""
REFUSED = frozenset({400, 413, 422})
"""Answers about the event itself. All others (a wrong key, a wrong path, a broken server) are about the endpoint, and may end."""
KEPT, REFUSED_FILE = "openlineage.jsonl", "openlineage-refused.jsonl"


def check(target: str) -> None:
    """Raises RecipeError unless runtime.openlineage is empty, an http(s) URL or the path of a file that can be written."""
    where = "runtime.openlineage"
    if "://" in target:
        if not re.fullmatch(r"https?://(\[[0-9a-fA-F:]+\]|[^\s/?#:\[\]]+)(:\d{1,5})?([/?#]\S*)?", target):
            raise RecipeError(
                f"OpenLineage events cannot be sent to {redact(target)!r}.", where=where, do="Give the path of a file, or an http(s) URL."
            )
    elif target:
        path = Path(target).absolute()
        if path.is_dir() or not os.access(path if path.exists() else path.parent, os.W_OK):
            raise RecipeError(
                f"The file of OpenLineage events cannot be written: {path}",
                where=where,
                do="Name a file in a folder that exists and can be written.",
            )


def outbox(target: str, folder: Path) -> Outbox:
    """An outbox to a target as `check` allows it; what is not taken is kept in the folder of the run."""
    return Outbox(redact(target), _poster(target) if "://" in target else _appender(Path(target)), folder)


@dataclass
class Outbox:
    """Events in order to one place; those it does not take wait in memory and in the folder. `deliver` raises OSError.

    left_s: what is left of the budget. held: the endpoint did not answer, so nothing more is delivered before the end.
    """

    target: str
    deliver: Callable[[dict[str, Any]], None]
    folder: Path
    waiting: list[dict[str, Any]] = field(default_factory=list)
    left_s: float = BUDGET_S
    held: bool = False
    said: set[str] = field(default_factory=set)

    def send(self, event: dict[str, Any], last: bool = False) -> None:
        """Delivers what waits and the event, or keeps them. last: no event comes after this one in this run."""
        self.waiting.append(event)
        failure = ""
        while self.waiting and not failure and (last or not self.held):
            failure = self._deliver_first(self.left_s - (0.0 if last else PATIENCE_S))
        self._keep()
        if failure:
            self._say(
                f"openlineage: {self.target} does not take events ({redact(failure)}). They are kept in {self.folder / KEPT}, one a line, "
                "and sent at the end of this run, or by the next one that tells the same target.\n"
            )

    def take_over(self, kept: Path) -> None:
        """Puts the events that another run of this home could not deliver before those of this one.

        What cannot be read, or not be kept here, stays where it is; another run may have been quicker.
        """
        with suppress(ValueError, OSError):
            self.waiting += [json.loads(line) for line in kept.read_text(encoding="utf-8").splitlines()]
            self._write()
            kept.unlink(missing_ok=True)

    def _deliver_first(self, allowed_s: float) -> str:
        """Takes the first waiting event out by delivering it or setting it aside; else says why it still waits."""
        if allowed_s <= 0:
            self.held = True
            return f"it took {BUDGET_S - self.left_s:.0f} s of this run"
        began = time.monotonic()
        try:
            _within(min(PATIENCE_S, allowed_s), self.deliver, self.waiting[0])
        except OSError as error:  # requests' errors are OSErrors
            response = getattr(error, "response", None)
            if response is None or response.status_code not in REFUSED:
                self.held = response is None
                return str(error)
            with suppress(OSError):  # a full disk stops the run by itself
                _append(self.folder / REFUSED_FILE, self.waiting[0])
            self._say(
                f"openlineage: {self.target} refuses an event ({redact(str(error))}). Such events are kept in "
                f"{self.folder / REFUSED_FILE}, one a line, and not sent again.\n"
            )
        finally:
            self.left_s -= time.monotonic() - began
        self.waiting.pop(0)
        return ""

    def _keep(self) -> None:
        with suppress(OSError):  # a full disk stops the run by itself
            if self.waiting:
                self._write()
            else:
                (self.folder / KEPT).unlink(missing_ok=True)

    def _write(self) -> None:
        write_durably(self.folder / KEPT, "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in self.waiting))

    def _say(self, line: str) -> None:
        """Once per run for each kind of trouble."""
        kind = line.partition("(")[0]
        if kind not in self.said:
            self.said.add(kind)
            sys.stderr.write(line)


def _within(seconds: float, deliver: Callable[[dict[str, Any]], None], event: dict[str, Any]) -> None:
    """Delivers on a thread that is left behind when it takes too long: nothing else ends a name look-up or an answer that drips.

    Raises TimeoutError, or the OSError of `deliver`. The event may still arrive; sent twice, it is the same event.
    """
    outcome: SimpleQueue[OSError | None] = SimpleQueue()

    def work() -> None:
        try:
            deliver(event)
            outcome.put(None)
        except OSError as error:
            outcome.put(error)

    threading.Thread(target=work, daemon=True, name="openlineage").start()
    try:
        error = outcome.get(timeout=seconds)
    except Empty:
        raise TimeoutError(f"no answer in {seconds:g} s") from None
    if error is not None:
        raise error


def _appender(path: Path) -> Callable[[dict[str, Any]], None]:
    return lambda event: _append(path, event)


def _append(path: Path, event: dict[str, Any]) -> None:
    handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
    try:
        os.write(handle, (json.dumps(event, ensure_ascii=False) + "\n").encode())  # one call: runs at the same time do not mix lines
    finally:
        os.close(handle)


def _poster(url: str) -> Callable[[dict[str, Any]], None]:
    """Posts to a URL as the standard clients do: /api/v1/lineage where it has no path, OPENLINEAGE_API_KEY as bearer token."""
    from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport, TokenProvider

    key = os.environ.get("OPENLINEAGE_API_KEY", "")
    transport = HttpTransport(
        HttpConfig(
            url=url,
            endpoint="api/v1/lineage" if urlsplit(url).path in ("", "/") else "",
            timeout=PATIENCE_S,
            auth=ApiKeyTokenProvider({"api_key": key}) if key else TokenProvider({}),
            retry={"total": 0},
        )
    )

    def post(event: dict[str, Any]) -> None:
        transport.emit(event)  # type: ignore[arg-type]  # it serialises mappings as they are

    return post
