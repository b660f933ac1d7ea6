"""Kills `loam run` with SIGKILL at thirty moments, every node at least once. The result is that of a run without kills; nothing is left.

Only the run's own process is killed, so that what it leaves is tested. The moments are drawn with a fixed seed: one within
each node, the rest within nodes drawn by how long they take. Every seventh run has a Prefect server.
"""

from __future__ import annotations

import random
import shutil
import subprocess
import time
from pathlib import Path

import pytest

from tests.chaos.pipeline import held, outcome, remains, shared_environment, start, wait_until_gone, words
from tests.conftest import loam, nodes_of

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(1800)]

KILLS = 30
SERVER_EVERY = 7
GONE_WITHIN_S = 10


def moments(seconds: dict[str, float]) -> list[tuple[str, float]]:
    """(node, seconds after it began) of every kill, in pipeline order: each node once, and more where more time passes."""
    draw = random.Random(20_260)
    nodes = nodes_of("tiny")
    extra = draw.choices(nodes, weights=[seconds[node] for node in nodes], k=KILLS - len(nodes))
    return [(node, draw.uniform(0.0, max(0.0, 0.8 * seconds[node] - 0.1))) for node in nodes for _ in range(1 + extra.count(node))]


def kill_within(run: subprocess.Popen[bytes], home: Path, node: str, after_s: float) -> str:
    """Kills the run that many seconds after the node began; returns what was really hit."""
    while node not in held(home):
        if run.poll() is not None:
            return "nothing"
        time.sleep(0.002)
    time.sleep(after_s)
    hit = held(home)
    run.kill()
    run.wait(timeout=60)
    return hit[0] if hit else "between nodes"


def forget(home: Path, node: str) -> str:
    """Removes the node's artifact where a kill came after its publication, so that the node is built again and can be hit."""
    if not (found := list((home / "artifacts" / node).glob("*/"))):
        return ""
    for artifact in found:
        shutil.rmtree(artifact)
    loam("lineage", "reindex", home=home)
    return "built again; "


def test_thirty_kills_change_nothing(never_killed: tuple[dict, dict[str, float]], tmp_path: Path, mark: str) -> None:
    expected, seconds = never_killed
    home, said = tmp_path / "home", tmp_path / "said.txt"
    table, hits, began = [], [], time.monotonic()
    for node, after_s in moments(seconds):
        for attempt in range(4):  # a node that was over sooner than in the calm run is built again and hit earlier
            removed = forget(home, node)
            server = len(hits) % SERVER_EVERY == SERVER_EVERY - 1
            run = start(["-m", "flows.cli", *words(home), *["--prefect"] * server], mark, said, shared_environment())
            hit = kill_within(run, home, node, after_s / 4**attempt)
            killed = time.monotonic()
            left = wait_until_gone(mark, GONE_WITHIN_S)
            assert not left, f"after a kill in {hit}: {left}"
            gone_s = time.monotonic() - killed
            assert not held(home), "a lease is held by nobody alive"
            went_on = next((line.split("continues")[1] for line in said.read_text().splitlines() if "continues from" in line), "")
            hits.append(hit)
            table.append(
                f"{len(hits):>4}  {node:<16} {after_s / 4**attempt:6.2f}  {hit:<16} {gone_s:5.1f}  {'yes' if server else 'no':<6}"
                f"  {removed}{'went on' + went_on if went_on else ''}"
            )
            if hit == node:
                break
    last = start(["-m", "flows.cli", *words(home)], mark, said, shared_environment())
    assert last.wait(timeout=600) == 0, said.read_text()[-3000:]
    print("\nkill  aimed at     after (s)  hit          gone (s)  server  the run before it\n" + "\n".join(table))
    print(f"{len(hits)} kills, {len(set(hits) & set(nodes_of('tiny')))} nodes hit, {time.monotonic() - began:.0f} s in all")
    assert outcome(home) == expected
    assert set(hits) >= set(nodes_of("tiny")) and len(hits) >= KILLS, "some node was never hit"
    assert not wait_until_gone(mark, GONE_WITHIN_S)
    assert not remains(home)
    assert ", 0 differ" in loam("lineage", "verify", home=home).stdout
