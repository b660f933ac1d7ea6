"""The base class of settings: the choice between classes by name, and the marks of fields."""

from __future__ import annotations

from typing import Annotated

import pytest
from pydantic import ValidationError

from stages.record.contract.errors import RecipeError
from stages.record.contract.recipe import validated
from stages.record.settings import Field, OneOf, StageConfig, deciding


class Shape(StageConfig):
    """Base class of the choices."""

    name: str = Field(decides=True)
    """Which one."""


class Round(Shape):
    """A circle."""

    name: str = Field("round", decides=True)
    """Which one."""
    radius: float = Field(1.0, gt=0, decides=True)
    """In metres."""
    colour: str = Field("red", decides=False)
    """Seen only."""


class Square(Shape):
    """A square."""

    name: str = Field("square", decides=True)
    """Which one."""
    side: float = Field(gt=0, decides=True)
    """In metres."""


class Drawing(StageConfig):
    """A section."""

    shape: Annotated[Shape, OneOf({"round": Round, "square": Square})] = Field(Round(), decides=True)
    """What is drawn."""
    frame: Annotated[Shape, OneOf({"round": Round, "square": Square})] = Field(Round(), decides=False)
    """What is around it."""
    size: int = Field(3, decides=True)
    """How large."""


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({}, Round()),
        ({"shape": {}}, Round()),
        ({"shape": {"radius": 2}}, Round(radius=2.0)),
        ({"shape": {"name": "round", "radius": 2}}, Round(radius=2.0)),
        ({"shape": {"name": "square", "side": 2}}, Square(side=2.0)),
        ({"shape": Square(side=2.0)}, Square(side=2.0)),
    ],
)
def test_the_name_chooses_the_class_and_the_first_is_meant_without(given: dict, expected: Shape) -> None:
    drawing = Drawing.model_validate(given)
    assert drawing.shape == expected and type(drawing.shape) is type(expected)
    assert Drawing.model_validate(drawing.model_dump(mode="json")) == drawing
    assert Drawing.model_validate_json(drawing.model_dump_json()) == drawing
    assert drawing.model_dump()["shape"] == expected.model_dump()


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ({"name": "star"}, '^drawing.shape: the name must be round or square, not "star"'),
        (
            {"side": 2},
            r"Unknown key drawing\.shape\.side\.\n.*\n.*It is a key of `name: square`; the keys here are: name, radius, colour\.",
        ),
        ({"name": "square", "sid": 2}, r"drawing\.shape\.side: has no default"),
        ({"name": "square", "side": 2, "radus": 2}, r"Unknown key drawing\.shape\.radus\.\n.*\n.*Did you mean drawing\.frame\.radius\?"),
        ({"name": "square", "side": 2, "zz": 2}, r"Unknown key drawing\.shape\.zz\.\n.*\n.*The keys here are: name, side\."),
        ({"name": "square", "side": 0}, r"^drawing\.shape\.side: must be above 0, not 0\.\n.*\n.*Set drawing\.shape\.side in the recipe"),
        ({"name": "square", "side": True}, r"^drawing\.shape\.side: true is not allowed here"),
    ],
)
def test_faults_of_a_choice_name_the_field_as_the_recipe_writes_it(given: dict, message: str) -> None:
    with pytest.raises(RecipeError, match=message):
        validated(Drawing, {"shape": given}, "drawing", "r.yaml")


def test_the_marks_say_what_decides() -> None:
    assert deciding(Drawing()) == {"shape": {"name": "round", "radius": 1.0}, "size": 3}
    assert deciding(Drawing(shape=Square(side=2.0), size=4)) == {"shape": {"name": "square", "side": 2.0}, "size": 4}
    same = (Drawing(shape=Round(colour="blue")), Drawing(frame=Square(side=5.0)))
    assert all(deciding(other) == deciding(Drawing()) for other in same)


def test_a_value_of_another_class_is_refused() -> None:
    with pytest.raises(ValidationError):
        Drawing.model_validate({"shape": 3})
