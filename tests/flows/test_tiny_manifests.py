"""Loam's own manifests, of every kind that the pipeline makes, keep the schema and contradict nothing."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.pipeline import pipeline, stage_of
from stages.record.store import manifest_schema
from tests.conftest import nodes_of

pytestmark = pytest.mark.long


def test_every_manifest_of_a_whole_run_is_as_one_of_others_must_be(tiny_home: Path) -> None:
    kinds = set()
    for path in sorted(tiny_home.glob("artifacts/*/*/manifest.json")):
        record = manifest_schema.parsed(path.read_bytes())
        assert manifest_schema.misplaced(record, path.parent.parent.name, path.parent.name) == ""
        assert manifest_schema.contradictions(record, record["files"]) == [], path
        kinds.add(record["kind"])
    assert kinds == {stage_of(node).output for node in pipeline() if node.name in nodes_of("tiny")}
