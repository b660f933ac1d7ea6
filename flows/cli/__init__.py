"""Builds the command line `loam` from the commands in this folder, runs one command, and turns its error into a message and an exit code.

Exit codes: 0 done, 1 a stage failed, 2 usage or recipe error or a name that the home does not have, 3 verification failed,
75 stopped by SIGTERM, 130 interrupted.
Guarantee: an error is one message on standard error that says what happened, where, and what to do. Only --debug shows a traceback.
Cost: `loam --help` takes less than 0.3 s, because the command modules import their dependencies inside functions. cyclopts parses a
command in half of typer's time (0.07 against 0.16 s of CPU, including the start of Python): typer 0.29.2 imports pydantic, cyclopts 5.4.0
does not. cyclopts also calls the program for completions, so that a shell can complete the names of artifacts.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING

from cyclopts import App, CycloptsError, Group, Parameter

from flows.cli import (
    init_commands,
    keep_commands,
    lineage_commands,
    question_commands,
    run_commands,
    runs_commands,
    serve_commands,
    settings_commands,
    stage_help,
)
from flows.cli.options import COMMON, Command, Common
from flows.cli.printing import say
from flows.cli.usage_errors import usage_error
from flows.trials import decide_command, sweep_commands
from stages.core.contract.errors import LoamError, RecipeError, of_a_file, of_the_disk
from stages.core.contract.secrets import redact

if TYPE_CHECKING:
    from inspect import BoundArguments

TERMINATED = 75
"""EX_TEMPFAIL of sysexits.h: try again later. A batch system can be told to start such a job again."""
INTERRUPTED = 130
BUILDING = ("run", "stage", "sweep", "decide")
"""Commands that go on where they were stopped."""


def main(words: Sequence[str] | None = None) -> int:
    """Runs one command.

    Args:
        words: the command-line arguments after `loam`; None takes them from `sys.argv`.

    Returns:
        The exit code.

    Raises:
        LoamError: the error of the command, with --debug.
        OSError: the error of a file or of the disk, with --debug.
    """
    words = list(sys.argv[1:] if words is None else words)
    home = ""
    try:
        if node := stage_help.named_node(words):
            return stage_help.print_stage_help(node, "--json" in words)
        command, bound = _parsed(words)
        home = bound.arguments.get("common", COMMON).home
        return int(command(*bound.args, **bound.kwargs) or 0)
    except LoamError as error:
        if "--debug" in words:
            raise
        say(f"loam: {redact(str(error))}", error=True)
        _say_notes(error)
        return error.exit_code
    except KeyboardInterrupt:
        say(f"loam: interrupted{_how_to_go_on(words)}", error=True)
        return INTERRUPTED
    except run_commands.TerminatedError:
        say(f"loam: stopped by SIGTERM{_how_to_go_on(words)}", error=True)
        return TERMINATED
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        from flows.opened_recipe import default_home

        if "--debug" in words:
            raise
        clear = of_the_disk(error, "for this command", default_home(home)) or of_a_file(error)
        say(f"loam: {redact(str(clear))}", error=True)
        _say_notes(error)
        return clear.exit_code


def _how_to_go_on(words: Sequence[str]) -> str:
    """Returns the end of the message for a command that was stopped. Only commands that build have something to go on with."""
    return "; run the same command again to go on" if words[:1] and words[0] in BUILDING and "--blame" not in words else ""


def _say_notes(error: Exception) -> None:
    """Prints the notes of an error, such as the path of the run's log."""
    for note in getattr(error, "__notes__", ()):
        say(f"  {note}", error=True)


def command_line() -> App:
    """Returns the cyclopts application: all commands, grouped into the panels of the help, and the installation of completion."""
    run, query, keep, serve = (Group(title, sort_key=place) for place, title in enumerate(("Run", "Query", "Keep", "Serve"), start=1))
    app = App(
        name="loam",
        help="From raw crawl to evaluated checkpoint. `loam COMMAND --help` explains a command.",
        help_format="plaintext",
        version=_version,
        version_flags=("--version", "-V"),
        group_commands=Group("Options", sort_key=9),
        default_parameter=Parameter(negative=(), show_default=False),
    )
    lineage = App(name="lineage", help="Query and maintain the record of runs and artifacts.", group=query, sort_key=9)
    runs = App(name="runs", help="List, rename and delete the recorded runs.", group=query, sort_key=8)
    runs.default(runs_commands.list_runs)
    app.command(lineage)
    app.command(runs)
    for to, panel, commands in (
        (app, run, (*init_commands.COMMANDS, *run_commands.COMMANDS, *sweep_commands.COMMANDS, *decide_command.COMMANDS)),
        (app, query, (*question_commands.COMMANDS, *settings_commands.COMMANDS)),
        (lineage, query, lineage_commands.COMMANDS),
        (lineage, keep, keep_commands.COMMANDS),
        (runs, keep, runs_commands.COMMANDS),
        (app, serve, serve_commands.COMMANDS),
    ):
        for place, command in enumerate(commands, start=1):
            to.command(command.run, name=command.name, group=panel, sort_key=place, help_epilogue=_examples(command))
    app.register_install_completion_command(help="Install completion for bash, zsh, fish or PowerShell.")
    return app


def _parsed(words: list[str]) -> tuple[Callable[..., int | None], BoundArguments]:
    """Parses a command line.

    Args:
        words: the arguments after `loam`.

    Returns:
        The function of the named command, and its bound arguments.

    Raises:
        RecipeError: the words are not a valid command.
    """
    app = command_line()
    try:
        chain, apps, rest = app.parse_commands(words)
        if apps[-1].default_command is None and not rest:
            raise RecipeError("No command is named.", do=f"`{' '.join(('loam', *chain))} --help` lists the commands.")
        command, bound, _ = app.parse_args(words, print_error=False, exit_on_error=False)
    except CycloptsError as error:
        clear: RecipeError = usage_error(error, app, words)
        raise clear from error
    common: Common = bound.arguments.get("common", COMMON)
    if "common" in bound.signature.parameters:
        bound.arguments["common"] = replace(common, command=" ".join(chain))
    return command, bound


def _examples(command: Command) -> str:
    return "\n".join(("Examples:", *(f"  {line}" for line in command.examples)))


def _version() -> str:
    from importlib.metadata import version

    return f"loam {version('loam')}"
