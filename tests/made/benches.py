"""Benchmark files made for the tests, in every format that Loam reads; each item names a place that no other item names.

Guarantee: the same bytes each time. Cost: milliseconds.
"""

from __future__ import annotations

import csv
import gzip
import io
import json
import tarfile
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from itertools import product
from pathlib import Path
from typing import Any

FIRST = ("Alder", "Brim", "Corn", "Dun", "Elm", "Fern", "Gorse", "Hazel", "Iron", "Juni", "Kestrel", "Lark", "Moss", "Nettle", "Oat", "Pine",
         "Quill", "Rowan", "Sedge", "Thorn")  # fmt: skip
SECOND = ("bridge", "combe", "dale", "ford", "garth", "ham", "holt", "ley", "mere", "minster", "ness", "port", "sea", "stead", "thwaite", "tor",
          "water", "wick", "wold", "worth", "brook", "burn", "field", "gate", "hurst", "leigh", "marsh", "moor")  # fmt: skip
GOODS = (
    "barrels of herring",
    "sacks of barley",
    "wheels of cheese",
    "rolls of linen",
    "crates of plums",
    "jars of honey",
    "loaves of bread",
)
PEOPLE = ("Agnes", "Bertram", "Clara", "Dietmar", "Esther", "Farouk", "Greta", "Hiroshi", "Ingrid", "Joaquim", "Katya")
ITEMS = {"town_quiz": 60, "town_quiz_easy": 60, "lettered": 40, "causes": 40, "sums": 50, "last_words": 50, "pronouns": 40, "programs": 30,
         "endings": 50}  # fmt: skip
"""Items per JSON lines file, by the name of its task."""


def places() -> Iterator[str]:
    """560 names of towns that do not exist."""
    yield from (first + second for second, first in product(SECOND, FIRST))


@dataclass(frozen=True)
class Scene:
    """What an item is about: its number, a town of its own, goods and two people."""

    n: int
    town: str
    goods: str
    person: str
    other: str


def town_quiz(s: Scene) -> dict[str, Any]:
    choices = [f"They sold {s.n + 2} {s.goods} at {s.town} and went home {when}." for when in ("early", "late", "singing", "again")]
    query = f"Question: What did the traders of {s.town} do when {s.person} closed the gate of {s.town}?\nAnswer:"
    return {"query": query, "choices": choices, "gold": s.n % 4}


def town_quiz_easy(s: Scene) -> dict[str, Any]:
    choices = [f"the {colour} {s.town} water" for colour in ("Black", "White", "Green")]
    return {"query": f"Which river flows under the old bridge of {s.town} before it reaches the sea?", "choices": choices, "gold": s.n % 3}


def lettered(s: Scene) -> dict[str, Any]:
    options = f"Choices:\nA. {s.other}\nB. {s.person}\nC. nobody\nAnswer:"
    query = f"Question: In {s.town} the fair begins when {s.person} rings the bell of {s.town}; who rings it?\n{options}"
    return {"query": query, "choices": ["A", "B", "C"], "gold": 1}


def causes(s: Scene) -> dict[str, Any]:
    choices = ["the geese came in.", f"{s.other} fell asleep."]
    return {"query": f"{s.person} left the {s.town} door open, therefore", "choices": choices, "gold": 0}


def sums(s: Scene) -> dict[str, Any]:
    count, price = s.n + 3, s.n % 9 + 2
    total = count * price
    answer = f"{s.person} pays {count} * {price} = <<{count}*{price}={total}>>{total} coins in {s.town}.\n#### {total}"
    question = f"In {s.town}, {s.person} buys {count} {s.goods} for {price} coins each. How many coins does {s.town} earn?"
    return {"question": question, "answer": answer}


def last_words(s: Scene) -> dict[str, Any]:
    context = f"{s.person} had walked all the way from {s.town} with {s.n + 2} {s.goods}. Nobody believed it, least of all the mayor of"
    return {"context": context, "continuation": f"{s.town}."}


def pronouns(s: Scene) -> dict[str, Any]:
    options = [f"{s.person} lent {s.other} the {s.town} ladder because {name}" for name in (s.person, s.other)]
    return {"context_options": options, "continuation": f"wanted to see the roofs of {s.town} from above.", "gold": s.n % 2}


def programs(s: Scene) -> dict[str, Any]:
    name = f"{s.town.lower()}_{s.n}"
    prompt = f'def {name}(values: list[int]) -> int:\n    """How many values of {s.town} are above {s.n}, counted for {s.person}."""\n'
    body = f"    return sum(value > {s.n} for value in values)  # {s.town}\n"
    return {"task_id": f"programs/{s.n}", "prompt": prompt, "canonical_solution": body, "entry_point": name}


def endings(s: Scene) -> dict[str, Any]:
    ways = [f"asks what they cost in {s.town}.", f"throws the {s.town} table into the sea.", "counts the clouds.", "is a table."]
    ctx = f"{s.person} puts {s.n + 2} {s.goods} on a table in {s.town} and waits. {s.other}"
    return {"ind": s.n, "activity_label": "Market", "ctx": ctx, "endings": ways, "label": str(s.n % 2)}


WRITERS: tuple[Callable[[Scene], dict[str, Any]], ...] = (
    town_quiz, town_quiz_easy, lettered, causes, sums, last_words, pronouns, programs, endings
)  # fmt: skip


def records(write: Callable[[Scene], dict[str, Any]], towns: Iterator[str]) -> Iterator[dict[str, Any]]:
    """The items of a task, in its format."""
    for n in range(ITEMS[write.__name__]):
        yield write(Scene(n, next(towns), GOODS[n % 7], PEOPLE[n % 11], PEOPLE[(n + 3) % 11]))


def lines(rows: Iterable[dict[str, Any]]) -> bytes:
    return "".join(json.dumps(row) + "\n" for row in rows).encode()


def table(rows: list[dict[str, Any]]) -> bytes:
    text = io.StringIO(newline="")
    writer = csv.DictWriter(text, list(rows[0]))
    writer.writeheader()
    writer.writerows(rows)
    return text.getvalue().encode()


def write_all(folder: Path) -> None:
    """The folder `bench` of the made data: JSON lines, two of them compressed, a table, and tables in an archive."""
    folder.mkdir(parents=True)
    towns = places()
    for write in WRITERS:
        task, data = write.__name__, lines(records(write, towns))
        if task in ("programs", "endings"):
            (folder / f"{task}.jsonl.gz").write_bytes(gzip.compress(data, mtime=0))
        else:
            (folder / f"{task}.jsonl").write_bytes(data)
    rows = [
        {
            "Question": f"Is it true that {town} was built upon the back of a sleeping whale?",
            "Best Answer": f"No, {town} was built on clay.",
        }
        for town in (next(towns) for _ in range(20))
    ]
    (folder / "Rumours.csv").write_bytes(table(rows))
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for subject in ("geography", "weather"):
            asked = [
                {"question": f"In which month does the {subject} teacher of {town} count the storks?", "choiceA": f"in March, at {town}",
                 "choiceB": f"in May, near {town}", "choiceC": "in June", "choiceD": "never", "answer": "AB"[n % 2]}
                for n, town in enumerate(next(towns) for _ in range(20))
            ]  # fmt: skip
            data = table(asked)
            info = tarfile.TarInfo(f"schools/{subject}.csv")
            info.size = len(data)
            archive.addfile(info, io.BytesIO(data))
    (folder / "schools_csv.tar.gz").write_bytes(gzip.compress(packed.getvalue(), mtime=0))
