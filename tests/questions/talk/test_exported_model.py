"""Which exported model a name means, and which one is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from flows.pipeline import models
from stages.questions.talk.exported_model import find_model
from stages.record.contract.errors import RecipeError
from stages.record.index import database
from stages.record.store import names
from tests.questions.talk.talking_home import make_talking_home
from tests.questions.two_runs import make_artifact, make_run


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
