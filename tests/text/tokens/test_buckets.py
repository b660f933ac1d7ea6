"""Buckets of documents, document by document."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from uuid import UUID

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError

from stages.core.tables.parquet import schema, write_rows
from stages.text.tokens.buckets import BucketError, bucket_documents, read_columns
from stages.text.tokens.mix_settings import Buckets, Mix


@given(st.lists(st.none() | st.integers(0, 9).map(lambda n: n / 8), min_size=1, max_size=60), st.integers(1, 6))
def test_equal_parts_by_number_of_documents_and_equal_values_together(values: list[float | None], parts: int) -> None:
    division = Buckets(by="score", upsampling=[float(n) for n in range(parts)], other=7.0)
    pool = np.arange(0, len(values), 2)
    if all(values[i] is None for i in pool):
        with pytest.raises(BucketError, match=r"No document has a value in the column 'score' \(quality_score needs a classifier"):
            bucket_documents([division], {"score": pa.array(values, pa.float64())}, pool, len(values))
        return
    found = bucket_documents([division], {"score": pa.array(values, pa.float64())}, pool, len(values))
    known = sorted(v for v in (values[i] for i in pool) if v is not None)
    for number, value in zip(found.number.tolist(), values, strict=True):
        if value is None:
            assert number == parts and found.factors[number] == 7.0
        else:
            assert number == sum(known[len(known) * part // parts] <= value for part in range(1, parts))
            assert found.factors[number] == number
    of_value = dict(zip(values, found.number.tolist(), strict=True))
    assert all(of_value[value] == number for value, number in zip(values, found.number.tolist(), strict=True))
    assert len(found.names) == len(set(found.names)) == parts + 1 or len(set(known)) < parts


def test_edges_are_in_the_upper_bucket_and_texts_have_their_own() -> None:
    columns = {"score": pa.array([0.1, 0.2, 0.3, None, 9.0]), "lang": pa.array(["de", None, "en", "fr", "en"])}
    by_score = Buckets(by="score", edges=[0.2, 0.3], upsampling=[0.0, 1.0, 2.0])
    by_lang = Buckets(by="lang", factors={"en": 3.0, "de": 0.5}, other=0.25)
    found = bucket_documents([by_score], columns, np.arange(5), 5)
    assert found.number.tolist() == [0, 1, 2, 3, 2] and found.names == ("score<0.2", "score=0.2..0.3", "score>=0.3", "score=none")
    assert found.factors == (0.0, 1.0, 2.0, 1.0)
    both = bucket_documents([by_score, by_lang], columns, np.arange(5), 5)
    assert [both.names[n] for n in both.number] == [
        "score<0.2 lang=de", "score=0.2..0.3 lang=other", "score>=0.3 lang=en", "score=none lang=other", "score>=0.3 lang=en"
    ]  # fmt: skip
    assert [both.factors[n] for n in both.number] == [0.0, 0.25, 6.0, 0.25, 6.0]
    large = bucket_documents([by_lang], {"lang": columns["lang"].cast(pa.large_string())}, np.arange(5), 5)
    assert large.number.tolist() == [1, 2, 0, 2, 0]
    none = bucket_documents([], {}, np.arange(5), 5)
    assert (none.number.tolist(), none.names, none.factors) == ([0] * 5, ("",), (1.0,))


@pytest.mark.parametrize(
    ("division", "message"),
    [
        (Buckets(by="lang", upsampling=[1, 2]), "The column 'lang' has texts, so its buckets need factors."),
        (Buckets(by="score", factors={"en": 1}), "The column 'score' has numbers, so its buckets need upsampling."),
    ],
)
def test_a_division_of_the_other_kind_is_refused(division: Buckets, message: str) -> None:
    columns = {"score": pa.array([1, 2]), "lang": pa.array(["en", "de"])}
    with pytest.raises(BucketError, match=message):
        bucket_documents([division], columns, np.arange(2), 2)


def test_columns_are_joined_by_document_from_the_first_table_that_has_them(tmp_path: Path) -> None:
    ids = [UUID(int=n) for n in range(6)]
    documents = schema(doc_id="uuid", lang="string", url="string", text="string")
    urls = ["http://A.example/x", None, "https://me:pw@b.example:8080/?q", "no url", "ftp://c.example", "http://a.example"]
    for shard in (0, 1):
        rows = [{"doc_id": ids[n], "lang": f"d{n}", "url": urls[n], "text": "t"} for n in range(5, -1, -1) if n % 2 == shard]
        write_rows(tmp_path / "documents" / f"{shard}.parquet", documents, rows)
    signals = schema(doc_id="uuid", lang="string", score="float64", verdict="string", reason="string")
    write_rows(tmp_path / "decisions" / "0.parquet", signals, [
        {"doc_id": ids[n], "lang": "f", "score": n / 2, "verdict": "kept", "reason": None} for n in (4, 1, 0)
    ])  # fmt: skip
    tables = [sorted((tmp_path / name).iterdir()) for name in ("documents", "decisions")]
    wanted = pa.array([ids[n].bytes for n in (3, 0, 4, 1, 2)], pa.binary(16))
    found = read_columns(["lang", "score", "host"], tables, wanted)
    assert found["lang"].to_pylist() == ["d3", "d0", "d4", "d1", "d2"] and found["score"].to_pylist() == [None, 0.0, 2.0, 0.5, None]
    assert found["host"].to_pylist() == [None, "a.example", "c.example", None, "b.example"]
    assert {found[name].type for name in ("host", "lang")} == {pa.large_string()}, "an array of strings has at most 2 GiB"
    for name in ("text", "verdict", "topic", "url"):
        with pytest.raises(BucketError, match=f"no column '{name}'. Columns that are stored: host, lang, score."):
            read_columns([name], tables, wanted)
    with pytest.raises(BucketError, match="no column 'host'. Columns that are stored: none."):
        read_columns(["host"], [], wanted)


@pytest.mark.parametrize(
    ("buckets", "message"),
    [
        ({"by": "x"}, "either upsampling"),
        ({"by": "x", "upsampling": [1], "factors": {"a": 1}}, "either upsampling"),
        ({"by": "x", "upsampling": [1, 2], "edges": [0.1, 0.2]}, "2 edges make 3 buckets; upsampling has 2 factors"),
        ({"by": "x", "upsampling": [1, 2, 3], "edges": [0.2, 0.2]}, "edges rise"),
        ({"by": "x", "upsampling": [1, -1]}, "factor of a bucket is 0 to 1,000"),
        ({"by": "x", "factors": {"a": 1001}}, "factor of a bucket is 0 to 1,000"),
    ],
)
def test_impossible_buckets_are_refused(buckets: dict[str, object], message: str) -> None:
    with pytest.raises(ValidationError, match=message):
        Buckets.model_validate(buckets)


def test_the_number_of_buckets_is_limited() -> None:
    by = tuple(Buckets(by=name, upsampling=(1.0,) * n) for name, n in (("topic", 24), ("score", 39)))
    assert math.prod(one.size for one in by) == 1000 and Mix(buckets=by).buckets == by
    with pytest.raises(ValidationError, match="at most 1,000 buckets"):
        Mix(buckets=(by[0], Buckets(by="score", upsampling=(1.0,) * 40)))
    assert Counter(one.size for one in by) == {25: 1, 40: 1}
