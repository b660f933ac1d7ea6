"""Applies `--set node.key=value` to the plain sections of a recipe.

The value is YAML ("[a, b]", "3", "null"). The field decides what else it can be: where it holds a text or a list of texts, a value that is
not one of YAML's quoted texts, lists, numbers, true, false or null is the text as it is written (`plain_yaml.parse_text`), so a path needs
no quotes for YAML whatever characters it has.
Guarantee: only the named value changes. A section that a YAML anchor shares with another one is copied first.
Cost: one parse of the value.
"""

from __future__ import annotations

from collections.abc import Mapping

from pydantic import JsonValue

from stages.core.contract import plain_yaml
from stages.core.contract.errors import RecipeError
from stages.core.contract.recipe_fields import HEADS, field_at, suggestion
from stages.core.contract.yaml_words import SHOWN_CHARS
from stages.settings import StageConfig


def section_of(setting: str) -> str:
    """Returns the section that a setting names; another text if it is not node.key=value."""
    return setting.partition("=")[0].strip().partition(".")[0]


def apply_setting(raw: dict[str, JsonValue], setting: str, classes: Mapping[str, type[StageConfig]]) -> None:
    """Applies one `node.key=value` to the plain sections.

    Args:
        raw: The sections, which are changed.
        setting: The setting.
        classes: Node -> config class.

    Raises:
        RecipeError: The text is not node.key=value, names an unknown section or a value that has no keys, or the value is not YAML.
    """
    name, equals, text = setting.partition("=")
    path = name.strip().split(".")
    if not equals or not all(path):
        raise RecipeError(f"--set {_typed(setting)} is not node.key=value.", do="Write for example --set pretrain.budget.steps=20.")
    heads = [*classes, "runtime", *HEADS]
    if path[0] not in heads:
        raise RecipeError(
            f"--set {_typed(setting)}: unknown section {path[0]}.",
            do=suggestion(path[:1], heads, classes) or f"The sections are: {', '.join(heads)}.",
        )
    try:
        value = _value(text.encode("utf-8", "surrogatepass"), path, classes)
    except plain_yaml.BadYamlError as error:
        what = f"--set {_typed(setting)}: the value is not YAML: {error}."
        raise RecipeError(what.replace("..", "."), do=error.do or "Quote it.") from None
    here = raw
    for part in path[:-1]:
        below = here.get(part)
        if below is None:
            below = {}
        if not isinstance(below, dict):
            raise RecipeError(f"--set {_typed(setting)}: {part} has no keys below it.", do=f"Set {part} itself.")
        below = dict(below)  # a copy, because a YAML anchor may share the section with another one
        here[part] = below
        here = below
    here[path[-1]] = value


def _typed(setting: str) -> str:
    """Returns a setting in quotes, cut to SHOWN_CHARS."""
    text = repr(setting)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]} …"


def _value(text: bytes, path: list[str], classes: Mapping[str, type[StageConfig]]) -> JsonValue:
    found = field_at(path, classes)
    if found is not None and (found.is_text or found.is_texts):
        return plain_yaml.parse_text(text, lists=found.is_texts)  # type: ignore[no-any-return]
    return plain_yaml.parse(text)  # type: ignore[no-any-return]
