"""Declares the signals that the filter stores for every document, in the order of the columns: name, type, unit, meaning and source.

A rule may declare a signal of its own (see stages/corpus/filter/rules.py). Its column follows the columns of this list.
Source: GOPHER is Rae et al. 2021, C4 is Raffel et al. 2020 and FINEWEB is Penedo et al. 2024, each as datatrove 0.10 computes it.
"""

from __future__ import annotations

from stages.corpus.filter.filter_rule import Signal

REPEATS = "Gopher, table A1"
GOPHER = "Gopher, section A.1.1"
C4 = "C4, section 2.2"
FINEWEB = "FineWeb, section 3.6"
LISTS = "datatrove's URLFilter and its UT1 lists"
OURS = "Loam"
SHARE = "share from 0 to 1"

URL = Signal("url", "string", "URL", "address of the document; a column of every decision", OURS)

LANG = Signal("lang", "string", "language code", "language of the text", "resiliparse, py3langid or filter.lang_model; see lang_by")
LANG_SCORE = Signal("lang_score", "float64", SHARE, "how sure the detector is", "the detector")
LANG_BY = Signal("lang_by", "string", "name", "detector that decided: resiliparse, py3langid or model", OURS)
URL_LISTED = Signal("url_listed", "string", "name", "list that names the URL: domain, subdomain, url or hard_blacklisted", LISTS)
URL_SOFT_WORDS = Signal("url_soft_words", "int64", "words", "words of the soft list in the URL", LISTS)
URL_SUBWORD = Signal("url_subword", "bool", "true or false", "whether a forbidden part of a word is in the URL", LISTS)
REPAIRED = Signal("repaired", "bool", "true or false", "whether Unicode repair changed the text", "ftfy")

CHARS = Signal("chars", "int64", "characters", "length of the repaired text", OURS, measure=len)
DUP_PARA_FRAC = Signal("dup_para_frac", "float64", SHARE, "repeated paragraphs, of all paragraphs", REPEATS)
DUP_PARA_CHAR_FRAC = Signal("dup_para_char_frac", "float64", SHARE, "characters in repeated paragraphs, of all", REPEATS)
DUP_LINE_FRAC = Signal("dup_line_frac", "float64", SHARE, "repeated lines, of all lines", REPEATS)
DUP_LINE_CHAR_FRAC = Signal("dup_line_char_frac", "float64", SHARE, "characters in repeated lines, of all", REPEATS)
TOP_GRAM_FRAC = Signal(
    "top_{n}_gram_frac", "float64", SHARE, "characters in the most frequent word n-gram, of all", REPEATS, "gopher_repetition.top_n_grams"
)
DUP_GRAM_FRAC = Signal(
    "dup_{n}_gram_frac", "float64", SHARE, "characters in repeated word n-grams, of all", REPEATS, "gopher_repetition.dup_n_grams"
)
WORDS = Signal("words", "int64", "words", "words that are not symbols", GOPHER)
ALL_WORDS = Signal("all_words", "int64", "words", "words and symbols", GOPHER)
AVG_WORD_CHARS = Signal("avg_word_chars", "float64", "characters", "mean length of the words that are not symbols", GOPHER)
HASHES_PER_WORD = Signal("hashes_per_word", "float64", "hashes per word", "number signs, by words and symbols", GOPHER)
ELLIPSES_PER_WORD = Signal("ellipses_per_word", "float64", "ellipses per word", "ellipses, by words and symbols", GOPHER)
BULLET_LINES_FRAC = Signal("bullet_lines_frac", "float64", SHARE, "lines that begin with a bullet, of all lines", GOPHER)
ELLIPSIS_LINES_FRAC = Signal("ellipsis_lines_frac", "float64", SHARE, "lines that end in an ellipsis, of all lines", GOPHER)
ALPHA_WORDS_FRAC = Signal("alpha_words_frac", "float64", SHARE, "words with a letter, of all words and symbols", GOPHER)
STOP_WORDS = Signal("stop_words", "int64", "words", "different stop words of the text's language", GOPHER)
C4_SENTENCES = Signal("c4_sentences", "int64", "sentences", "sentences left by C4's line rules", C4)
C4_LOREM_LINE = Signal("c4_lorem_line", "int64", "line number from 0", 'first line with "lorem ipsum"', C4)
C4_CURLY_LINE = Signal("c4_curly_line", "int64", "line number from 0", "first line with a curly bracket", C4)
C4_LINES_REMOVED = Signal("c4_lines_removed", "int64", "lines", "lines that C4's line rules cut", C4)
LINES = Signal("lines", "int64", "lines", "lines that are not blank, after C4's line edits", FINEWEB)
LINE_PUNCT_FRAC = Signal("line_punct_frac", "float64", SHARE, "lines that end in punctuation, of all lines", FINEWEB)
SHORT_LINES_FRAC = Signal("short_lines_frac", "float64", SHARE, "lines of at most fineweb.short_line_length characters, of all", FINEWEB)
DUP_LINE_CHARS_FRAC = Signal("dup_line_chars_frac", "float64", SHARE, "characters in repeated lines, of all", FINEWEB)
LINES_PER_WORD = Signal("lines_per_word", "float64", "line breaks per word", "line breaks, by words and symbols", FINEWEB)

QUALITY_SCORE = Signal("quality_score", "float64", SHARE, "probability of the classifier's positive label", "train_quality")
PII_EMAILS = Signal("pii_emails", "int64", "addresses", "e-mail addresses in the text", "Dolma, and datatrove's PIIFormatter")
PII_IPS = Signal("pii_ips", "int64", "addresses", "IPv4 addresses in the text", "Dolma, and datatrove's PIIFormatter")
PII_PHONES = Signal("pii_phones", "int64", "numbers", "phone numbers in the text", "Dolma")

OF_URL = (URL_LISTED, URL_SOFT_WORDS, URL_SUBWORD)
OF_TEXT = (
    CHARS, DUP_PARA_FRAC, DUP_PARA_CHAR_FRAC, DUP_LINE_FRAC, DUP_LINE_CHAR_FRAC, TOP_GRAM_FRAC, DUP_GRAM_FRAC, WORDS, ALL_WORDS,
    AVG_WORD_CHARS, HASHES_PER_WORD, ELLIPSES_PER_WORD, BULLET_LINES_FRAC, ELLIPSIS_LINES_FRAC, ALPHA_WORDS_FRAC, STOP_WORDS,
    C4_SENTENCES, C4_LOREM_LINE, C4_CURLY_LINE, C4_LINES_REMOVED, LINES, LINE_PUNCT_FRAC, SHORT_LINES_FRAC, DUP_LINE_CHARS_FRAC,
    LINES_PER_WORD,
)  # fmt: skip
OF_PII = (PII_EMAILS, PII_IPS, PII_PHONES)
STORED = (LANG, LANG_SCORE, LANG_BY, *OF_URL, REPAIRED, *OF_TEXT, QUALITY_SCORE, *OF_PII)
"""All signals of this module, in the order of the columns."""
