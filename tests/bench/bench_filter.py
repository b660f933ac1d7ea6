"""Filtering: our rules against datatrove's own chain, on the same pages of the real crawl, one core, alternating.

`python -m tests.bench.bench_filter` prints the table; `--all` also compares every verdict of the crawl (about ten minutes of real pages).
Ours computes every signal of every page; datatrove stops at the first rule that drops a page. Times are CPU seconds of this process; the
first call of both is not counted (imports; numba's compilation, which is kept on the disk).
"""

from __future__ import annotations

import random
import statistics
import sys
import time
from collections.abc import Callable, Mapping
from typing import Any

from tests.bench.probe import probe

PAGES, REPEATS = 700, 3


def datatrove_chain(given: Mapping[str, Mapping[str, Any]] | None = None) -> Callable[[str], tuple[str, str]]:
    """Returns (first reason or "", text) by datatrove's classes, stopping at the first drop.

    Args:
        given: Settings that are not their defaults, under the filter's names.
    """
    from datatrove.data import Document
    from datatrove.pipeline.filters.c4_filters import C4QualityFilter
    from datatrove.pipeline.filters.fineweb_quality_filter import FineWebQualityFilter
    from datatrove.pipeline.filters.gopher_quality_filter import GopherQualityFilter
    from datatrove.pipeline.filters.gopher_repetition_filter import GopherRepetitionFilter

    classes = {"gopher_repetition": GopherRepetitionFilter, "gopher_quality": GopherQualityFilter, "c4": C4QualityFilter,
               "fineweb": FineWebQualityFilter}  # fmt: skip
    chain = []
    for name, maker in classes.items():
        values = {
            key: tuple(sorted(value.items())) if key.endswith("_n_grams") else value for key, value in (given or {}).get(name, {}).items()
        }
        if "stop_words" in values:  # for English, which all texts are here
            values["stop_words"] = values["stop_words"]["en"]
        if "min_alpha_words_ratio" in values:
            values["max_non_alpha_words_ratio"] = values.pop("min_alpha_words_ratio")
        chain.append((name, maker(**values)))

    def judge(text: str) -> tuple[str, str]:
        document = Document(text=text, id="")
        for name, rule in chain:
            result = rule.filter(document)
            if result is not True:
                return f"{name}.{result[1].removeprefix('gopher_')}", text
        return "", document.text

    return judge


def our_chain() -> Callable[[str], tuple[str, str]]:
    """The same by the signals and rules of the filter stage, with an empty memory of words."""
    from stages.corpus.filter.filter_rule import applied, first_reason
    from stages.corpus.filter.rules import RULES
    from stages.corpus.filter.signals import make_measure, text_signals
    from stages.corpus.filter.stage import FilterConfig

    config = FilterConfig.model_validate({"url": {"enabled": False}, "languages": [], "min_lang_score": 0})
    measure, rules = make_measure(config), applied(RULES, config.model_dump(mode="json"))

    def judge(text: str) -> tuple[str, str]:
        signals, edited = text_signals(text, "en", measure)
        reason = first_reason({**signals, "lang": "", "lang_score": 1.0, "quality_score": None}, rules)
        return reason, text if reason else edited

    return judge


def rows() -> list[dict[str, Any]]:
    """Cold and warm against datatrove, medians of three runs in turn."""
    from tests.bench.corpus import texts_and_urls

    texts = texts_and_urls()[0]
    texts = random.Random(4).sample(texts, min(PAGES, len(texts)))
    warm_up = "A page to begin with. It has lines.\nAnd another one."
    peer = datatrove_chain()
    peer(warm_up)
    our_chain()(warm_up)
    times: dict[str, list[float]] = {"peer": [], "cold": [], "warm": []}
    for _ in range(REPEATS):
        ours = our_chain()
        for name, judge in (("peer", peer), ("cold", ours), ("warm", ours)):
            start = time.process_time()
            found = [judge(text) for text in texts]
            times[name].append(time.process_time() - start)
            if name == "peer":
                expected = found
            assert found == expected, "a verdict differs"
    megabytes = sum(len(text.encode()) for text in texts) / 1e6
    median = {name: statistics.median(values) for name, values in times.items()}
    table = []
    for name, what, bar in (("cold", "no word known", 5.0), ("warm", "all words known", 8.0)):
        ratio = statistics.median(p / o for p, o in zip(times["peer"], times[name], strict=True))
        table.append({
            "part": "filter", "what": f"Gopher, C4 and FineWeb rules, {what}", "ours": f"{megabytes / median[name]:.2f} MB/s",
            "peer": f"datatrove {megabytes / median['peer']:.2f} MB/s", "ratio": round(ratio, 1), "bar": bar, "reached": ratio >= bar,
        })  # fmt: skip
    return table


def compare_all() -> str:
    """Every verdict and every kept text of the crawl."""
    from tests.bench.corpus import texts_and_urls

    texts = texts_and_urls()[0]
    peer, ours = datatrove_chain(), our_chain()
    differ = sum(peer(text) != ours(text) for text in texts)
    return f"{len(texts):,} pages: {differ} verdicts or texts differ"


def main() -> None:
    from tests.bench.corpus import described

    print(f"{probe()}\n{described()}")
    for row in rows():
        print("  ".join(f"{name} {value}" for name, value in row.items()))
    if "--all" in sys.argv:
        print(compare_all())


if __name__ == "__main__":
    main()
