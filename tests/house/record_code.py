"""Records which code each stage has: `make record-code` or `make record-code WHY="..."`. Read by test_versions.py.

A stage whose code changed needs an entry: a new line in its `versions` (its output changes, and with it every key), or the reason
why its output stays the same. Source of the rule: caches served after the code behind them was mended are what users of other
pipelines complain about most.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flows.road import road, stage_of
from stages.core.code import PROJECT, code_digest

RECORD = PROJECT / "tests" / "golden" / "stage_code.json"


def recorded(path: Path = RECORD) -> dict[str, dict[str, Any]]:
    return json.loads(path.read_text()) if path.is_file() else {}


def today() -> dict[str, dict[str, Any]]:
    """stage -> version, last line of its versions, code digest."""
    stages = {stage.name: stage for stage in map(stage_of, road())}
    return {
        name: {"version": stage.version, "entry": stage.versions[-1], "code": code_digest(stage.run.__module__)[:16]}
        for name, stage in sorted(stages.items())
    }


def without_entry(before: dict[str, dict[str, Any]], now: dict[str, dict[str, Any]]) -> list[str]:
    """Stages whose code changed although their version did not."""
    return [n for n, new in now.items() if n in before and new["code"] != before[n]["code"] and new["version"] == before[n]["version"]]


def main(why: str) -> int:
    before, now = recorded(), today()
    unchanged = without_entry(before, now)
    if unchanged and not why.strip():
        print(f"{', '.join(unchanged)}: the code changed. Does the output?")
        print('yes: add a line to `versions` of the stage.   no: say why it stays the same: make record-code WHY="..."')
        return 1
    for name in unchanged:
        now[name]["entry"] = f"the same output: {why.strip()}"
    for name, new in now.items():
        if before.get(name, {}).get("code") == new["code"]:
            now[name] = before[name]
    RECORD.write_text(json.dumps(now, indent=1) + "\n")
    print(f"{RECORD.relative_to(PROJECT)}: {len(now)} stages")
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
