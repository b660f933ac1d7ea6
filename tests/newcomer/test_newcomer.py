"""A newcomer with own files: from a clone, by the commands of the README, without a look at the source.

The files are made for these tests: a crawl, texts in English and German, chats, preference pairs, benchmarks, a tokenizer. The tests run in
order and share one home, as a newcomer's days would. Training takes a dozen steps.
"""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import subprocess
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import pytest

from tests.conftest import PROJECT, answered
from tests.made.prose import sentences
from tests.made.variants import Data
from tests.tokens.train_tokenizer.test_tokenizer_mend import like_llama2

pytestmark = [pytest.mark.newcomer, pytest.mark.timeout(1500)]
FEW = [f"{node}.{key}" for node in ("pretrain", "sft", "dpo")
       for key in ("budget={steps: 12}", "warmup_steps=2", "eval_every_steps=6", "checkpoint_every_steps=6")]  # fmt: skip
SMALL = [
    "train_tokenizer.vocab_size=600",
    "mix.validation_frac=0.1",
    *(f"filter.{rules}.enabled=false" for rules in ("gopher_quality", "gopher_repetition", "c4", "fineweb")),
]  # the made texts repeat words


@dataclass
class Newcomer:
    """A clone, a folder with own files, and a home."""

    clone: Path
    files: Path
    home: Path

    def loam(self, *words: str, code: int = 0) -> str:
        """Returns what a command printed on both streams. Its exit code must be `code`."""
        variables = {**os.environ, "PYTHONPATH": str(self.clone), "LOAM_HOME": str(self.home)}
        command = [sys.executable, "-m", "flows.cli", *words]
        done = subprocess.run(command, cwd=self.clone, env=variables, capture_output=True, text=True, check=False, timeout=800)
        printed = done.stdout + done.stderr
        assert done.returncode == code and "Traceback" not in printed, f"loam {shlex.join(words)}: {done.returncode}\n{printed[-4000:]}"
        return done.stdout if "--json" in words else printed

    def recipe(self, name: str, text: str) -> str:
        """Writes a recipe and returns its path."""
        path = self.files / f"{name}.yaml"
        path.write_text(text)
        return str(path)


def given(settings: Sequence[str]) -> list[str]:
    return [word for setting in settings for word in ("--set", setting)]


@pytest.fixture(scope="module")
def me(tmp_path_factory: pytest.TempPathFactory, made: Data) -> Newcomer:
    root = tmp_path_factory.mktemp("newcomer")
    subprocess.run(["git", "clone", "-q", str(PROJECT), str(root / "loam")], check=True)
    files = root / "my files"
    shutil.copytree(made.part("crawl"), files / "crawl", ignore=lambda _, names: [name for name in names if not name.startswith("CRAWL-")])
    shutil.copytree(made.part("bench"), files / "bench")
    shutil.copytree(made.part("sft"), files / "chats")
    shutil.copytree(made.part("preference"), files / "pairs")
    (files / "texts").mkdir()
    for language in ("en", "de"):
        rows = [
            {"text": " ".join(sentences(language, 60, f"{language}{number}")), "url": f"http://own.example/{language}/{number}"}
            for number in range(60)
        ]
        (files / "texts" / f"{language}.jsonl").write_text("".join(json.dumps(row) + "\n" for row in rows))
    return Newcomer(root / "loam", files, root / "home")


def test_files_of_every_kind_become_a_model_that_generates(me: Newcomer) -> None:
    out = str(me.files / "mine.yaml")
    printed = me.loam(
        "init", f"{me.files}/crawl", f"{me.files}/texts", f"{me.files}/chats", f"{me.files}/pairs", f"{me.files}/bench", "--out", out
    )
    commands = [shlex.split(line)[1:] for line in printed.splitlines() if line.startswith("  loam ")]
    assert [command[0] for command in commands] == ["plan", "run"]
    settings = given([*FEW, *SMALL])
    assert "pretraining tokens" in me.loam(*commands[0], *settings)
    end = me.loam(*commands[1], *settings, "--as", "first")
    model = Path(re.findall(r"^model +(/.*)$", end, re.M)[-1])
    assert (model / "model.safetensors").is_file() and "report  " in end
    lines = re.findall(r"^  (from .*|\w+ = .*|print.*)$", end, re.M)
    assert len(lines) == 3
    done = subprocess.run([sys.executable, "-c", "\n".join(lines)], capture_output=True, text=True, check=False, timeout=300)
    assert done.returncode == 0, done.stderr[-2000:]
    for line in re.findall(r"^  loam (.*)$", end, re.M):
        if not line.startswith(("dashboard", "report")):
            me.loam(*shlex.split(line, comments=True))
    assert "first" in me.loam("runs")


def test_a_base_model_needs_no_chats_no_pairs_and_no_benchmarks(me: Newcomer) -> None:
    out = str(me.files / "base.yaml")
    me.loam("init", f"{me.files}/texts", "--out", out)
    plan = answered(me.loam("plan", out, *given([*FEW[:4], *SMALL]), "--json"))
    assert {"sft", "dpo", "conversations", "benchmarks"} <= set(plan["off"]) and plan["missing"] == []
    end = me.loam("run", out, *given([*FEW[:4], *SMALL]))
    assert "export@base" in end and "report  " in end


def test_two_sources_are_weighed(me: Newcomer) -> None:
    recipe = me.recipe("weighed", f"""name: weighed
crawl:
  sources: {{english: ["{me.files}/texts/en.jsonl"], german: ["{me.files}/texts/de.jsonl"]}}
filter: {{languages: [en, de], gopher_quality: {{enabled: false}}, c4: {{enabled: false}}, fineweb: {{enabled: false}}, gopher_repetition: {{enabled: false}}}}
train_tokenizer: {{vocab_size: 600}}
mix: {{seq_len: 64, validation_frac: 0.1, weights: {{english: 0.75, german: 0.25}}, total_tokens: 8000}}
""")  # fmt: skip
    me.loam("run", recipe, "--until", "mix")
    rows = answered(me.loam("lineage", "sql", "SELECT source, sum(length) AS tokens FROM sequence_spans JOIN upstream('mix') "
                            "USING (artifact_id, node) WHERE part = 'train' GROUP BY source ORDER BY source", "--json"))["rows"]  # fmt: skip
    tokens = {row["source"]: row["tokens"] for row in rows}
    assert set(tokens) == {"english", "german"} and 0.7 < tokens["english"] / sum(tokens.values()) < 0.8


def test_a_tokenizer_of_their_own(me: Newcomer) -> None:
    (me.files / "tokenizer").mkdir()
    like_llama2().save(str(me.files / "tokenizer" / "tokenizer.json"))
    words = ("lineage", "import", "train_tokenizer", f"{me.files}/tokenizer/tokenizer.json", "--provenance", "mine", "--as", "own")
    assert "Uses bos = <s>" in me.loam(*words, "--map", "bos=<s>", "--map", "eos=</s>")
    end = me.loam("run", f"{me.files}/weighed.yaml", "--set", "import.train_tokenizer=own", "--until", "mix")
    assert "1 imported" in end and re.search(r"^encode +built", end, re.M)


def test_a_takedown(me: Newcomer) -> None:
    named = me.loam("lineage", "affected", "--url-pattern", "http://own.example/de/%")
    assert "holds" in named
    removed = ["--set", "filter.url.remove=[http://own.example/de/%]"]
    me.loam("run", f"{me.files}/weighed.yaml", *removed, "--until", "filter", "--as", "without")
    rows = answered(me.loam("lineage", "sql", "SELECT count(*) AS n FROM documents JOIN upstream('filter') USING (artifact_id, node) "
                            "WHERE node = 'filter' AND url LIKE 'http://own.example/de/%'", "--json"))["rows"]  # fmt: skip
    assert rows == [{"n": 0}]


def test_a_home_that_moved_answers_and_is_cached(me: Newcomer) -> None:
    before, me.home = me.home, me.home.with_name("moved home")
    before.rename(me.home)
    assert "weighed" in me.loam("runs") and ", 0 differ" in me.loam("lineage", "verify")
    assert "cached" in me.loam("run", f"{me.files}/weighed.yaml", "--until", "mix")


def test_an_upgrade_computes_only_what_changed(me: Newcomer) -> None:
    module = me.clone / "stages" / "corpus" / "dedup" / "stage.py"
    text = module.read_text()
    assert text.count("    versions=(\n") == 1
    module.write_text(text.replace("    versions=(\n", '    versions=(\n        "a version before the first one",\n'))
    steps = {step["node"]: step for step in answered(me.loam("plan", f"{me.files}/weighed.yaml", "--until", "mix", "--json"))["steps"]}
    assert (steps["filter"]["state"], steps["dedup"]["state"]) == ("cached", "missing") and "version" in steps["dedup"]["why"]
    end = me.loam("run", f"{me.files}/weighed.yaml", "--until", "mix")
    assert re.search(r"^dedup +built", end, re.M) and re.search(r"^mix +cached", end, re.M), "the same documents: nothing after it changes"
