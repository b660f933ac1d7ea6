"""Remote files at the limits of what is read for their identity: cases that single changed lines of core/store/external outlived."""

from __future__ import annotations

import importlib.metadata
import io
import platform
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from stages.core.contract.declaration import ExternalFile
from stages.core.contract.errors import RecipeError
from stages.core.store import external
from stages.core.store.remote import RemoteFile

URI = "https://host.example/words.txt"


def served(monkeypatch: pytest.MonkeyPatch, size: int, stream: io.RawIOBase) -> None:
    """The server states `size` and sends `stream`."""

    @contextmanager
    def opened(uri: str, compression: str | None = None, sequential: bool = False) -> Iterator[io.RawIOBase]:
        yield stream

    monkeypatch.setattr(external, "describe", lambda uri: RemoteFile(size, ""))
    monkeypatch.setattr(external, "opened", opened)


def refusal() -> str:
    with pytest.raises(RecipeError) as caught:
        external.resolve_files([URI], {}, "words.files")
    return caught.value.what


class Endless(io.RawIOBase):
    """Sends zeros as long as it is read, at most four times."""

    reads = 0

    def read(self, size: int = -1) -> bytes:
        self.reads += 1
        assert self.reads < 5, "read on although more came than was stated"
        return bytes(size)


def test_one_gibibyte_is_read_for_an_identity_and_one_byte_more_is_not(monkeypatch: pytest.MonkeyPatch) -> None:
    served(monkeypatch, 1 << 30, io.BytesIO(b"all"))
    assert "the server states 1,073,741,824 bytes and sends 3" in refusal()
    served(monkeypatch, (1 << 30) + 1, io.BytesIO(b"all"))
    assert "1,073,741,825 bytes are too many to read for it (over 1,073,741,824)" in refusal()


def test_a_stream_longer_than_stated_is_left_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    stream = Endless()
    served(monkeypatch, external.BLOCK_BYTES, stream)
    assert f"the server states {external.BLOCK_BYTES:,} bytes and sends more" in refusal()
    assert stream.reads == 2


@pytest.mark.parametrize(("said", "reason"), [("", "."), (URI, "."), ("refused", ": refused")])
def test_an_error_that_says_nothing_adds_nothing(monkeypatch: pytest.MonkeyPatch, said: str, reason: str) -> None:
    def fails(uri: str) -> RemoteFile:
        raise OSError(said)

    monkeypatch.setattr(external, "describe", fails)
    assert refusal() == f"Cannot reach {URI}{reason}"


def test_a_remote_file_is_copied_once_and_a_local_one_never(tmp_path: Path) -> None:
    import fsspec

    local = ExternalFile(str(tmp_path / "words.txt"), 3, "sha256:" + "a" * 64)
    assert external.local_path(local, tmp_path / "copies") == tmp_path / "words.txt" and not (tmp_path / "copies").exists()
    store = fsspec.filesystem("memory")
    store.pipe("/words.txt", b"one")
    remote = ExternalFile("memory://words.txt", 3, "sha256:" + "b" * 64)
    copy = external.local_path(remote, tmp_path / "copies")
    store.pipe("/words.txt", b"two")
    assert external.local_path(remote, tmp_path / "copies") == copy and copy.read_bytes() == b"one"
    assert list((tmp_path / "copies").iterdir()) == [copy]


def test_the_version_of_stdlib_is_that_of_python() -> None:
    found = external.package_versions(("stdlib", "numpy"), "words.packages")
    assert found == {"stdlib": platform.python_version(), "numpy": importlib.metadata.version("numpy")}
