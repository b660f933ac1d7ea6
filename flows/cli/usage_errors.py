"""Says what is wrong with a command line, in the words of Loam: what is missing or too much, where, and how the command is written.

Source: the errors of cyclopts 5.4.0; one that has no words here keeps its own.
"""

from __future__ import annotations

import difflib
import inspect
import shlex
from collections.abc import Callable, Sequence

from cyclopts import App, CoercionError, CycloptsError, MissingArgumentError, RepeatArgumentError, UnknownCommandError, UnusedCliTokensError

from stages.core.contract.errors import RecipeError

GIVEN_CHARS = 200
"""Most characters of a command line that a message repeats."""


def usage_error(error: CycloptsError, app: App, words: Sequence[str]) -> RecipeError:
    """Returns the error to show for a command line that cannot be parsed.

    Args:
        error: What the parser found.
        app: The command line.
        words: The arguments after `loam`.
    """
    chain, apps, rest = app.parse_commands(words)
    command = " ".join(("loam", *chain))
    help_line = f"`{command} --help` explains it."
    if isinstance(error, UnknownCommandError):
        if rest and rest[0].startswith("-"):
            return RecipeError("No command is named.", do=f"`{command} --help` lists the commands.")
        return RecipeError(str(error), do=help_line)
    of = list(_commands(apps[-1]))
    if (
        of and isinstance(error, UnusedCliTokensError) and error.unused_tokens
    ):  # `loam runs`, which lists the runs, is also a group of commands
        word = error.unused_tokens[0]
        near = difflib.get_close_matches(word, of, n=1)
        guess = f" Did you mean {near[0]!r}?" if near else ""
        return RecipeError(f"`{command}` has no command {word[:GIVEN_CHARS]!r}.{guess}", do=f"Its commands are: {', '.join(of)}.")
    if not (what := _fault(error, command)):
        return RecipeError(str(error), do=help_line)
    given = shlex.join(["loam", *words])
    where = given if len(given) <= GIVEN_CHARS else f"{given[:GIVEN_CHARS]}…"
    return RecipeError(what, where=where, do=f"Write `{_written(error, command, apps[-1].default_command)}`; {help_line}")


def _fault(error: CycloptsError, command: str) -> str:
    """Returns what is wrong with the arguments of a command; empty where the parser's own words say it."""
    if isinstance(error, UnusedCliTokensError) and error.unused_tokens:
        surplus = ", ".join(repr(word[:GIVEN_CHARS]) for word in error.unused_tokens[:3])
        more = len(error.unused_tokens) - 3
        count = "One argument is" if len(error.unused_tokens) == 1 else f"{len(error.unused_tokens)} arguments are"
        return f"{count} too many for `{command}`: {surplus}" + (f" and {more} more." if more > 0 else ".")
    if isinstance(error, MissingArgumentError) and error.argument:
        name = error.keyword or error.argument.name
        if error.keyword:
            return f"{name} has no value."
        return f"`{command}` needs {name}."
    if isinstance(error, RepeatArgumentError):
        return f"{error.token.keyword or error.token.value} is given more than once."
    if isinstance(error, CoercionError) and error.target_type is bool and error.token:
        return f"{error.token.keyword} takes no value, but {error.token.value[:GIVEN_CHARS]!r} was given."
    return ""


def _written(error: CycloptsError, command: str, function: Callable[..., object] | None) -> str:
    """Returns how the option that is wrong is written; else how the command is: its arguments, and the options that it cannot do without."""
    if isinstance(error, MissingArgumentError) and error.keyword and error.argument:
        return f"{error.keyword} {error.argument.parameter.metavar or 'VALUE'}"
    if isinstance(error, RepeatArgumentError | CoercionError) and error.token and error.token.keyword:
        return error.token.keyword + (" VALUE" if isinstance(error, RepeatArgumentError) else "")
    parts = [command]
    for parameter in inspect.signature(function).parameters.values() if function else ():
        name, needed = parameter.name.upper(), parameter.default is parameter.empty
        if parameter.kind is parameter.POSITIONAL_ONLY:
            many = "tuple[" in str(parameter.annotation)
            parts.append((name if needed else f"[{name}]") + "..." * many)
        elif needed:
            parts.append(f"--{parameter.name.replace('_', '-')} TEXT")
    return " ".join(parts)


def _commands(app: App) -> list[str]:
    """Returns the names of the commands in a group; none for a command."""
    return [name for name in app if not name.startswith("-")]
