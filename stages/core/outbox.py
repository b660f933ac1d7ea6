"""Delivery of events to a file or an HTTP endpoint, in order, for a sender that must not be stopped by it.

Guarantee: an event that is not taken is kept in a file beside the run's record, said once, and tried again with each later one.
Cost: one write or post per event; at most 10 s each while an endpoint does not answer.
Source: the HTTP transport of openlineage-python (`api/v1/lineage`, bearer token), which leaves ordering and keeping to its user.
"""

from __future__ import annotations

import json
import os
import re
import sys
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from stages.core.errors import RecipeError
from stages.core.files import write_durably
from stages.core.secrets import redact

TIMEOUT_S = 5.0


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


def outbox(target: str, kept: Path) -> Outbox:
    """An outbox to a target as `check` allows it."""
    return Outbox(redact(target), _poster(target) if "://" in target else _appender(Path(target)), kept)


@dataclass
class Outbox:
    """Events in order to one place; those it does not take wait in memory and in the file `kept`. `deliver` raises OSError."""

    target: str
    deliver: Callable[[dict[str, Any]], None]
    kept: Path
    waiting: list[dict[str, Any]] = field(default_factory=list)
    said: bool = False

    def send(self, event: dict[str, Any]) -> None:
        """Delivers what waits and the event. One that is refused by the endpoint (4xx) holds up no other."""
        queue, self.waiting, failure = [*self.waiting, event], [], ""
        while queue:
            try:
                self.deliver(queue[0])
            except OSError as error:  # requests' errors are OSErrors
                failure = str(error)
                response = getattr(error, "response", None)
                if response is None or response.status_code >= 500:
                    break
                self.waiting.append(queue[0])
            queue.pop(0)
        self.waiting += queue
        with suppress(OSError):  # a full disk stops the run by itself
            if self.waiting:
                write_durably(self.kept, "".join(json.dumps(e, ensure_ascii=False) + "\n" for e in self.waiting))
            else:
                self.kept.unlink(missing_ok=True)
        if failure and not self.said:
            self.said = True
            sys.stderr.write(
                f"openlineage: {self.target} does not take events ({redact(failure)}). They are kept in {self.kept}, one a line, "
                "and sent again with each later event of this run.\n"
            )


def _appender(path: Path) -> Callable[[dict[str, Any]], None]:
    def append(event: dict[str, Any]) -> None:
        handle = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o644)
        try:
            os.write(handle, (json.dumps(event, ensure_ascii=False) + "\n").encode())  # one call: runs at the same time do not mix lines
        finally:
            os.close(handle)

    return append


def _poster(url: str) -> Callable[[dict[str, Any]], None]:
    """Posts to a URL as the standard clients do: /api/v1/lineage where it has no path, OPENLINEAGE_API_KEY as bearer token."""
    from openlineage.client.transport.http import ApiKeyTokenProvider, HttpConfig, HttpTransport, TokenProvider

    key = os.environ.get("OPENLINEAGE_API_KEY", "")
    transport = HttpTransport(
        HttpConfig(
            url=url,
            endpoint="api/v1/lineage" if urlsplit(url).path in ("", "/") else "",
            timeout=TIMEOUT_S,
            auth=ApiKeyTokenProvider({"api_key": key}) if key else TokenProvider({}),
            retry={"total": 1, "backoff_factor": 0.3},
        )
    )

    def post(event: dict[str, Any]) -> None:
        transport.emit(event)  # type: ignore[arg-type]  # it serialises mappings as they are

    return post
