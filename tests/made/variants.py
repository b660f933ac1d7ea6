"""The data that tests read, in two variants of one layout: `made` for these tests, always there, and `real` where a machine has it.

Folders: crawl (CRAWL-*.warc.gz, broken.warc.gz with broken.expected.jsonl, truncated.warc.gz, real/, quirks/), text (*.jsonl with a field
`text`), bench, sft, preference. A part of the made data is written when a test first asks for it.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.made import benches, chats, warc_files
from tests.made.prose import essay

ESSAYS = 200


def write_essays(folder: Path) -> None:
    """The folder `text` of the made data: English documents such as a crawl of stories gives."""
    folder.mkdir(parents=True)
    (folder / "essays.jsonl").write_text("".join(json.dumps({"text": essay(number)}) + "\n" for number in range(ESSAYS)))


MAKERS: Mapping[str, Callable[[Path], None]] = {
    "crawl": warc_files.write_all,
    "text": write_essays,
    "bench": benches.write_all,
    "sft": chats.write_chats,
    "preference": chats.write_pairs,
}


@dataclass(frozen=True)
class Data:
    """One variant. name: made or real. folder: where its parts are, or are written."""

    name: str
    folder: Path

    def part(self, name: str) -> Path:
        """The folder of a part."""
        path = self.folder / name
        if self.name == "made" and not path.exists():
            unfinished = self.folder / f"{name}.unfinished"
            shutil.rmtree(unfinished, ignore_errors=True)  # of a maker that failed in another test
            MAKERS[name](unfinished)
            unfinished.rename(path)
        return path

    def expected(self, *, made: Any, real: Any) -> Any:
        """What a test expects of this variant."""
        return made if self.name == "made" else real

    @property
    def documents(self) -> Path:
        """A file of English documents as JSON lines."""
        return self.part("text") / self.expected(made="essays.jsonl", real="c4_demo.jsonl")

    def texts(self, count: int | None = None) -> list[str]:
        """The first of these documents."""
        return [json.loads(line)["text"] for line in self.documents.read_text().splitlines()[:count]]

    def crawls(self) -> list[Path]:
        """The sound files of the crawl, in order."""
        return sorted(self.part("crawl").glob("CRAWL-*.warc.gz"))

    def truth(self) -> dict[str, Any]:
        """What is in the made crawl; the real one has no such file."""
        return dict(json.loads((self.part("crawl") / "truth.json").read_text()))
