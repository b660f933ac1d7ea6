"""Reads a recipe, checks it and completes it with defaults before any work. A recipe is one YAML file that decides the model.

Guarantee: an unknown or misspelt key is an error that names the nearest key. Every value has its type. A recipe that loads can be written
out in full (`Recipe.resolved`). The config classes are the only place of defaults.
"""

from __future__ import annotations

import difflib
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar, get_args

from pydantic import BaseModel, JsonValue, ValidationError

from stages.core.contract import secrets, strict_json
from stages.core.contract.errors import RecipeError
from stages.core.contract.runtime import Runtime
from stages.core.store.names import refuse_name
from stages.settings import OneOf, StageConfig

SHOWN_CHARS = 200
Settings = TypeVar("Settings", bound=StageConfig)


@dataclass(frozen=True)
class Recipe:
    """A checked recipe.

    Attributes:
        sections: Node -> config. A node without a section in the file has one if all its settings have defaults.
        source: Path of the file that the recipe was read from, for messages and the run record.
        imports: Node -> name of the artifact that replaces it.
        off: Nodes that the recipe turns off (`sft: off`). They have no section.
    """

    name: str
    seed: int
    runtime: Runtime
    sections: Mapping[str, StageConfig]
    source: str
    description: str = ""
    imports: Mapping[str, str] = field(default_factory=dict)
    off: tuple[str, ...] = ()

    def resolved(self) -> dict[str, JsonValue]:
        """Returns the whole recipe with every default written out, as plain JSON values."""
        head: dict[str, JsonValue] = {
            "name": self.name,
            "seed": self.seed,
            "description": self.description,
            "runtime": self.runtime.model_dump(mode="json"),
        }
        sections: dict[str, JsonValue] = {node: config.model_dump(mode="json") for node, config in self.sections.items()}
        return head | {"import": dict(self.imports)} | sections | dict.fromkeys(self.off, False)


def find_recipe(name: str) -> Path:
    """Returns the path of a recipe. `name` is a path or the name of a file in configs/ ("tiny").

    Raises:
        RecipeError: There is no such file.
    """
    configs = Path(__file__).resolve().parents[3] / "configs"
    for candidate in (name, f"{configs}/{name}", f"{configs}/{name}.yaml"):
        if os.path.isfile(candidate):  # Path.is_file raises for a name that is too long; this returns False
            return Path(candidate)
    if name and os.path.exists(name):
        raise RecipeError(f"{name!r} is not a file.", where=os.path.abspath(name), do="Give the path of a YAML file.")
    known = ", ".join(sorted(p.stem for p in configs.glob("*.yaml")))
    raise RecipeError(
        f"There is no recipe {name!r}.", where=str(configs), do=f"Give the path of a YAML file, a recorded run, or one of: {known}."
    )


def load_recipe(name: str, classes: Mapping[str, type[StageConfig]], settings: Sequence[str] = ()) -> Recipe:
    """Reads a recipe and applies `--set node.key=value` settings.

    Args:
        name: Path of the recipe, or the name of a file in configs/.
        classes: Node -> config class, for all nodes of the pipeline.
        settings: The values of --set, in order.

    Returns:
        The checked recipe, with every default.

    Raises:
        RecipeError: The recipe or a setting is wrong. Raised before any work.
    """
    path = find_recipe(name)
    raw = _parse(path)
    secrets.refuse_in_settings(raw, str(path))
    for setting in settings:
        secrets.refuse_in_settings(setting, "--set", secrets.shown_name(setting))
        apply_setting(raw, setting, classes)
    head_keys = {"name", "seed", "runtime", "description", "import"}
    for key in raw:
        if key not in classes and key not in head_keys:
            nearest = _nearest(str(key), [*classes, *head_keys])
            raise RecipeError(f"Unknown section {_shown(key)}.", where=str(path), do=nearest or f"The sections are: {', '.join(classes)}.")
    seed = raw.get("seed", 0)
    if not isinstance(seed, int) or isinstance(seed, bool) or seed < 0:
        raise RecipeError(f"seed is {_shown(seed)}.", where=f"{path}: seed", do="Give a whole number of at least 0.")
    off = tuple(node for node in classes if raw.get(node) is False)
    given = {node: config for node, config in classes.items() if node not in off and (raw.get(node) is not None or _has_defaults(config))}
    return Recipe(
        name=refuse_name(raw.get("name", path.stem), "The recipe's name", where=f"{path}: name"),
        seed=seed,
        runtime=validated(Runtime, raw.get("runtime"), f"{path}: runtime"),
        sections={node: validated(config, raw.get(node), f"{path}: {node}") for node, config in given.items()},
        source=str(path),
        description=_text(raw, "description", path),
        imports=_imported(raw.get("import"), classes, f"{path}: import"),
        off=off,
    )


def _has_defaults(config: type[StageConfig]) -> bool:
    """Returns whether every setting of a section has a default, so that a recipe may leave the section out and the node still runs."""
    return not any(info.is_required() for info in config.model_fields.values())


def _text(raw: Mapping[str, JsonValue], key: str, path: Path) -> str:
    """Returns a text at the top of the recipe, or an empty one where it is not given.

    Raises:
        RecipeError: The value is neither a text nor a number.
    """
    value = raw.get(key)
    if value is not None and (isinstance(value, bool) or not isinstance(value, str | int | float)):
        raise RecipeError(f"{key} is {_shown(value)}.", where=f"{path}: {key}", do="Give a text; quote it if need be.")
    return "" if value is None else str(value)


def _imported(given: JsonValue, classes: Collection[str], where: str) -> dict[str, str]:
    """Returns the checked section `import`: node -> name of an artifact.

    Raises:
        RecipeError: The section is not a mapping, names an unknown node, or gives something other than a name.
    """
    if given is None:
        return {}
    if not isinstance(given, dict):
        raise RecipeError(f"The section is {_shown(given)}.", where=where, do="Write it as `node: artifact` lines.")
    found: dict[str, str] = {}
    for node, artifact in given.items():
        if node not in classes:
            do = _nearest(str(node), [*classes]) or f"The nodes are: {', '.join(classes)}."
            raise RecipeError(f"import names {_shown(node)}, which is not a node of this pipeline.", where=where, do=do)
        if artifact is None:  # null removes an entry
            continue
        if not isinstance(artifact, str) or not artifact:
            raise RecipeError(
                f"import.{node} is {_shown(artifact)}.", where=where, do="Give the name of an artifact, such as dedup/1a2b3c4d5e6f."
            )
        found[node] = artifact
    return found


def validated(config: type[Settings], values: Any, where: str) -> Settings:
    """Returns an instance of a config class.

    Raises:
        RecipeError: A value is wrong. The message names the field and what to write instead.
    """
    if values is None:
        values = {}
    if not isinstance(values, Mapping):
        raise RecipeError(f"The section is {_shown(values)}.", where=where, do="Write it as `key: value` lines.")
    try:
        return config.model_validate(values)
    except ValidationError as error:
        first = error.errors()[0]
        owner, written = _place(config, first["loc"])
        place = ".".join(str(part)[:60] for part in written)
        if first["type"] == "extra_forbidden":
            names = list(owner.model_fields) if owner else []
            hint = _nearest(str(first["loc"][-1]), names) or f"The keys here are: {', '.join(names)}."
            raise RecipeError(f"Unknown key {place!r}.", where=where, do=hint) from None
        what = "has no default" if first["type"] == "missing" else first["msg"].removeprefix("Value error, ")
        given = "" if first["type"] in ("value_error", "missing") else f" (given: {_shown(first['input'])})"
        do = f"Set {place} in the recipe or with --set." if place else "Change the section accordingly."
        raise RecipeError(f"{place + ': ' if place else ''}{what}{given}", where=where, do=do) from None


def _parse(path: Path) -> dict[str, JsonValue]:
    """Returns the sections of a recipe as plain values. For the record of a run, these are the sections of that run.

    Raises:
        RecipeError: The file cannot be read, or does not consist of sections.
    """
    from stages.core.contract import plain_yaml

    try:
        if path.suffix == ".json":
            raw: JsonValue = strict_json.read_object(path)
        else:
            with path.open("rb") as file:
                text = file.read(plain_yaml.MAX_BYTES + 1)
            if len(text) > plain_yaml.MAX_BYTES:
                do = "Give a recipe; lists of files can be patterns such as crawl/*.warc.gz."
                raise RecipeError(f"The file has more than {plain_yaml.MAX_BYTES >> 20} MiB.", where=str(path), do=do)
            raw = plain_yaml.parse(text)
    except OSError as error:
        raise RecipeError(f"The recipe cannot be read: {error.strerror}.", where=str(path), do="Correct its permissions.") from None
    except strict_json.BadJsonError as error:
        raise RecipeError(f"The recipe is not JSON: {error}.", where=str(path), do="Correct it, or copy the record again.") from None
    except plain_yaml.BadYamlError as error:
        if error.do:
            raise RecipeError(_sentence(error), where=f"{path}:{error.line}", do=error.do) from None
        raise RecipeError("The recipe is not YAML.", where=f"{path}:{error.line}", do=f"Correct this: {error}.") from None
    if raw is None:
        raise RecipeError("The recipe is empty.", where=str(path), do="Start from a copy of configs/tiny.yaml.")
    if isinstance(raw, dict) and {"run_id", "resolved"} <= set(raw):
        raw = raw["resolved"]  # the record of a run holds its recipe with every value written out
    if not isinstance(raw, dict):
        raise RecipeError("The recipe does not consist of sections.", where=str(path), do="Start from a copy of configs/tiny.yaml.")
    raw.pop("anchors", None)  # a place for YAML anchors that several sections share
    return raw


def _sentence(error: Exception) -> str:
    text = str(error)
    return f"{text[0].upper()}{text[1:].removesuffix('.')}."


def apply_setting(raw: dict[str, JsonValue], setting: str, classes: Mapping[str, type[StageConfig]]) -> None:
    """Applies one `node.key=value` to the plain sections. The value is YAML ("[a, b]", "3", "null").

    Raises:
        RecipeError: The text is not node.key=value, names an unknown section or a value that has no keys, or the value is not YAML.
    """
    from stages.core.contract import plain_yaml

    name, equals, text = setting.partition("=")
    path = name.strip().split(".")
    if not equals or not all(path):
        raise RecipeError(f"--set {_shown(setting)} is not node.key=value.", do="Write for example --set pretrain.steps=20.")
    heads = [*classes, "runtime", "seed", "name", "description", "import"]
    if path[0] not in heads:
        raise RecipeError(
            f"--set {_shown(setting)}: unknown section {path[0]!r}.",
            do=_nearest(path[0], heads) or f"The sections are: {', '.join(heads)}.",
        )
    try:
        value = plain_yaml.parse(text.encode("utf-8", "surrogatepass"))
    except plain_yaml.BadYamlError as error:
        raise RecipeError(
            f"--set {_shown(setting)}: the value is not YAML: {error}.".replace("..", "."), do=error.do or "Quote it."
        ) from None
    here = raw
    for part in path[:-1]:
        below = here.get(part)
        if below is None:
            below = {}
        if not isinstance(below, dict):
            raise RecipeError(f"--set {_shown(setting)}: {part} has no keys below it.", do=f"Set {part} itself.")
        below = dict(below)  # a copy, because a YAML anchor may share the section with another one
        here[part] = below
        here = below
    here[path[-1]] = value


def _place(config: type[BaseModel], location: Sequence[int | str]) -> tuple[type[BaseModel] | None, list[int | str]]:
    """Returns the model class that holds the last field of a location, and the location as a recipe writes it, without names of choices."""
    here: type[BaseModel] | None = config
    written: list[int | str] = []
    choice: OneOf | None = None
    for at, part in enumerate(location):
        if choice and isinstance(part, str) and part in choice.classes:
            here, choice = choice.classes[part], None
            continue
        written.append(part)
        if here is None or isinstance(part, int) or at == len(location) - 1 or part not in here.model_fields:
            continue
        info = here.model_fields[part]
        choice = next((mark for mark in info.metadata if isinstance(mark, OneOf)), None)
        here = _model_in(info.annotation)
    return here, written


def _model_in(annotation: Any) -> type[BaseModel] | None:
    """Returns the first model class in an annotation. Looks into lists and unions."""
    queue = [annotation]
    while queue:
        kind = queue.pop(0)
        if isinstance(kind, type) and issubclass(kind, BaseModel):
            return kind
        queue.extend(get_args(kind))
    return None


def _shown(value: Any) -> str:
    """Returns a value as text for a message, cut to SHOWN_CHARS."""
    text = repr(value)
    return text if len(text) <= SHOWN_CHARS else f"{text[:SHOWN_CHARS]} …"


def _nearest(word: str, words: Sequence[str]) -> str:
    close = difflib.get_close_matches(word[:60], words, n=1, cutoff=0.5)
    return f"Did you mean {close[0]!r}?" if close else ""
