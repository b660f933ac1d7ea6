"""`loam`: parsing and printing only. Exit codes: 0 done, 1 a stage failed, 2 usage or recipe error, 3 verification failed, 130 interrupted."""

from __future__ import annotations

import argparse
import json
import os
import shlex
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from flows.show import print_nested, print_rows, print_table
from stages.core.errors import LoamError, RecipeError


def main(arguments: Sequence[str] | None = None) -> int:
    """The console entry point; returns the exit code."""
    options = build_parser().parse_args(arguments)
    try:
        code: int = options.run(options)
        return code
    except LoamError as error:
        if options.debug:
            raise
        print(f"loam: {error}", file=sys.stderr)
        return error.exit_code
    except KeyboardInterrupt:
        print("loam: interrupted; run the same command again to go on", file=sys.stderr)
        return 130
    except BrokenPipeError:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 0


def build_parser() -> argparse.ArgumentParser:
    """All commands with their help."""
    common = argparse.ArgumentParser(add_help=False)
    common.add_argument("--home", default="", help="folder of artifacts and index (default: LOAM_HOME, else data/ in the clone)")
    common.add_argument("--debug", action="store_true", help="show the traceback of an error")
    with_set = argparse.ArgumentParser(add_help=False)
    with_set.add_argument("--set", action="append", default=[], metavar="NODE.KEY=VALUE", help="change one recipe value; the value is YAML")
    as_json = argparse.ArgumentParser(add_help=False)
    as_json.add_argument("--json", action="store_true", help="print JSON")
    parser = argparse.ArgumentParser(prog="loam", description="From raw crawl to evaluated checkpoint.", formatter_class=_wide)
    parser.add_argument("-V", "--version", action=_Version, help="print Loam's version")
    commands = parser.add_subparsers(metavar="COMMAND", required=True)

    def add(
        name: str, run: Callable[[argparse.Namespace], int], text: str, *parents: argparse.ArgumentParser, to: Any = commands
    ) -> argparse.ArgumentParser:
        command: argparse.ArgumentParser = to.add_parser(name, help=text, description=text, parents=[common, *parents])
        command.set_defaults(run=run)
        return command

    command = add("run", run_command, "execute what is missing of a recipe", with_set)
    command.add_argument("recipe", help="a recipe file, or the name of one in configs/")
    command.add_argument("--until", default="", metavar="NODE", help="stop after this node")
    command = add("plan", plan_command, "what would run, and why", with_set, as_json)
    command.add_argument("recipe", help="a recipe file, or the name of one in configs/")
    command.add_argument("--until", default="", metavar="NODE", help="plan up to this node")
    command = add("stage", stage_command, "run one node of a recipe again", with_set)
    command.add_argument("node", help="for example dedup or evaluate@sft")
    command.add_argument("recipe", help="a recipe file, or the name of one in configs/")
    command.add_argument("--force", action="store_true", help="build although the artifact exists, and compare")
    _add_lineage(commands, add, as_json)
    command = add("trace", trace_command, "where a record went, and what a training step saw", as_json)
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument("--url", help="all captures of a URL (end with %% for a prefix)")
    what.add_argument("--doc", help="one document by doc_id")
    what.add_argument("--step", type=int, help="the documents of one pretraining step")
    command = add("report", report_command, "print the path of a run's report")
    command.add_argument("of_run", nargs="?", default="", metavar="RUN", help="a run id (default: the newest report)")
    command = add("dashboard", dashboard_command, "the web dashboard on 127.0.0.1")
    command.add_argument("--port", type=int, default=8765)
    command = add("serve", serve_command, "Prefect server, process pool and worker, with prefect.yaml deployed")
    command.add_argument("--port", type=int, default=4200)
    return parser


def _add_lineage(commands: Any, add: Callable[..., argparse.ArgumentParser], as_json: argparse.ArgumentParser) -> None:
    lineage = commands.add_parser(
        "lineage", help="questions to the record of runs and artifacts", description="Questions to the record of runs and artifacts."
    )
    queries = lineage.add_subparsers(metavar="QUERY", required=True)
    name_help = "node, node/folder, or the start of a key or digest"
    add("runs", lineage_runs, "all runs, newest first", as_json, to=queries)
    for name, run, text in (
        ("show", lineage_show, "one artifact or run"),
        ("up", lineage_up, "everything an artifact was made from"),
        ("down", lineage_down, "everything made from an artifact"),
    ):
        add(name, run, text, as_json, to=queries).add_argument("name", help=name_help)
    with_set = argparse.ArgumentParser(add_help=False)
    with_set.add_argument("--set", action="append", default=[], metavar="NODE.KEY=VALUE", help="change one recipe value")
    command = add("why", lineage_why, "why a node of a recipe is a hit or a miss", as_json, with_set, to=queries)
    command.add_argument("node")
    command.add_argument("recipe")
    add("sql", lineage_sql, "one read-only SQL query", as_json, to=queries).add_argument("sql")
    add("verify", lineage_verify, "compare files with their recorded sha256", as_json, to=queries).add_argument(
        "name", nargs="?", default="", help=name_help + ", or a run id (default: all)"
    )
    add("reindex", lineage_reindex, "build the index anew from the manifests", as_json, to=queries)


class _Version(argparse.Action):
    """Looks the version up only when it is asked for."""

    def __init__(self, option_strings: Sequence[str], dest: str, help: str) -> None:  # noqa: A002 - argparse's own name
        super().__init__(option_strings, dest, nargs=0, help=help)

    def __call__(self, parser: argparse.ArgumentParser, namespace: Any, values: Any, option_string: str | None = None) -> None:
        from importlib.metadata import version

        print(f"loam {version('loam')}")
        parser.exit()


def _wide(prog: str) -> argparse.HelpFormatter:
    return argparse.HelpFormatter(prog, max_help_position=28, width=110)


def run_command(options: argparse.Namespace) -> int:
    from flows.road import upstream
    from flows.session import open_session, record_all_hits, refuse_lacks

    session = open_session(options.recipe, options.set, options.home)
    if options.until:
        upstream([options.until])
    plan = session.plan(options.until)
    refuse_lacks(session, plan)
    command = {"flow": "pretrain", "recipe": options.recipe, "until": options.until, "set": shlex.join(options.set), "force": ""}
    if plan.complete:
        from stages.core import runs

        with runs.home_lock(session.home):
            run_id = record_all_hits(session, plan, command)
        print(f"all {len(plan.steps)} nodes are hits", file=sys.stderr)
    else:
        _prepare_prefect(session.home)
        from flows.pretrain import pretrain
        from flows.show import watching

        hits = sum(step.state == "hit" for step in plan.steps)
        print(f"recipe {session.recipe.name}: {len(plan.steps)} nodes, {hits} hits; home {session.home}", file=sys.stderr)
        with watching():
            run_id = pretrain(recipe=options.recipe, until=options.until, set=shlex.join(options.set), home=str(session.home))
    _print_results(session.home, run_id)
    return 0


def stage_command(options: argparse.Namespace) -> int:
    from flows.road import upstream
    from flows.session import open_session

    upstream([options.node])
    session = open_session(options.recipe, options.set, options.home)
    _prepare_prefect(session.home)
    from flows.show import watching
    from flows.stage import stage

    with watching():
        stage(node=options.node, recipe=options.recipe, set=shlex.join(options.set), force=options.force, home=str(session.home))
    return 0


def plan_command(options: argparse.Namespace) -> int:
    from flows.session import open_session, refuse_lacks
    from stages.ask.plan import training_size

    session = open_session(options.recipe, options.set, options.home)
    plan = session.plan(options.until)
    size = training_size(session.recipe, plan)
    steps = [
        {"node": s.node, "state": s.state, "why": "; ".join(s.why), "artifact": s.artifact.path.name if s.artifact else ""}
        for s in plan.steps
    ]
    if options.json:
        print(json.dumps({"steps": steps, "size": dict(size), "lacks": plan.lacks}, indent=1))
    else:
        print_table(steps)
        print()
        for what, value in size:
            print(f"{what:<26} {value}")
    refuse_lacks(session, plan)
    return 0


def trace_command(options: argparse.Namespace) -> int:
    from flows.session import default_home
    from stages.ask import trace

    home = default_home(options.home)
    if options.step is not None:
        print_rows(trace.trace_step(home, options.step), options.json)
        return 0
    found = trace.trace_url(home, options.url) if options.url else [trace.trace_doc(home, options.doc)]
    if options.json:
        print(json.dumps(found, indent=1, default=str))
        return 0
    for document in found:
        print(f"{document['doc_id']}  {document['url']}")
        for verdict in document["verdicts"]:
            print(f"  {verdict['node']:<14} {verdict['verdict']:<8} {verdict['reason'] or ''}")
        for span in document["tokens"]:
            print(f"  encode         {span['length']:,} tokens at {span['start']:,} of shard {span['shard']}")
        for row in document["rows"]:
            print(f"  mix            {row['part']} row {row['row']}, piece {row['piece']}: {row['length']} tokens")
        if document["steps"]:
            steps = document["steps"]
            print(f"  pretrain       steps {', '.join(map(str, steps[:20]))}{' …' if len(steps) > 20 else ''}")
    return 0


def report_command(options: argparse.Namespace) -> int:
    from flows.session import default_home
    from stages.ask.lineage import report_path

    print(report_path(default_home(options.home), options.of_run))
    return 0


def dashboard_command(options: argparse.Namespace) -> int:
    from dashboards.app import serve
    from flows.road import road
    from flows.session import default_home

    print(f"http://127.0.0.1:{options.port}  (Ctrl-C stops it)", flush=True)
    serve(default_home(options.home), [node.name for node in road()], options.port)
    return 0


def serve_command(options: argparse.Namespace) -> int:
    from flows.serve import serve
    from flows.session import default_home

    return serve(default_home(options.home), options.port)


def lineage_runs(options: argparse.Namespace) -> int:
    from stages.ask import lineage

    print_rows(lineage.run_rows(_home(options)), options.json)
    return 0


def lineage_show(options: argparse.Namespace) -> int:
    from stages.ask import lineage

    found = lineage.show(_home(options), options.name)
    if options.json:
        print(json.dumps(found, indent=1, default=str))
    else:
        print_nested(found)
    return 0


def lineage_up(options: argparse.Namespace) -> int:
    from stages.ask import lineage

    print_rows(lineage.up(_home(options), options.name), options.json)
    return 0


def lineage_down(options: argparse.Namespace) -> int:
    from stages.ask import lineage

    print_rows(lineage.down(_home(options), options.name), options.json)
    return 0


def lineage_why(options: argparse.Namespace) -> int:
    from flows.road import upstream
    from flows.session import open_session

    upstream([options.node])
    plan = open_session(options.recipe, options.set, options.home).plan(options.node)
    rows = [
        {"node": s.node, "state": s.state, "why": line}
        for s in plan.steps
        if s.state != "hit" or s.node == options.node
        for line in (s.why or ("",))
    ]
    print_rows(rows, options.json)
    return 0


def lineage_sql(options: argparse.Namespace) -> int:
    from stages.core import lineage

    print_rows(lineage.records(_home(options), options.sql), options.json)
    return 0


def lineage_verify(options: argparse.Namespace) -> int:
    from stages.ask import lineage

    checked, wrong = lineage.verify(_home(options), options.name)
    if options.json:
        print(json.dumps({"files": checked, "wrong": wrong}, indent=1))
    else:
        for line in wrong:
            print(line)
        print(f"{checked} files checked, {len(wrong)} differ")
    return 3 if wrong else 0


def lineage_reindex(options: argparse.Namespace) -> int:
    from stages.core import lineage

    home = _home(options)
    if not (home / "artifacts").is_dir():
        raise RecipeError("This home has no artifacts.", where=str(home), do="Name another home with --home.")
    artifacts, runs = lineage.reindex(home)
    print(json.dumps({"artifacts": artifacts, "runs": runs}) if options.json else f"{artifacts} artifacts and {runs} runs indexed")
    return 0


def _home(options: argparse.Namespace) -> Path:
    from flows.session import default_home

    return default_home(options.home)


def _prepare_prefect(home: Path) -> None:
    """Sets the environment before prefect is imported; its own console lines are left to ours. Refuses a home that is in use."""
    from flows.environment import prefect_settings
    from stages.core.runs import home_lock

    with home_lock(home):
        pass

    (home / "prefect").mkdir(parents=True, exist_ok=True)  # the server does not make the folder of its database
    for name, value in {**prefect_settings(home), "PREFECT_LOGGING_HANDLERS_CONSOLE_LEVEL": "CRITICAL"}.items():
        os.environ.setdefault(name, value)


def _print_results(home: Path, run_id: str) -> None:
    """The short table of results and the report's path, when the run reached its report."""
    from stages.ask import lineage as ask

    nodes = {n["node"]: n["artifact_id"] for n in ask.show(home, run_id)["nodes"]}
    if "report" not in nodes:
        print(f"run {run_id}: {len(nodes)} nodes done")
        return
    folder = home / "artifacts" / nodes["report"]
    print()
    print_table(json.loads((folder / "results.json").read_text()))
    print()
    print(f"run     {run_id}")
    print(f"report  {folder / 'report.html'}")


if __name__ == "__main__":
    sys.exit(main())
