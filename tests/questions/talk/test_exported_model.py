"""Which exported model a name means, and which one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.pipeline import models
from stages.questions.talk.exported_model import find_model, refuse_replaced_template
from stages.record.contract.errors import RecipeError
from stages.record.index import database
from stages.record.store import names
from tests.questions.talk.talking_home import change_manifest, make_talking_home
from tests.questions.two_runs import make_artifact, make_run

REPLACED = "It lacks pad. Its chat template is replaced by Loam's: it renders '<|im_start|>' …"


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return make_talking_home(tmp_path_factory.mktemp("talk") / "home")


@pytest.mark.parametrize(
    ("name", "alias", "chats"),
    [
        ("", "export@base-2", False),
        ("tiny-1", "export@dpo-1", True),
        ("run-2", "export@base-2", False),
        ("base", "export@base-2", False),
        ("sft", "export@sft-1", True),
        ("sft-1", "export@sft-1", True),
        ("export@dpo", "export@dpo-1", True),
        ("pretrain-1", "export@base-1", False),
        ("mine", "export@sft-1", True),
    ],
)
def test_a_name_means_an_exported_model(home: Path, name: str, alias: str, chats: bool) -> None:
    """The newest run counts before the better model: tiny-2 made base alone."""
    if name == "mine" and not names.all_names(home):
        names.give_name(home, "mine", find_model(home, "sft", models()).checkpoint)
        database.update(home)
    found = find_model(home, name, models())
    assert (found.alias, found.chats) == (alias, chats) and found.checkpoint.split("/")[0] == models()[found.name]


def test_what_was_not_exported_is_refused(home: Path, tmp_path: Path) -> None:
    with pytest.raises(
        RecipeError, match=r"There is no exported model\.\n  where: train_tokenizer-1\n  to do: Run a recipe up to an export"
    ):
        find_model(home, "train_tokenizer-1", models())
    with pytest.raises(RecipeError, match="There is no artifact 'nothing' here"):
        find_model(home, "nothing", models())
    make_run(tmp_path, 1, [make_artifact(tmp_path, "pretrain", 1, {}, {})])
    database.update(tmp_path)
    for name in ("", "tiny-1", "pretrain"):
        with pytest.raises(RecipeError, match="There is no exported model"):
            find_model(tmp_path, name, models())


@pytest.mark.parametrize(
    ("imported", "steps", "changes", "refused"),
    [(True, 0, REPLACED, True), (True, 0, "It lacks pad.", False), (True, 40, REPLACED, False), (False, 0, REPLACED, False)],
)
def test_a_model_with_a_template_that_is_not_kept_is_refused(
    tmp_path: Path, imported: bool, steps: int, changes: str, refused: bool
) -> None:
    """A model that Loam tuned knows Loam's template, whatever the tokenizer had before."""
    home = make_talking_home(tmp_path / "home")
    found = find_model(home, "dpo", models())
    facts = {"imported": {"provenance": "the hub", "files": []}} if imported else {}
    change_manifest(home, found.checkpoint, {"summary": {"steps": steps}, **facts})
    change_manifest(home, found.tokenizer, {"summary": {"changes": changes}})
    if not refused:
        refuse_replaced_template(home, found)
        return
    with pytest.raises(RecipeError, match="export@dpo-1 is an imported model whose own chat template the import of its tokenizer replaced"):
        refuse_replaced_template(home, found)


def test_a_model_whose_inputs_are_gone_can_be_talked_to(tmp_path: Path) -> None:
    home = make_talking_home(tmp_path / "home")
    found = find_model(home, "dpo", models())
    for name in (found.checkpoint, found.tokenizer):
        (home / "artifacts" / name / "manifest.json").unlink()
    refuse_replaced_template(home, found)
