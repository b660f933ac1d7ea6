"""English texts that each break one rule of the filter at its papers' thresholds and no rule before it, by the reason to expect.

The reasons and thresholds are those of Gopher, C4 and FineWeb as datatrove has them; what a text is dropped for is asked of datatrove itself
in tests/corpus/filter/test_signals.py. Guarantee: the same number gives the same texts.
"""

from __future__ import annotations

import random
from collections.abc import Iterator

from tests.made.prose import essay, sentences

SHORT = ["Read on.", "Go home now.", "Back to top."]
SYLLABLES = ("ba", "ro", "mi", "ten", "lu", "sar", "ko", "ve", "dri", "na", "pol", "gu", "shi", "fa", "wen", "zo")
BRIEF = [
    "to",
    "of",
    "be",
    "it",
    "an",
    "in",
    "on",
    "at",
    "by",
    "we",
    "he",
    "so",
    "no",
    "up",
    "us",
    "as",
    "or",
    "if",
    "my",
    "go",
    "do",
    "me",
    "ox",
    "am",
    "is",
]
LONG = [
    "neighbourhoods",
    "manufacturers",
    "misunderstandings",
    "entertainments",
    "administrations",
    "constellations",
    "refrigerators",
    "photographers",
]
COMPANIES = ("Northamptonshire", "Southwesternmost", "Constantinopolitan", "Mediterraneanwide", "Transcontinental", "Intercontinental")


def words(draw: random.Random, count: int) -> list[str]:
    """Words that do not exist, of two or three syllables."""
    return ["".join(draw.choices(SYLLABLES, k=draw.choice([2, 3]))) for _ in range(count)]


def lines(number: int, count: int = 12) -> list[str]:
    """A sentence a line, none of them twice."""
    return list(sentences("en", count, f"lines/{number}"))


def repeated(number: int, length: int, share: float) -> str:
    """A text in which distinct runs of so many words come twice; their second occurrences make this share of its words."""
    draw = random.Random(f"repeated/{length}/{number}")
    total = 600
    runs = [words(draw, length) for _ in range(round(total * share / length))]
    others = [words(draw, 10) for _ in range((total - 2 * length * len(runs)) // 10)]
    mixed = [*runs, *runs, *others]
    draw.shuffle(mixed)
    return " ".join(f"{' '.join(part)} {draw.choice(SYLLABLES)}" for part in mixed) + "."


def crowded(number: int, length: int, share: float) -> str:
    """A text in which one run of so many words makes this share of the characters, each time between other words."""
    draw = random.Random(f"crowded/{length}/{number}")
    run = " ".join(words(draw, length))
    parts = []
    for _ in range(30):
        other = words(draw, 2)
        while len(" ".join(other)) < len(run) * (1 - share) / share:
            other += words(draw, 1)
        parts.append(f"{run} {' '.join(other)}")
    return " ".join(parts) + "."


def repetitions(number: int) -> Iterator[tuple[str, str]]:
    """Gopher's rules on what comes again."""
    own, twice = lines(number), " ".join(lines(number + 500, 6))
    yield "dup_para_frac", "\n\n".join([*own[:6], *[SHORT[0]] * 3, *[SHORT[1]] * 3])
    yield "dup_para_char_frac", "\n\n".join([*own, twice, twice])
    yield "dup_line_frac", "\n".join([*own[:8], *[SHORT[0]] * 3, *[SHORT[2]] * 4])
    yield "dup_line_char_frac", "\n".join([*own, twice, twice])
    for length, share in ((2, 0.24), (3, 0.21), (4, 0.19)):
        yield f"top_{length}_gram", crowded(number, length, share)
    for length, share in ((5, 0.212), (6, 0.186), (7, 0.168), (8, 0.156), (9, 0.144), (10, 0.132)):
        yield f"duplicated_{length}_n_grams", repeated(number, length, share)


def qualities(number: int) -> Iterator[tuple[str, str]]:
    """Gopher's rules on words, symbols and lines."""
    draw, own = random.Random(f"qualities/{number}"), lines(number)
    plain = " ".join(own).split()
    yield "short_doc", " ".join(own[:2])
    yield "below_avg_threshold", " ".join(draw.choices(BRIEF, k=160)) + "."
    yield "above_avg_threshold", " ".join(a + b for a, b in zip(draw.choices(LONG, k=80), words(draw, 80), strict=True)) + "."
    yield "too_many_hashes", " ".join(f"# {word}" if at % 4 == 0 else word for at, word in enumerate(plain))
    yield "too_many_ellipsis", " ".join(f"{word} ..." if at % 4 == 0 else word for at, word in enumerate(plain))
    yield "too_many_bullets", "\n".join(f"{'•-'[at % 2]} {line}" for at, line in enumerate(own))
    yield "too_many_end_ellipsis", "\n".join(line[:-1] + "..." if at % 2 else line for at, line in enumerate(own))
    yield "below_alpha_threshold", " ".join(f"{word} {draw.randrange(10**5)}" if at % 2 else word for at, word in enumerate(plain))
    yield "enough_stop_words", " ".join(words(draw, 120)) + "."


def shapes(number: int) -> Iterator[tuple[str, str]]:
    """C4's rules on documents, FineWeb's on lines."""
    draw, own = random.Random(f"shapes/{number}"), lines(number)
    yield "c4.lorem_ipsum", "\n".join([*own[:5], "Here stood Lorem Ipsum until somebody wrote the page."])
    yield "c4.curly_bracket", "\n".join([*own[:5], "The braces { and } belong to a program."])
    yield "c4.too_few_sentences", "\n".join([*own[:2], *(line[:-1] for line in own[2:])])
    yield "fineweb.line_punct_ratio", "\n".join(f"{line[:-1]}, he said \"{line.split()[-2]} it was'" for line in own)
    yield (
        "fineweb.short_line_ratio",
        "\n".join([f"The {a} saw {b}." for a, b in zip(words(draw, 30), words(draw, 30), strict=True)] + own[:4]),
    )
    register = [
        f"{draw.choice(COMPANIES)} {word.title()}casting Inc." if at % 2 else f"By {word} Ltd."
        for at, word in enumerate(dict.fromkeys(words(draw, 200)))
    ]
    yield "fineweb.list_ratio", "\n".join([*register, *own[:2]])
    yield "fineweb.char_dup_ratio", "\n".join([*own, own[0]])


def broken(number: int) -> dict[str, str]:
    """A text per reason, by the name that the filter gives it."""
    found = {f"gopher_repetition.{reason}": text for reason, text in repetitions(number)}
    found |= {f"gopher_quality.{reason}": text for reason, text in qualities(number)}
    return found | dict(shapes(number))


def edited(number: int) -> list[str]:
    """Texts that stay, of which C4 takes a line each: no full stop, too few words, a script, a policy, a citation, a word without end."""
    own = "\n".join(lines(number, 20))
    extra = ("A line that never ends", "Too few.", "Please enable JavaScript to see the comments.", "Our privacy policy is on the next page.",
             "The ferry sank twice [3].", f"It was {'very' * 251} long, they say.", "He left...")  # fmt: skip
    return [f"{own}\n{line}" for line in extra]


def long_text(number: int, count: int) -> str:
    """More words than a document may have, none of them in a run that comes again."""
    draw = random.Random(f"long/{number}")
    return "\n".join(f"The {' '.join(words(draw, 18))}." for _ in range(count // 20))


def judged() -> list[str]:
    """What the filter's rules are compared on: texts that break each rule, texts that lose lines, and documents as they come."""
    return [*(text for number in range(2) for text in broken(number).values()), *edited(0), *edited(1), *(essay(n) for n in range(35))]
