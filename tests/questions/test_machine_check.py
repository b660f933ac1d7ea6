"""What `loam doctor` says of machines that lack something. The functions get the values, so no machine is needed for them."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from flows.cli import main
from stages.questions import machine_check
from stages.questions.machine_check import Finding

PINS = "numpy==2.3.5\ntorch==2.13.0\nabsent==1.0\n"


def test_versions_that_differ_from_the_pins_are_named(tmp_path: Path) -> None:
    (tmp_path / "constraints.txt").write_text(PINS)
    same = machine_check.versions(tmp_path / "constraints.txt", {"numpy": "2.3.5", "torch": "2.13.0+cpu"})
    assert same.verdict == "ok" and "as pinned" in same.found
    other = machine_check.versions(tmp_path / "constraints.txt", {"numpy": "2.3.4", "torch": "2.13.0"})
    assert other.verdict == "warning" and "numpy 2.3.4 (pinned: 2.3.5)" in other.found and "torch" not in other.found
    assert machine_check.versions(tmp_path / "none", {}).verdict == "ok"


def test_what_is_scarce_is_a_warning(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    assert machine_check.cores(4, 9.3) == Finding(
        "cores", "warning", "4, and 9.3 processes want them", "Other work makes runs slower and their times useless."
    )
    assert machine_check.cores(4, 3.9).verdict == "ok"
    limited = machine_check.memory(64 << 30, 3 << 30)
    assert limited.verdict == "warning" and "of which a control group allows 3.2 GB" in limited.found
    assert machine_check.memory(64 << 30, None).verdict == machine_check.memory(8 << 30, 1 << 60).verdict == "ok"
    assert machine_check.open_files(256).do == "ulimit -n 4096" and machine_check.open_files(1024).verdict == "ok"
    assert machine_check.open_files(-1).found == "no limit"
    usage: Any = SimpleNamespace(free=5e9, total=5e8)
    monkeypatch.setattr(shutil, "disk_usage", lambda path: usage)
    assert (
        machine_check.disk("disk", tmp_path / "no" / "home").verdict == "warning"
        and "5.0 GB free" in machine_check.disk("disk", tmp_path).found
    )
    assert machine_check.shared_memory(tmp_path).verdict == "warning"
    usage.free = usage.total = 5e10
    assert machine_check.disk("disk", tmp_path).verdict == machine_check.shared_memory(tmp_path).verdict == "ok"


def test_a_folder_that_cannot_be_written_is_a_fault(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(machine_check.os, "access", lambda path, how: False)
    found = machine_check.disk("disk of the home", tmp_path / "home")
    assert found.verdict == "fault" and found.found == f"{tmp_path} cannot be written" and "--home" in found.do


def test_gpus_that_torch_cannot_use_are_a_fault(monkeypatch: pytest.MonkeyPatch) -> None:
    import torch

    assert machine_check.gpus([]).found == "none; trainings run on the CPU"
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    found = machine_check.gpus(["NVIDIA H100"] * 2)
    assert found.verdict == "fault" and "can use none" in found.found and "nvidia-smi" in found.do
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    for count, verdict in ((1, "warning"), (2, "ok")):
        monkeypatch.setattr(torch.cuda, "device_count", lambda count=count: count)
        assert machine_check.gpus(["NVIDIA H100"] * 2).verdict == verdict


def test_compiler_proxy_and_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CXX", "no-such-compiler")
    assert machine_check.compiler(True).verdict == "warning" and "no-such-compiler" in machine_check.compiler(False).found
    assert machine_check.proxy({}).found == "none" and machine_check.proxy({"HTTPS_PROXY": "http://proxy:3128"}).verdict == "ok"
    assert machine_check.proxy({"http_proxy": "proxy:3128"}).do == "Write it as http://HOST:PORT."
    assert machine_check.threads({}).found == "1 per training rank" and machine_check.threads({"OMP_NUM_THREADS": "4"}).verdict == "ok"
    assert machine_check.threads({"OMP_NUM_THREADS": "many"}).verdict == "warning"


def test_a_limit_of_a_control_group_is_read(tmp_path: Path) -> None:
    for text, limit in (("max\n", None), ("1073741824\n", 1 << 30)):
        (tmp_path / "memory.max").write_text(text)
        assert machine_check._limit_bytes(tmp_path / "memory.max") == limit
    assert machine_check._limit_bytes(tmp_path / "none") is None


def test_the_command_prints_every_finding_and_fails_with_a_fault(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    home = ["--home", str(tmp_path / "home")]
    assert main(["doctor", "machine", *home, "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)["answer"]
    assert {"versions", "cores", "memory", "open files", "disk of the home", "GPUs", "compiler", "proxy", "threads"} <= {
        row["what"] for row in rows
    }
    assert not (tmp_path / "home").exists()
    monkeypatch.setattr(
        machine_check, "check_machine", lambda home, variables: [Finding("GPUs", "fault", "none", "Install them."), Finding("b", "ok", "c")]
    )
    assert main(["doctor", *home]) == 1
    assert capsys.readouterr().out == "FAULT    GPUs: none\n         Install them.\nok       b: c\n\n1 faults, 0 warnings\n"
