"""The base of every settings class, the marks that a field can carry, and the choice between several classes.

It imports pydantic alone, so core, text and lm may all import it: a settings class is written once and travels from the recipe to the
process that uses it. Guarantee: a settings object is frozen and holds finite numbers of at most 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import pydantic
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, ValidationInfo, field_validator
from pydantic_core import CoreSchema, core_schema

DECIDES = "decides"


def Field(default: Any = ..., *, decides: bool | None = None, **limits: Any) -> Any:  # noqa: N802 - it stands where pydantic's Field does
    """A field of a settings class, as pydantic's Field.

    Args:
        default: Its default; without one the recipe must give a value.
        decides: For a training setting, whether it can change the trained weights; `deciding` reads it. False at a section leaves the
            whole section out.
        limits: Anything else that pydantic's Field takes.
    """
    if decides is not None:
        limits["json_schema_extra"] = {DECIDES: decides}
    return pydantic.Field(default, **limits)


class StageConfig(BaseModel):
    """Base of every config section: frozen, unknown keys forbidden, the docstring under a field is its help text.

    Numbers are finite and of at most 64 bits; true is no 1 (YAML reads a bare yes, no, on and off as true and false).
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @field_validator("*", mode="before")
    @classmethod
    def _truth_is_no_number(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        if bool not in kinds and (truth := next((one for one in _leaves(value, kinds) if isinstance(one, bool)), None)) is not None:
            raise ValueError(f"true or false is not allowed here (given: {truth}); a bare yes, no, on or off means that in YAML: quote it")
        return value

    @field_validator("*", mode="after")
    @classmethod
    def _numbers_have_64_bits(cls, value: Any, info: ValidationInfo) -> Any:
        kinds = _kinds(cls.model_fields[str(info.field_name)].annotation)
        if any(isinstance(one, int) and not -(2**63) <= one < 2**63 for one in _leaves(value, kinds)):
            raise ValueError("the number has more than 64 bits")
        return value


@dataclass(frozen=True)
class OneOf:
    """Marks a field that holds one of several settings classes, told apart by their field `name`.

    classes: name -> class. The first is meant where a recipe gives no name. The field's annotation is their common base class:
    `schedule: Annotated[Schedule, OneOf(SCHEDULES)] = Cosine()`.
    """

    classes: Mapping[str, type[StageConfig]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        first = next(iter(self.classes))

        def name_of(value: Any) -> Any:
            return value.get("name", first) if isinstance(value, Mapping) else getattr(value, "name", first)

        choices: dict[Any, CoreSchema] = {name: handler.generate_schema(kind) for name, kind in self.classes.items()}
        message = f"Input should have one of the names {', '.join(choices)}"
        return core_schema.tagged_union_schema(choices, name_of, custom_error_type="unknown_name", custom_error_message=message)


def deciding(settings: BaseModel, known: type[BaseModel] | None = None) -> dict[str, Any]:
    """The values of the fields that are marked as deciding, as plain JSON values; of nested settings those that their own marks name.

    Args:
        settings: The object.
        known: The base class whose fields are looked at; without it, the object's own class.
    """
    found: dict[str, Any] = {}
    values = settings.model_dump(mode="json")
    for name, info in (known or type(settings)).model_fields.items():
        if is_deciding(info):
            inner = getattr(settings, name)
            found[name] = deciding(inner) if isinstance(inner, BaseModel) else values[name]
    return found


def is_deciding(info: pydantic.fields.FieldInfo) -> bool | None:
    """How a field is marked; None where it is not."""
    marks = info.json_schema_extra
    decides = marks.get(DECIDES) if isinstance(marks, dict) else None
    return decides if isinstance(decides, bool) else None


def _kinds(annotation: Any) -> set[Any]:
    """The plain types inside a field's annotation, those of nested sections left out."""
    inner = get_args(annotation)
    return set().union(*map(_kinds, inner)) if inner else {annotation}


def _leaves(value: Any, kinds: set[Any]) -> Iterator[Any]:
    """The plain values inside a field's value, those of nested sections left out: they are looked at there."""
    if isinstance(value, list | tuple):
        for one in value:
            yield from _leaves(one, kinds)
    elif isinstance(value, Mapping):
        if not any(isinstance(kind, type) and issubclass(kind, BaseModel) for kind in kinds):
            for key, one in value.items():
                yield key
                yield from _leaves(one, kinds)
    else:
        yield value
