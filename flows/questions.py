"""The questions of the command line: `loam lineage …`, `loam trace`, `loam report`. Parsing and printing only."""

from __future__ import annotations

import argparse
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

from flows.terminal import print_nested, print_rows, say, say_json, size_text
from stages.core.contract.errors import RecipeError

COPIES_SHOWN = 50


def add_commands(commands: Any, add: Callable[..., argparse.ArgumentParser], as_json: argparse.ArgumentParser) -> None:
    """Adds `lineage`, `compare`, `trace`, `what-if` and `report` to the parser. add: makes a command (see cli.build_parser)."""
    lineage = commands.add_parser(
        "lineage", help="questions to the record of runs and artifacts", description="Questions to the record of runs and artifacts."
    )
    queries = lineage.add_subparsers(metavar="QUERY", required=True)
    name_help = "node, node/folder, alias (dedup-3), given name, or the start of a key or digest"
    add("runs", lineage_runs, "all runs, newest first", as_json, to=queries)
    for name, run, text in (
        ("show", lineage_show, "one artifact or run"),
        ("up", lineage_up, "everything an artifact was made from"),
        ("down", lineage_down, "everything made from an artifact"),
    ):
        add(name, run, text, as_json, to=queries).add_argument("name", help=name_help + (", or a run" if name == "show" else ""))
    command = add("name", lineage_name, "give an artifact or a run a name", to=queries)
    command.add_argument("target", help=name_help + ", or a run")
    command.add_argument("name", help="letters, digits, '.', '_' and '-'")
    command.add_argument("--move", action="store_true", help="take the name from what bears it")
    add("names", lineage_names, "all given names", as_json, to=queries)
    command = add("diff", lineage_diff, "what differs between two artifacts", as_json, to=queries)
    command.add_argument("a", help=name_help)
    command.add_argument("b", help=name_help)
    command = add(
        "affected",
        lineage_affected,
        "artifacts and checkpoints that hold documents of matching URLs, or copies of them",
        as_json,
        to=queries,
    )
    command.add_argument("--url-pattern", required=True, metavar="PATTERN", help="a URL, with %% for any characters")
    with_set = argparse.ArgumentParser(add_help=False)
    with_set.add_argument("--set", action="append", default=[], metavar="NODE.KEY=VALUE", help="change one recipe value")
    command = add("why", lineage_why, "why a node of a recipe is cached or missing", as_json, with_set, to=queries)
    command.add_argument("node")
    command.add_argument("recipe")
    command = add("sql", lineage_sql, "one SELECT over the record's tables and views; reads nothing else", as_json, to=queries)
    command.add_argument("sql", metavar="SELECT", help="for example \"SHOW TABLES\"; upstream('dpo-4') is what a checkpoint was made from")
    command.add_argument("--max-rows", type=_at_least_one, default=10_000, metavar="N", help="rows to show (default 10,000)")
    command.add_argument("--max-seconds", type=_at_least_one, default=60, metavar="S", help="time for the query (default 60)")
    add("verify", lineage_verify, "compare files with their recorded sha256", as_json, to=queries).add_argument(
        "name", nargs="?", default="", help=name_help + ", or a run (default: all)"
    )
    add("reindex", lineage_reindex, "build the index anew from the manifests", as_json, to=queries)
    command = add("adopt", lineage_adopt, "take files, or an artifact of another home, in as the artifact of a node", as_json, to=queries)
    command.add_argument("node", help="the node in whose place they stand, for example train_tokenizer, dedup or pretrain")
    command.add_argument("paths", nargs="+", metavar="PATH", help="files, a folder of them, or the folder of an artifact")
    command.add_argument("--provenance", required=True, metavar="TEXT", help="where they come from and on what terms; kept in the record")
    command.add_argument("--as", dest="name", default="", metavar="NAME", help="a name for the artifact")
    command = add("gc", lineage_gc, "remove artifacts that no kept run needs; without --yes only shows them", as_json, to=queries)
    command.add_argument(
        "--keep-runs", type=_at_least_one, default=1, metavar="N", help="finished runs to keep of each recipe, the newest (default 1)"
    )
    command.add_argument("--yes", action="store_true", help="remove what is shown")
    text = "two runs: config, data and score differences; two checkpoints or models: what changed in the weights"
    command = add("compare", compare_command, text, as_json)
    command.add_argument("a", metavar="A", help=f"a run (id, alias or given name), or a checkpoint or model: {name_help}")
    command.add_argument("b", metavar="B", help="another one of the same sort")
    command = add("trace", trace_command, "where a record went, and what a training step saw", as_json)
    what = command.add_mutually_exclusive_group(required=True)
    what.add_argument("--url", help="all captures of a URL (end with %% for a prefix)")
    what.add_argument("--doc", help="one document by doc_id")
    what.add_argument("--step", type=int, help="the documents of one pretraining step")
    which = command.add_mutually_exclusive_group()
    which.add_argument("--run", metavar="RUN", dest="run_asked", help="ask about what this run made: id, alias or given name")
    which.add_argument("--checkpoint", metavar="ARTIFACT", help=f"ask about this one (default: the newest pretrain): {name_help}")
    command = add("what-if", what_if_command, "what the filter would keep at other thresholds, from the stored signals", as_json, with_set)
    command.add_argument("artifact", metavar="filter", help="the filter's current artifact, or another one: filter/folder, key or digest")
    command = add("report", report_command, "print the path of a run's report")
    command.add_argument(
        "of_run", nargs="?", default="", metavar="RUN", help="a run id, alias or given name (default: the newest run with a report)"
    )


def trace_command(options: argparse.Namespace) -> int:
    from flows.opened_recipe import default_home
    from stages.queries import trace

    home = default_home(options.home)
    of = trace.start(home, options.run_asked or "", options.checkpoint or "", trained=options.step is not None)
    say(f"from {of.alias} ({of.artifact})" + (f" of run {of.run}" if of.run else ""), error=True)
    if options.step is not None:
        rows = trace.trace_step(home, of, options.step)
        if options.json:
            say_json({"from": of.named(), "rows": rows})
        else:
            print_rows(rows, False)
        return 0
    found = trace.trace_url(home, of, options.url) if options.url else [trace.trace_doc(home, of, options.doc)]
    if options.json:
        say_json({"from": of.named(), "documents": found})
        return 0
    for document in found:
        say(f"{document['doc_id']}  {document['url']}")
        for verdict in document["verdicts"]:
            say(f"  {verdict['node']:<14} {verdict['verdict']:<8} {verdict['reason'] or ''}")
        for span in document["tokens"]:
            say(f"  encode         {span['length']:,} tokens at {span['start']:,} of shard {span['shard']}")
        for row in document["rows"]:
            say(f"  mix            {row['part']} row {row['row']}, piece {row['piece']}: {row['length']} tokens")
        if document["steps"]:
            steps = document["steps"]
            say(f"  pretrain       steps {', '.join(map(str, steps[:20]))}{' …' if len(steps) > 20 else ''}")
    return 0


def what_if_command(options: argparse.Namespace) -> int:
    from flows.opened_recipe import default_home
    from flows.pipeline import road, stage_of
    from stages.queries.what_if import what_if

    stage = next(stage_of(node) for node in road() if node.name == "filter")
    rows = what_if(default_home(options.home), options.artifact, stage, options.set)
    print_rows(rows, options.json)
    if not options.json:
        today, then = rows[0]["today"], rows[0]["then"]
        total = sum(row["today"] for row in rows)
        say(f"\nkept today {today:,} of {total:,}; then {then:,} ({then - today:+,})")
    return 0


def report_command(options: argparse.Namespace) -> int:
    from flows.opened_recipe import default_home
    from stages.queries.lineage import report_path

    say(report_path(default_home(options.home), options.of_run))
    return 0


def lineage_runs(options: argparse.Namespace) -> int:
    from stages.queries import lineage

    print_rows(lineage.run_rows(_home(options)), options.json)
    return 0


def lineage_show(options: argparse.Namespace) -> int:
    from stages.queries import lineage

    found = lineage.show(_home(options), options.name)
    if options.json:
        say_json(found)
    else:
        print_nested(found)
    return 0


def lineage_name(options: argparse.Namespace) -> int:
    from stages.queries import lineage

    say(f"{options.name} is {lineage.give_name(_home(options), options.target, options.name, options.move)}")
    return 0


def lineage_names(options: argparse.Namespace) -> int:
    from stages.queries import lineage

    print_rows(lineage.name_rows(_home(options)), options.json)
    return 0


def lineage_up(options: argparse.Namespace) -> int:
    from stages.queries import lineage

    print_rows(lineage.up(_home(options), options.name), options.json)
    return 0


def lineage_down(options: argparse.Namespace) -> int:
    from stages.queries import lineage

    print_rows(lineage.down(_home(options), options.name), options.json)
    return 0


def lineage_why(options: argparse.Namespace) -> int:
    from flows.opened_recipe import open_session
    from flows.pipeline import upstream

    upstream([options.node])
    plan = open_session(options.recipe, options.set, options.home).plan(options.node)
    rows = [
        {"node": s.node, "state": s.state, "why": line}
        for s in plan.steps
        if s.state != "cached" or s.node == options.node
        for line in (s.why or ("",))
    ]
    print_rows(rows, options.json)
    return 0


def lineage_sql(options: argparse.Namespace) -> int:
    from stages.core.index import database
    from stages.core.index.sql_guard import Limits

    limits = Limits(rows=options.max_rows, seconds=options.max_seconds)
    rows, more = database.select(_home(options), options.sql, limits)
    print_rows(rows, options.json)
    if more:
        say(f"loam: only the first {limits.rows:,} rows are shown; --max-rows shows more", error=True)
    return 0


def lineage_verify(options: argparse.Namespace) -> int:
    from stages.queries import lineage

    checked, wrong = lineage.verify(_home(options), options.name)
    if options.json:
        say_json({"files": checked, "wrong": wrong})
    else:
        for line in wrong:
            say(line)
        say(f"{checked} files checked, {len(wrong)} differ")
    return 3 if wrong else 0


def lineage_reindex(options: argparse.Namespace) -> int:
    from stages.core.index import database

    home = _home(options)
    if not (home / "artifacts").is_dir():
        raise RecipeError("This home has no artifacts.", where=str(home), do="Name another home with --home.")
    artifacts, runs = database.reindex(home)
    if options.json:
        say_json({"artifacts": artifacts, "runs": runs}, None)
    else:
        say(f"{artifacts} artifacts and {runs} runs indexed")
    return 0


def lineage_diff(options: argparse.Namespace) -> int:
    from stages.queries import compare

    print_rows(compare.diff(_home(options), options.a, options.b), options.json)
    return 0


def compare_command(options: argparse.Namespace) -> int:
    from stages.queries import compare
    from stages.queries.lineage import read

    home = _home(options)
    if compare.are_runs(home, options.a, options.b):
        print_rows(compare.compare_runs(home, options.a, options.b), options.json)
        return 0
    from stages.queries.weights import compare_weights

    found = compare_weights(read(home, options.a), read(home, options.b))
    if options.json:
        say_json(found)
        return 0
    say(f"a  {found['a']}\nb  {found['b']}")
    for part, title in (
        ("config", "settings that differ"),
        ("alone", "parameters that only one has, or of another shape"),
        ("groups", "change of the weights"),
        ("layers", "relative change by layer"),
    ):
        if found[part]:
            say(f"\n{title}")
            print_rows(found[part], False)
    return 0


def lineage_affected(options: argparse.Namespace) -> int:
    from stages.queries.affected import affected

    found = affected(_home(options), options.url_pattern)
    if options.json:
        say_json({"artifacts": found.artifacts, "copies": found.copies})
        return 0
    print_rows(found.artifacts, False)
    nodes = list(dict.fromkeys(row["node"] for row in found.artifacts if row["relation"] != "names the files"))
    say(f"\n{len(found.artifacts)} artifacts; a rerun without these documents builds again: {', '.join(nodes)}")
    wanted = json.dumps([options.url_pattern])
    if not found.copies:
        say(f"To leave them out from filter on: --set 'filter.url.remove={wanted}'")
        say("No copy under another URL is known. The filter's log and summary say how many documents each pattern removed.")
        return 0
    hosts = list(dict.fromkeys(row["host"] for row in found.copies))
    say(
        f"\n{len(found.copies)} copies under other URLs, on {len(hosts)} hosts ({', '.join(hosts[:10])}{', …' if len(hosts) > 10 else ''}):"
    )
    print_rows(found.copies[:COPIES_SHOWN], False)
    if len(found.copies) > COPIES_SHOWN:
        say(f"and {len(found.copies) - COPIES_SHOWN} more; --json names all")
    say(f"\nTo leave them out with every copy: --set 'dedup.remove_copies_of={wanted}'")
    say(f"To leave out these URLs only (a copy then stays, or comes in their place): --set 'filter.url.remove={wanted}'")
    return 0


def lineage_adopt(options: argparse.Namespace) -> int:
    from flows.pipeline import stage_of, upstream
    from stages.core.run.import_artifact import adopt
    from stages.core.store import manifest
    from stages.core.store.names import give_name, refuse_taken

    node, home = upstream([options.node])[-1], _home(options)
    refuse_taken(home, options.name)
    result = adopt(home, node.name, stage_of(node), options.paths, options.provenance, lambda event: None)
    name = manifest.artifact_id(result.artifact)
    if options.name:
        give_name(home, options.name, name)
    stated = result.artifact.manifest.get("adopted", {}).get("provenance", "")
    if options.json:
        say_json({"artifact": name, "state": result.state, "name": options.name, "provenance": stated}, None)
        return 0
    say(
        f"{name}  {result.artifact.manifest['kind']}, {result.artifact.manifest['rows']:,} rows, {size_text(result.artifact.manifest['bytes'])}"
    )
    if result.state == "cached":
        say("was here already" + (f", with the provenance: {stated}" if stated else ", built by a run"))
    say(f"in a recipe   adopt: {{{node.name}: {options.name or name}}}")
    say(f"or            --set adopt.{node.name}={options.name or name}")
    return 0


def lineage_gc(options: argparse.Namespace) -> int:
    from stages.core.run.gc import collect, collectable

    home = _home(options)
    rows, freed = collect(home, options.keep_runs) if options.yes else (collectable(home, options.keep_runs), 0)
    print_rows(rows, options.json)
    if not options.json:
        total = f"{size_text(freed)} removed" if options.yes else size_text(sum(row["bytes"] for row in rows))
        say(f"\n{len(rows)} artifacts, {total}" + ("; add --yes to remove them" if rows and not options.yes else ""))
    return 0


def _at_least_one(text: str) -> int:
    if not text.isdigit() or int(text) < 1:
        raise argparse.ArgumentTypeError(f"{text!r} is not a number of at least 1")
    return int(text)


def _home(options: argparse.Namespace) -> Path:
    from flows.opened_recipe import default_home

    return default_home(options.home)
