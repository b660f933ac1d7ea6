"""Says in words what a stage would continue from in its scratch folder, for `loam lineage gc` and `loam runs delete`.

Cost: the names of the files there; none is read.
"""

from __future__ import annotations

from pathlib import Path

from stages.training.checkpoints.snapshot_folders import root, steps_in

BAD_RECORDS = "bad_records.jsonl"


def scratch_content(folder: Path) -> tuple[str, str]:
    """Returns what a scratch folder holds, and how far it is.

    Args:
        folder: The scratch folder of a node. Its `work` is the stage's `Context.scratch`.

    Returns:
        ("snapshot", "step 855") of a training, ("12 finished shards", "") of sharded work, ("journal", "") of a crawl, ("list of bad records",
        "") of a stage that refused some, ("scratch files", "") of anything else.
    """
    work = folder / "work"
    if steps := steps_in(root(work)):
        return "snapshot", f"step {steps[-1]}"
    if shards := len(list(work.glob("*/[0-9][0-9][0-9][0-9][0-9]/result.json"))):
        return f"{shards} finished shard{'s' * (shards > 1)}", ""
    if folder.name.startswith("crawl-") and any(path.name != BAD_RECORDS for path in work.glob("*.jsonl")):
        return "journal", ""
    return ("list of bad records" if (work / BAD_RECORDS).is_file() else "scratch files"), ""
