"""What a shell completes: commands, options, boosts, codes, signatures; and the scripts for it."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from commands.called import Flatout
from flatout import commands
from flatout.diagnosing import pages
from flatout.knowledge import backends, boosts, signatures
from flatout.launching import engines
from flatout.watching import pages as alert_pages

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


@pytest.mark.parametrize("line", ["flatout tune --only ", "flatout run --exact --skip "])
def test_boosts(completed: Completed, line: str) -> None:
    assert completed(line) == list(boosts.ids())
    assert completed(f"{line}bf16-a") == ["bf16-autocast"]


@pytest.mark.parametrize(
    ("line", "words"),
    [
        ("flatout doctor --fail-on ", ["error", "warning"]),
        ("flatout env install --manager ", ["pip", "uv", "conda"]),
        ("flatout explain --lang ", ["en", "zh"]),
        ("flatout explain loader-worker-kill", ["loader-worker-killed"]),
    ],
)
def test_words(completed: Completed, line: str, words: list[str]) -> None:
    assert completed(line) == words


def test_all_codes_and_signatures(completed: Completed) -> None:
    codes = {page.code for page in (*pages.every(), *alert_pages.every())}
    ids = {signature.id for signature in signatures.every()}
    assert set(signatures.ids()) == ids
    ids |= {*boosts.ids(), *backends.ids(), *engines.names()}
    assert set(completed("flatout explain ")) == codes | ids
    assert set(completed("flatout explain ENV0")) == {c for c in codes if c.startswith("ENV0")}
    assert "env002" in completed("flatout explain env00")


@pytest.mark.slow
def test_it_loads_nothing_expensive() -> None:
    code = (
        "import sys\nfrom flatout.commands import call\n"
        "try: call([])\n"
        f"finally: print([name for name in {EXPENSIVE} if name in sys.modules], file=sys.stderr)"
    )
    variables = {
        "COMP_WORDS": "flatout\nexplain\nENV",
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
    assert "ENV002" in done.stdout.split()
    assert done.stderr.strip() == "[]"


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="a POSIX shell asks")
def test_the_script_is_shown_and_installed(tmp_path: Path) -> None:
    command = f"{sys.executable} -m flatout --show-completion; true"
    shown = subprocess.run(
        ["bash", "-c", command], capture_output=True, text=True, check=False, timeout=120
    )
    assert "complete -o default -F _flatout_completion flatout" in shown.stdout
    command = f"{sys.executable} -m flatout --install-completion; true"
    subprocess.run(
        ["bash", "-c", command],
        env={**os.environ, "HOME": str(tmp_path)},
        capture_output=True,
        check=True,
        timeout=120,
    )
    script = (tmp_path / ".bash_completions" / "flatout.sh").read_text()
    assert script.strip() == shown.stdout.strip()
    assert "flatout.sh" in (tmp_path / ".bashrc").read_text()
