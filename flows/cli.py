"""`loam`: parsing and printing only. Exit codes: 0 done, 1 a stage failed, 2 usage or recipe error, 3 verification failed, 130 interrupted."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, NoReturn

from flows import questions
from flows.terminal import print_table, say, say_json
from stages.core.contract.errors import LoamError, of_a_file, of_the_disk
from stages.core.contract.printable import printable
from stages.core.contract.secrets import redact


def main(arguments: Sequence[str] | None = None) -> int:
    """The console entry point; returns the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        return code
    except LoamError as error:
        if options.debug:
            raise
        say(f"loam: {redact(str(error))}", error=True)
        return error.exit_code
    except KeyboardInterrupt:
        say("loam: interrupted; run the same command again to go on", error=True)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0
    except OSError as error:
        from flows.opened_recipe import default_home

        if options.debug:
            raise
        clear = of_the_disk(error, "for this command", default_home(getattr(options, "home", ""))) or of_a_file(error)
        say(f"loam: {redact(str(clear))}", error=True)
        return clear.exit_code


def build_parser() -> argparse.ArgumentParser:
    """All commands with their help."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--home", default="", help="folder of artifacts and index (default: LOAM_HOME, else data/ in the clone)")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    with_set = argparse.ArgumentParser(add_help=False)
    with_set.add_argument("--set", action="append", default=[], metavar="NODE.KEY=VALUE", help="change one recipe value; the value is YAML")
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print JSON")
    parser = _Parser(prog="loam", description="From raw crawl to evaluated checkpoint.", formatter_class=_wide)
    parser.add_argument("-V", "--version", action=_Version, help="print Loam's version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str, *parents: argparse.ArgumentParser, to: Any = commands
    ) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = to.add_parser(name, help=text, description=text, parents=[common, *parents])
        command.set_defaults(run=run)
        return command

    command = add("run", run_command, "execute what is missing of a recipe", with_set)
    command.add_argument("recipe", help="a recipe file, the name of one in configs/, or a recorded run to branch from")
    command.add_argument("--until", default="", metavar="NODE", help="stop after this node")
    command.add_argument("--from", default="", dest="start", metavar="NODE", help="build this node and all that follows it again")
    command.add_argument("--as", default="", dest="name", metavar="NAME", help="a name for the run, such as baseline")
    command = add("plan", plan_command, "what would run, and why", with_set, as_json)
    command.add_argument("recipe", help="a recipe file, the name of one in configs/, or a recorded run to branch from")
    command.add_argument("--until", default="", metavar="NODE", help="plan up to this node")
    command = add("stage", stage_command, "run one node of a recipe again", with_set)
    command.add_argument("node", help="for example dedup or evaluate@sft")
    command.add_argument("recipe", help="a recipe file, the name of one in configs/, or a recorded run to branch from")
    command.add_argument("--force", action="store_true", help="build although the artifact exists, and compare")
    questions.add_commands(commands, add, as_json)
    command = add("dashboard", dashboard_command, "the web dashboard on 127.0.0.1; prints the URL that opens it")
    command.add_argument("--port", type=int, default=8765)
    command = add("serve", serve_command, "Prefect server, process pool and worker, with prefect.yaml deployed")
    command.add_argument("--port", type=int, default=4200)
    return parser


class _Parser(argparse.ArgumentParser):
    """Its subcommands are of the same class."""

    def error(self, message: str) -> NoReturn:  # it repeats what was typed
        super().error(printable(message))


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002 - argparse's own name
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None) -> None:
        from importlib.metadata import version

        say(f"loam {version('loam')}")
        parser.exit()


def _wide(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=28, width=110)


def run_command(options: argparse.Namespace) -> int:
    from flows.opened_recipe import forced_nodes, open_session, refuse_damaged, refuse_missing
    from stages.core.store.names import refuse_taken

    session = open_session(options.recipe, options.set, options.home)
    plan = session.plan(options.until)
    refuse_missing(session, plan)
    refuse_taken(session.home, options.name)
    forced = forced_nodes(session, plan, options.start)
    refuse_damaged(session, plan, forced)
    if plan.complete and not forced:
        from flows.execute import walk

        command = {
            "flow": "pretrain",
            "recipe": options.recipe,
            "until": options.until,
            "start": "",
            "set": shlex.join(options.set),
            "force": "",
        }
        steps = session.steps(options.until)
        run_id = walk(session, steps, lambda node, perform: perform(lambda event: None), command, name=options.name)
        say(f"all {len(plan.steps)} nodes are cached", error=True)
    else:
        hits = sum(step.state == "cached" for step in plan.steps)
        say(f"recipe {session.recipe.name}: {len(plan.steps)} nodes, {hits} cached; home {session.home}", error=True)
        _start_prefect(session.home)
        from flows.pretrain_flow import pretrain
        from flows.terminal import watching

        with watching():
            run_id = pretrain(
                recipe=options.recipe, until=options.until, start=options.start, set=shlex.join(options.set), name=options.name, home=str(session.home)
            )  # fmt: skip
    _print_results(session.home, run_id)
    return 0


def stage_command(options: argparse.Namespace) -> int:
    from flows.opened_recipe import open_session, refuse_adopted
    from flows.pipeline import upstream

    upstream([options.node])
    session = open_session(options.recipe, options.set, options.home)
    refuse_adopted(session, [options.node])
    _start_prefect(session.home)
    from flows.stage_flow import stage
    from flows.terminal import watching

    with watching():
        stage(node=options.node, recipe=options.recipe, set=shlex.join(options.set), force=options.force, home=str(session.home))
    return 0


def plan_command(options: argparse.Namespace) -> int:
    from flows.opened_recipe import open_session, refuse_damaged, refuse_missing
    from stages.queries.plan import training_size

    session = open_session(options.recipe, options.set, options.home)
    plan = session.plan(options.until)
    size = training_size(session.recipe, plan)
    steps = [
        {"node": s.node, "state": s.state, "why": "; ".join(s.why), "artifact": s.artifact.path.name if s.artifact else ""}
        for s in plan.steps
    ]
    if options.json:
        say_json({"steps": steps, "size": dict(size), "missing": plan.missing})
    else:
        print_table(steps)
        say()
        for what, value in size:
            say(f"{what:<26} {value}")
    refuse_missing(session, plan)
    refuse_damaged(session, plan)
    return 0


def dashboard_command(options: argparse.Namespace) -> int:
    from dashboards.app import serve
    from flows.opened_recipe import default_home
    from flows.pipeline import road

    nodes = [node.name for node in road()]
    serve(default_home(options.home), nodes, options.port, lambda url: say(f"{url}  (Ctrl-C stops it)", flush=True))
    return 0


def serve_command(options: argparse.Namespace) -> int:
    from flows.opened_recipe import default_home
    from flows.serve import serve

    return serve(default_home(options.home), options.port)


def _start_prefect(home: Path) -> None:
    """A Prefect server for this run. Refuses a home that cannot be used before anything starts."""
    from flows.prefect_server import use_server
    from stages.core.store.runs import hold_home

    with hold_home(home):
        pass
    os.environ.setdefault("PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL", "CRITICAL")  # its console lines are left to ours
    use_server(home)


def _print_results(home: Path, run_id: str) -> None:
    """The short table of results and the report's path, when the run reached its report."""
    from stages.queries import lineage as ask

    nodes = {n["node"]: n["artifact_id"] for n in ask.show(home, run_id)["nodes"]}
    if "report" not in nodes:
        say(f"run {run_id}: {len(nodes)} nodes done")
        return
    folder = home / "artifacts" / nodes["report"]
    say()
    print_table(json.loads((folder / "results.json").read_text()))
    say()
    say(f"run     {run_id}")
    say(f"report  {folder / 'report.html'}")


if __name__ == "__main__":
    sys.exit(main())
