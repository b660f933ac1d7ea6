"""The flow `pretrain`: walks the whole road of a recipe, one task per node. Parameters are flat scalars."""

from __future__ import annotations

from prefect import flow

from flows.road import upstream
from flows.session import open_session, refuse_lacks, split_settings
from flows.step import step
from flows.walk import walk


@flow(name="pretrain", flow_run_name="{recipe}", persist_result=False)
def pretrain(recipe: str = "full", until: str = "", set: str = "", force: str = "", home: str = "") -> str:  # noqa: A002
    """From raw crawl to report. Returns the run id.

    Args:
        recipe: name of a recipe in configs/, or a path.
        until: the last node to run; empty for all.
        set: settings as in a shell: "pretrain.steps=20 crawl.warcs='[a, b]'".
        force: nodes to build again, separated by commas.
        home: folder of artifacts and index; empty for LOAM_HOME or data/.
    """
    session = open_session(recipe, split_settings(set), home)
    forced = [name.strip() for name in force.split(",") if name.strip()]
    upstream(forced)
    refuse_lacks(session, session.plan(until))
    command = {"flow": "pretrain", "recipe": recipe, "until": until, "set": set, "force": force}
    return walk(session, session.steps(until), step, command, forced)
