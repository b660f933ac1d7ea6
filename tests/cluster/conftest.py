"""The corpus that every engine makes, and what the local engine makes of it."""

from __future__ import annotations

import json
import signal
from collections.abc import Iterator

import pytest

from tests.cluster.corpus import built, said, started, workers
from tests.cluster.slurm_servers import Cluster, missing
from tests.made.variants import Data


@pytest.fixture(scope="session", autouse=True)
def end_by_sigterm() -> Iterator[None]:
    """SIGTERM ends the session as Ctrl-C does, so that the fixtures stop their servers."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    yield
    signal.signal(signal.SIGTERM, before)


@pytest.fixture(scope="session")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Cluster]:
    """A running Slurm of two nodes."""
    assert not (why := missing()), f"no Slurm can be started here: {why}"
    servers = Cluster(tmp_path_factory.mktemp("slurm") / "c")
    try:
        servers.start()
        yield servers
    finally:
        servers.stop_all()
        for process in workers(tmp_path_factory.getbasetemp()):
            process.kill()


@pytest.fixture(scope="session")
def recipe(made: Data) -> tuple[str, ...]:
    """The words of `loam run` for a corpus of the made crawl."""
    warcs = sorted(str(path) for path in made.part("crawl").glob("CRAWL-*.warc.gz"))
    assert len(warcs) > 1
    return (
        "run", "corpus", "--until", "mix", "--set", f"crawl.warcs={json.dumps(warcs)}", "--set", "train_tokenizer.vocab_size=600",
        "--set", "mix.seq_len=128", "--set", "mix.validation_frac=0.05",
    )  # fmt: skip


@pytest.fixture(scope="session")
def expected(recipe: tuple[str, ...], tmp_path_factory: pytest.TempPathFactory) -> dict[str, tuple[str, str]]:
    """Node -> (key, digest) of the local run."""
    home = tmp_path_factory.mktemp("local")
    assert started(recipe, home).wait(timeout=1200) == 0, said(home)
    return built(home)
