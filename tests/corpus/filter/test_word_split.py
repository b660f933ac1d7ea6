"""Words and sentences as integers, against datatrove's tokenizer of the whole text."""

from __future__ import annotations

import re

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from stages.corpus.filter.word_split import ALPHA, ENDS, PUNCT, SYMBOL, UnknownLanguageError, WordSplitter
from tests.made.prose import LANGUAGES, paragraphs
from tests.made.variants import Data

ODD = ["it's 10a.m. in the U.S.A., don't; e.g. x.y(z) -> 3.5%!", "IS_ALPHA is odd", "tab\tand\u00a0nbsp\u2028line", "", " ", "8 ) : ) o . O",
       "http://x.org/a?b=c cannot gonna Cant id im", "東京は、晴れ。 Привет мир! 12km $5 C++ #tag @me", "a.b.c... ??!! —dash— (x)y[z]{w}"]  # fmt: skip
LINES = ["One. Two! Three?", 'He said: "Stop." Then he left.', "e.g. this. And  two spaces.  . x", "A.\tB. C.\u3000 D", "...", "a", "", " lead",
         "trail ", "trail.  ", "x. [1]  ", "No end", "Eh?! Yes. (So.) Fine…", "これは文です。次の文です。"]  # fmt: skip

ACROSS = re.compile(r"[():;8'-]\s+[():;1'-]")
"""Where, in the characters of test_any_text, two of spaCy's emoticons can overlap across white space: stages/corpus/filter/word_split.py."""


@pytest.fixture(scope="module")
def splitter() -> WordSplitter:
    return WordSplitter("en", ("the", "of"))


def spelled(splitter: WordSplitter, text: str) -> list[str]:
    ids = splitter.words(text)
    words = list(splitter._ids)
    return [words[i] for i in ids]


def plain_words(text: str) -> list[str]:
    from datatrove.utils.text import split_into_words

    return split_into_words(text)


def test_words_are_datatroves(splitter: WordSplitter, data: Data) -> None:
    for text in [*data.texts(60), *(paragraph for language in LANGUAGES for paragraph in paragraphs(language, 1, "words"))]:
        assert spelled(splitter, text) == plain_words(text)


def test_words_of_odd_texts_are_datatroves(splitter: WordSplitter) -> None:
    for text in ODD:  # each once: of IS_ALPHA datatrove itself gives other words when it meets it again
        assert spelled(splitter, text) == plain_words(text)


def test_overlapping_emoticons_are_the_exception(splitter: WordSplitter) -> None:
    assert plain_words(") :1::") == [")", ":", "1", ":", ":"], "if this fails, spaCy has changed: remove ACROSS and the exception"
    assert spelled(splitter, ") :1::") == [")", ":1", ":", ":"] == [*plain_words(")"), *plain_words(":1::")]


@settings(max_examples=150, deadline=None)
@given(st.text(alphabet=st.sampled_from(list("abIS.,:;()'\"-!?…。 \t\n#$%1289éÄжω東\u00a0")), max_size=60))
def test_any_text(text: str) -> None:
    from datatrove.utils.text import split_into_sentences

    splitter = shared()
    words = spelled(splitter, text)
    assert words == [word for chunk in text.split() for word in plain_words(chunk)]
    assert words == plain_words(text) or ACROSS.search(text)
    lines = text.splitlines()
    assert splitter.sentences(lines) == sum(len(split_into_sentences(line)) for line in lines)


_SHARED: list[WordSplitter] = []


def shared() -> WordSplitter:
    if not _SHARED:
        _SHARED.append(WordSplitter())
    return _SHARED[0]


def test_sentences_are_datatroves(splitter: WordSplitter) -> None:
    from datatrove.utils.text import split_into_sentences

    for line in LINES:
        assert splitter.sentences([line]) == len(split_into_sentences(line)), line
    assert splitter.sentences(LINES) == sum(splitter.sentences([line]) for line in LINES)
    assert splitter.sentences([]) == 0


def test_table_of_words(splitter: WordSplitter) -> None:
    ids = splitter.words("The of 3.5 … ! ? a1 東京 of.")
    table = splitter.table()
    found = {word: (int(table.chars[i]), int(table.flags[i]), int(table.stop[i])) for word, i in zip(
        ["The", "of", "3.5", "…", "!", "?", "a1", "東京", "of", "."], ids, strict=True)}  # fmt: skip
    assert found["of"] == (2, ALPHA, 1) and found["The"] == (3, ALPHA, -1) and found["3.5"] == (3, 0, -1)
    assert found["!"] == (1, SYMBOL | ENDS | PUNCT, -1) and found["a1"] == (2, ALPHA, -1) and found["東京"] == (2, ALPHA, -1)


def test_hash_of_joined_words(splitter: WordSplitter) -> None:
    ids = splitter.words("ab c a bc abc xyz")
    table = splitter.table()

    def joined(*words: int) -> int:
        value = 0
        for word in words:
            value = (value * int(table.power[word]) + int(table.hash[word])) % 2**64
        return value

    ab, c, a, bc, abc, other = map(int, ids)
    assert joined(ab, c) == joined(a, bc) == joined(abc) != joined(other)


def test_forgetting_changes_no_result() -> None:
    small, large = WordSplitter(limit=5), WordSplitter()
    for text in [*ODD, *LINES] * 2:
        small.make_room()
        assert spelled(small, text) == spelled(large, text)
        assert small.sentences([text]) == large.sentences([text])
    small.words("six more chunks than the limit")
    small.make_room()
    assert len(small._known) == 1 and small.words("new words here").tolist() == [0, 1, 2]


def test_a_language_that_is_not_there() -> None:
    with pytest.raises(UnknownLanguageError, match="no word tokenizer for the language 'klingon'"):
        WordSplitter("klingon")
    with pytest.raises(UnknownLanguageError, match="the word tokenizer for 'th' needs a package"):
        WordSplitter("th")


def test_a_tokenizer_that_reads_whole_texts() -> None:
    """The splitter is datatrove's at white space, as for languages whose words spaCy does not find chunk by chunk."""
    from datatrove.utils.word_tokenizers import WhitespaceTokenizer

    splitter = WordSplitter("en")
    splitter._whole, splitter._by_chunk, splitter._letters_are_words = WhitespaceTokenizer(), False, False
    splitter._forget()
    assert spelled(splitter, "b a, b") == WhitespaceTokenizer().word_tokenize("b a, b")
    assert splitter.table().chars.tolist()[: len(splitter._ids)] == [len(word) for word in splitter._ids]
