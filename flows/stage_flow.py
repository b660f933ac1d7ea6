"""Defines the flow `stage`: runs one node of a recipe again, on existing artifacts."""

from __future__ import annotations

from prefect import flow

from flows.execute import run_one
from flows.opened_recipe import open_session, split_settings
from flows.prefect_server import end_with_worker
from flows.task import step


@flow(name="stage", flow_run_name="{node}-of-{recipe}", persist_result=False)  # type: ignore[untyped-decorator]
def stage(node: str, recipe: str = "tiny", set: str = "", force: bool = True, home: str = "") -> str:  # noqa: A002
    """Runs one node. With force (the default), a cached node is built again next to the old artifact and compared.

    Args:
        node: for example dedup or evaluate@sft.
        recipe: name of a recipe in configs/, or a path.
        set: settings as in a shell: "dedup.threshold=0.7".
        force: build again although the artifact exists.
        home: folder of artifacts and index; empty for LOAM_HOME or data/.

    Returns:
        The run id.
    """
    end_with_worker()
    session = open_session(recipe, split_settings(set), home)
    command: dict[str, str | bool] = {"flow": "stage", "recipe": recipe, "node": node, "set": set, "force": force}
    return run_one(session, node, step, command, force)
