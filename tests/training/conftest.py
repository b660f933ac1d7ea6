"""Fixtures that several folders of tests/training use."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest


@pytest.fixture
def backwards(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that lists the names of a folder in the opposite order."""
    listed = Path.glob

    def glob(path: Path, pattern: str) -> Iterator[Path]:
        return iter(sorted(listed(path, pattern), reverse=True))

    monkeypatch.setattr(Path, "glob", glob)
