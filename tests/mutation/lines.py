"""Which test executes which line of the mutated modules, recorded with coverage.py while the tests run without a mutant.

Guarantee: a line that a test executes is attributed to it, also where a process that it starts executes it; what a fixture of a file or of
the session executes is attributed to every test of the file; what the import of a module executes is attributed to none, and is listed as
`imported`. A process that is killed reports nothing, and a function that a cache has answered already is attributed to the test that called
it first: such a test is left out where it could have detected a mutant, which counts a mutant as a survivor too many, never one too few.
Cost: about a third of the tests' time.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Generator, Sequence
from pathlib import Path
from typing import Any

import pytest

IMPORTED, WIDE = "", "*"
START = "COVERAGE_PROCESS_START"
STARTED = ("subprocess.Popen", "os.posix_spawn", "os.fork")
HOOK = f"""import os
if os.environ.get("{START}"):
    import coverage
    coverage.process_startup()
"""


class LineRecorder:
    """A pytest plugin that records the lines of some modules per test.

    Args:
        folder: Takes what coverage.py writes.
        traced: Paths of the modules below the current folder.
    """

    def __init__(self, folder: Path, traced: Sequence[str]) -> None:
        import coverage

        self.traced, self.data = {os.path.abspath(path): path for path in traced}, folder / "coverage"
        self.tests, self.starting, self.test = list[str](), set[str](), ""
        hooks = self.data / "hooks"
        hooks.mkdir(parents=True)
        (hooks / "sitecustomize.py").write_text(HOOK)
        settings = hooks / "coveragerc"
        listed = "\n    ".join(self.traced)
        settings.write_text(
            f"[run]\nparallel = true\nsigterm = true\npatch = _exit\ncore = ctrace\ndata_file = {self.data}/child\ninclude =\n    {listed}\n"
        )
        self.coverage = coverage.Coverage(data_file=None, include=list(self.traced), config_file=False)
        self.coverage.set_option("run:core", "ctrace")
        os.environ[START] = str(settings)
        os.environ["PYTHONPATH"] = os.pathsep.join([str(hooks), *filter(None, [os.environ.get("PYTHONPATH")])])
        sys.addaudithook(self._audit)
        self.coverage.start()

    def _audit(self, event: str, _: Any) -> None:
        if event in STARTED:
            self.starting.add(self.test)

    def pytest_runtest_logstart(self, nodeid: str) -> None:
        self.tests.append(nodeid)
        self.test = nodeid
        self.coverage.switch_context(nodeid)

    @pytest.hookimpl(wrapper=True)
    def pytest_fixture_setup(self, fixturedef: pytest.FixtureDef[Any]) -> Generator[None, object, object]:
        if fixturedef.scope == "function":
            return (yield)
        before, self.test = self.test, WIDE
        self.coverage.switch_context(WIDE)
        try:
            return (yield)
        finally:
            self.test = before
            self.coverage.switch_context(before)

    def found(self) -> dict[str, dict[str, list[str]]]:
        """Returns module -> line -> the tests that execute it; IMPORTED is one of them if an import does."""
        import coverage

        self.coverage.stop()
        own = self.coverage.get_data()
        lines = {path: dict[int, set[str]]() for path in self.traced.values()}
        for absolute, path in self.traced.items():
            for line, contexts in own.contexts_by_lineno(absolute).items():
                lines[path].setdefault(line, set()).update(*(self.tests if c == WIDE else [c] for c in contexts))
        starting = self.tests if WIDE in self.starting else sorted(self.starting)
        for file in sorted(self.data.glob("child.*")):
            data = coverage.CoverageData(str(file))
            data.read()
            for absolute, path in self.traced.items():
                for line in data.lines(absolute) or ():
                    lines[path].setdefault(line, set()).update(starting)
        return {path: {str(line): sorted(tests) for line, tests in by_line.items()} for path, by_line in lines.items() if by_line}
