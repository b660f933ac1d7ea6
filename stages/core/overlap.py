"""What counts as overlap with a benchmark item: one definition for decontaminate, conversations, preferences and contamination.

Source: word 13-grams, shorter items down to 8 words matched whole: GPT-3 (arXiv 2005.14165, appendix C).
"""

from __future__ import annotations

from pydantic import Field, model_validator

from stages.core.stage import StageConfig


class OverlapConfig(StageConfig):
    """The settings of a search for benchmark items."""

    ngram_words: int = Field(13, ge=2)
    """Words per n-gram. GPT-3 (arXiv 2005.14165, appendix C)."""
    min_words: int = Field(8, ge=1)
    """Item texts shorter than ngram_words are matched whole, but not below this many words (GPT-3 goes down to 8)."""

    @model_validator(mode="after")
    def _whole_below_ngrams(self) -> OverlapConfig:
        if self.min_words > self.ngram_words:
            raise ValueError(f"min_words is {self.min_words}, more than ngram_words {self.ngram_words}; lower min_words")
        return self
