"""The base class of all settings classes, the marks of a field, and the choice between several settings classes.

The module imports only pydantic, so core, text and lm may all import it. A settings class is therefore written once, and its objects go
from the recipe to the process that uses them.
Guarantee: a settings object is frozen. Its numbers are finite and have at most 64 bits.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, get_args

import pydantic
from pydantic import BaseModel, ConfigDict, GetCoreSchemaHandler, JsonValue, ValidationInfo, field_validator
from pydantic_core import CoreSchema, core_schema

DECIDES = "decides"


def Field(default: Any = ..., *, decides: bool | None = None, **limits: Any) -> Any:  # noqa: N802 - it replaces pydantic's Field
    """Returns a field of a settings class, like pydantic's Field.

    Args:
        default: The default value. Without one, the recipe must give a value.
        decides: For a training setting: whether it can change the trained weights. `deciding` reads this mark. False on a field that
            holds a nested section leaves out the whole section.
        limits: All other arguments of pydantic's Field.
    """
    if decides is not None:
        limits["json_schema_extra"] = {DECIDES: decides}
    return pydantic.Field(default, **limits)


class StageConfig(BaseModel):
    """Base class of every config section. It is frozen and forbids unknown keys; the docstring under a field is its help text.

    Numbers are finite and have at most 64 bits. true and false are accepted only where the field is a bool: YAML reads an unquoted yes, no,
    on or off as true or false.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)

    @property
    def off(self) -> str:
        """Why a node with these settings is off, as "what is missing: what to set"; empty for a node that runs."""
        return ""

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
    """Marks a field whose value is one of several settings classes; their field `name` selects the class.

    The field's annotation is the common base class: `schedule: Annotated[Schedule, OneOf(SCHEDULES)] = Cosine()`.

    Attributes:
        classes: name -> class. The first class is used when a recipe gives no name.
    """

    classes: Mapping[str, type[StageConfig]]

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        """Returns the schema by which pydantic chooses the class."""
        first = next(iter(self.classes))

        def name_of(value: Any) -> Any:
            return value.get("name", first) if isinstance(value, Mapping) else getattr(value, "name", first)

        choices: dict[Any, CoreSchema] = {name: handler.generate_schema(kind) for name, kind in self.classes.items()}
        message = f"Input should have one of the names {', '.join(choices)}"
        return core_schema.tagged_union_schema(choices, name_of, custom_error_type="unknown_name", custom_error_message=message)


def deciding(settings: BaseModel, known: type[BaseModel] | None = None) -> dict[str, JsonValue]:
    """Returns the values of the fields that are marked as deciding, as plain JSON values. Nested settings follow their own marks.

    Args:
        settings: The settings object.
        known: The base class whose fields are read; None reads the fields of the object's own class.

    Returns:
        Name of the field -> value.
    """
    found: dict[str, JsonValue] = {}
    values = settings.model_dump(mode="json")
    for name, info in (known or type(settings)).model_fields.items():
        if is_deciding(info):
            inner = getattr(settings, name)
            found[name] = deciding(inner) if isinstance(inner, BaseModel) else values[name]
    return found


def is_deciding(info: pydantic.fields.FieldInfo) -> bool | None:
    """Returns the mark `decides` of a field; None if the field has no mark."""
    marks = info.json_schema_extra
    decides = marks.get(DECIDES) if isinstance(marks, dict) else None
    return decides if isinstance(decides, bool) else None


def _kinds(annotation: Any) -> set[Any]:
    """Returns the types in a field's annotation, with the arguments of generic types unpacked."""
    inner = get_args(annotation)
    return set().union(*map(_kinds, inner)) if inner else {annotation}


def _leaves(value: Any, kinds: set[Any]) -> Iterator[Any]:
    """Yields the plain values inside a field's value, except those of nested sections: each section checks its own."""
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
