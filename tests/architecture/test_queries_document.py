"""The results in QUERIES.md: how they are made from a home, and when they are stale."""

from __future__ import annotations

from pathlib import Path

from stages.record.index import database
from tests.architecture.write_queries import BLOCK, QUERIES, rewritten, stale
from tests.conftest import run_stage
from tests.record.toys import WORDS

TEXT = """Nodes:

```sql
SELECT node, rows FROM artifact ORDER BY node;
```

```
old
```

More text.
"""


def test_a_result_is_what_the_command_prints_and_the_text_around_it_stays(tmp_path: Path) -> None:
    run_stage(WORDS, {}, {}, tmp_path)
    database.update(tmp_path)
    assert rewritten(TEXT, tmp_path) == TEXT.replace("old\n", "node   rows\nwords     3\n")


def test_every_query_of_the_document_has_a_result() -> None:
    text = QUERIES.read_text()
    assert len(BLOCK.findall(text)) == text.count("```sql\n") == 5 and stale(text, text) == []


def test_a_shorter_run_other_columns_names_and_numbers_are_stale_and_last_digits_are_not() -> None:
    def shown(*lines: str) -> str:
        return TEXT.replace("old\n", "".join(f"{line}\n" for line in lines))

    steps = shown("step  loss", " 100  6.34", " 200  4.98")
    assert stale(steps, shown("step  loss", " 100  6.31", " 200  5.01")) == []
    for other in (
        shown("step  loss", " 100  6.34"),
        shown("step  loss", " 100  6.34", " 201  4.98"),
        shown("step  bits", " 100  6.34", " 200  4.98"),
        shown("step  loss", " 100  6.34", " 200  3.98"),
    ):
        assert len(stale(steps, other)) == 1 and len(stale(other, steps)) == 1
    nodes = shown("node  rows  digest", "mix  1,200  9a198ecfded9")
    assert stale(nodes, shown("node  rows  digest", "mix  1,201  000000000000")) == []
    assert stale(nodes, shown("node  rows  digest", "sft  1,200  9a198ecfded9")) == ["mix 1,200 9a198ecfded9 is now sft 1,200 9a198ecfded9"]
