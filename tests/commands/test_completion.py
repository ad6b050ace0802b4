"""What a shell completes: commands and options; and the scripts for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable

import pytest

from commands.called import Flatout
from flatout import commands

Completed = Callable[[str], list[str]]
EXPENSIVE = ("torch", "rich", "numpy", "psutil")


@pytest.fixture
def completed(flat: Flatout) -> Completed:
    """What bash offers for a line's last word, as its script asks for it."""

    def words_for(line: str) -> list[str]:
        words = line.split(" ")
        variables = {"COMP_WORDS": "\n".join(words), "COMP_CWORD": str(len(words) - 1)}
        done = flat(variables={**variables, "_FLATOUT_COMPLETE": "complete_bash"})
        assert done.returncode == 0, done.stderr
        assert done.stderr == ""
        return done.stdout.split()

    return words_for


def test_commands_and_options(completed: Completed) -> None:
    assert sorted(completed("flatout ")) == commands.names()
    assert completed("flatout tu") == ["tune"]
    assert "--budget" in completed("flatout tune --")
    assert "hook" in completed("flatout env ")
    assert "--mirror" in completed("flatout env docker --")
    assert completed("flatout doctor --fail-on ") == ["error", "warning"]


@pytest.mark.slow
def test_it_loads_nothing_expensive() -> None:
    code = (
        "import sys\nfrom flatout.commands import call\n"
        "try: call([])\n"
        f"finally: print([name for name in {EXPENSIVE} if name in sys.modules], file=sys.stderr)"
    )
    variables = {
        "COMP_WORDS": "flatout\ntune\n--bu",
        "COMP_CWORD": "2",
        "_FLATOUT_COMPLETE": "complete_bash",
    }
    done = subprocess.run(
        [sys.executable, "-c", code],
        env={**os.environ, **variables},
        capture_output=True,
        text=True,
        check=False,
        timeout=120,
    )
    assert done.stdout.split() == ["--budget"]
    assert done.stderr.strip() == "[]"
