"""The base class of a section that derives settings from others when a recipe is read, before anything has a key.

Guarantee: the checked section holds only the derived values. A recipe that writes them out is the same recipe.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

from pydantic import JsonValue

from stages.settings import StageConfig


@dataclass(frozen=True)
class CompletedSection:
    """A section of a recipe with derived values.

    Attributes:
        values: The section, not checked yet.
        sources: Key in the section ("model.hidden_size") -> where the derived value comes from, in one phrase.
    """

    values: JsonValue
    sources: Mapping[str, str] = field(default_factory=dict)


class DerivedSettings(StageConfig):
    """A section with settings that can be derived from other settings."""

    @classmethod
    def completed(cls, values: JsonValue, before: Mapping[str, StageConfig]) -> CompletedSection:
        """Returns the section with its derived values, or as it is without any. What cannot be derived is a RecipeError.

        Args:
            values: The section as the recipe and --set give it. It is not changed, and may be wrong in any way.
            before: Node -> settings of the nodes before this one in the pipeline. An imported node, a node that is off, or one whose
                section is wrong is not among them.
        """
        return CompletedSection(values)
