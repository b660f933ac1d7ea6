"""Records which code each stage has: `make record-code` or `make record-code WHY="..."`. Writes stages/core/contract/stage_code.json.

A stage whose code changed needs an entry: a new line in its `versions` (its output changes, and with it every key), or the reason
why its output stays the same. Lines are added and never taken away: every digest listed for a version gives that version's output,
so the key takes the version for all of them. Source of the rule: caches served after the code behind them was mended are what users
of other pipelines complain about most.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

from flows.pipeline import pipeline, stage_of
from stages.core.contract.source_code import DIGITS, PROJECT, RECORD, code_digest

Lines = dict[str, list[dict[str, Any]]]


def recorded(path: Path = RECORD) -> Lines:
    """Stage -> lines (version, code, entry), the newest last."""
    return json.loads(path.read_text(encoding="utf-8")) if path.is_file() else {}


def today() -> dict[str, dict[str, Any]]:
    """Stage -> the line that it would have now: version, code digest, last line of its versions."""
    stages = {stage.name: stage for stage in map(stage_of, pipeline())}
    return {
        name: {"version": stage.version, "code": code_digest(*stage.modules)[:DIGITS], "entry": stage.versions[-1]}
        for name, stage in sorted(stages.items())
    }


def unlisted(before: Lines, now: dict[str, dict[str, Any]]) -> list[str]:
    """Stages whose code is not listed for their version."""
    return [
        name
        for name, new in now.items()
        if not any((o["version"], o["code"]) == (new["version"], new["code"]) for o in before.get(name, ()))
    ]


def without_entry(before: Lines, now: dict[str, dict[str, Any]]) -> list[str]:
    """Stages whose code changed although their version did not."""
    return [name for name in unlisted(before, now) if any(old["version"] == now[name]["version"] for old in before.get(name, ()))]


def main(why: str) -> int:
    before, now = recorded(RECORD), today()
    unchanged = without_entry(before, now)
    if unchanged and not why.strip():
        print(f"{', '.join(unchanged)}: the code changed. Does the output?")
        print('yes: add a line to `versions` of the stage.   no: say why it stays the same: make record-code WHY="..."')
        return 1
    for name in unchanged:
        now[name]["entry"] = f"the same output: {why.strip()}"
    for name in unlisted(before, now):
        before.setdefault(name, []).append(now[name])
    kept = {name: before[name] for name in sorted(before) if name in now}
    stages = (f" {json.dumps(name)}: [\n" + ",\n".join(f"  {json.dumps(line)}" for line in lines) + "\n ]" for name, lines in kept.items())
    RECORD.write_text("{\n" + ",\n".join(stages) + "\n}\n", encoding="utf-8")
    print(f"{RECORD.relative_to(PROJECT)}: {len(kept)} stages")
    return 0


if __name__ == "__main__":
    sys.exit(main(" ".join(sys.argv[1:])))
