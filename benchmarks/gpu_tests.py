"""One module's GPU tests as a part of `gpu.py`: a crash there does not poison the others.

`python gpu_tests.py tests/agent/boosts/test_tf32.py` prints what is known after each test, as one
line of JSON, and each failure on stderr as it comes.
"""

from __future__ import annotations

import json
import os
import re
import sys
from pathlib import Path
from typing import Any

import pytest

HERE = Path(__file__).parent
TESTS = HERE.parent / "tests"
SIDE_BY_SIDE = 4
LIMIT_S = 150.0
DRY = ("tests/agent/boosts/test_tf32.py",)


def main() -> int:
    (module,) = sys.argv[1:]
    # pytest prints on stdout: that is for figures alone.
    figures = os.fdopen(os.dup(1), "w", encoding="utf-8", buffering=1)
    os.dup2(2, 1)
    outcomes = Outcomes(figures)
    options = ["-m", "gpu", "-p", "no:cacheprovider", "-q", "-ra", "--import-mode=importlib"]
    # A compiler's warnings are no failures here, and what else pyproject.toml asks for may be
    # missing on that machine.
    options += ["--override-ini", "addopts=", "--override-ini", "filterwarnings=default"]
    code = pytest.main([module, *options], plugins=[outcomes])
    outcomes.tell()
    return 0 if code == pytest.ExitCode.NO_TESTS_COLLECTED else int(code)


def parts(dry: bool) -> list[tuple[Any, ...]]:
    """Each module with GPU tests: name, command, limit, words."""
    script = str(HERE / "gpu_tests.py")
    return [(module, (script, module), LIMIT_S, words) for module in (DRY if dry else modules())]


def modules() -> list[str]:
    """The modules that have GPU tests: others need packages that such a machine may lack."""
    marked = re.compile(r"mark\.gpu\b")
    files = sorted(TESTS.rglob("test_*.py"))
    found = [file for file in files if marked.search(file.read_text(encoding="utf-8"))]
    return [file.relative_to(TESTS.parent).as_posix() for file in found]


def words(figures: dict[str, Any]) -> str:
    counts = ", ".join(f"{figures[kind]} {kind}" for kind in KINDS if figures[kind])
    names = "".join(f"\n    {name}" for name in figures["failures"])
    return f"{counts or 'no tests'}{names}"


KINDS = ("passed", "failed", "skipped", "errors")


class Outcomes:
    """A plugin of pytest's."""

    def __init__(self, figures: Any) -> None:
        self.figures = figures
        self.counts = dict.fromkeys(KINDS, 0)
        self.failures: dict[str, str] = {}

    def pytest_runtest_logreport(self, report: pytest.TestReport) -> None:
        if report.when == "call" or report.outcome != "passed":
            error = report.failed and report.when != "call"
            self._count("errors" if error else report.outcome, report)

    def pytest_collectreport(self, report: pytest.CollectReport) -> None:
        if report.failed:
            self._count("errors", report)

    def _count(self, kind: str, report: pytest.TestReport | pytest.CollectReport) -> None:
        self.counts[kind] += 1
        if report.failed:
            lines = report.longreprtext.strip().splitlines() or [""]
            self.failures[report.nodeid] = lines[-1][:200]
            sys.stderr.write(f"\n----- {report.nodeid}\n{report.longreprtext}\n")
            sys.stderr.flush()
        self.tell()

    def tell(self) -> None:
        self.figures.write(json.dumps({**self.counts, "failures": self.failures}) + "\n")


if __name__ == "__main__":
    sys.exit(main())
