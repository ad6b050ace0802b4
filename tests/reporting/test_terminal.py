import subprocess
import sys

import pytest

from flatout.nouns.run_end import RunEnd
from flatout.reporting import terminal

LONG = "a path that is far longer than any terminal is wide " * 3


def test_error_says_what_and_what_next_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.error(f"no such script: [red]x[/] {LONG}", "flatout tune <your script>")
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.splitlines() == [
        f"flatout: error: no such script: [red]x[/] {LONG.strip()}",
        "flatout: next: flatout tune <your script>",
    ]


def test_warn_is_one_line_whatever_comes_in(capsys: pytest.CaptureFixture[str]) -> None:
    terminal.warn("machine differs\n\x1b[2Jfrom the plan's\r!")
    assert capsys.readouterr().err == "flatout: warning: machine differs from the plan's !\n"


def test_a_run_ends_with_one_line_on_stderr(capsys: pytest.CaptureFixture[str]) -> None:
    end = RunEnd(
        steps=1200,
        samples_per_s=78.0,
        peak_bytes=3 * 1024**3,
        wait_share=0.04,
        engaged=("bf16-autocast", "channels-last"),
        not_engaged={"compile": "Traceback\nno C++ compiler"},
    )
    terminal.run_ended(end, quiet=False)
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err == (
        "flatout: 1,200 steps, 78 samples/s, peak memory 3.0 GiB, 4.0% of the time waiting for "
        "data; engaged: bf16-autocast, channels-last; not engaged: compile (no C++ compiler)\n"
    )


def test_importing_the_reports_draws_in_nothing_heavy() -> None:
    code = (
        "import sys, flatout.reporting.terminal, flatout.reporting.document\n"
        "import flatout.reporting.html\n"
        "print([m for m in ('rich', 'jinja2', 'torch') if m in sys.modules])"
    )
    found = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, check=True, timeout=120
    )
    assert found.stdout.strip() == "[]"


def test_a_run_interrupted_before_its_first_step_says_nothing_else(
    capsys: pytest.CaptureFixture[str],
) -> None:
    """That it never imported torch is no news of a program that was stopped at doing so."""
    end = RunEnd(0, interrupted=True, notes=("the program never imported torch",))
    terminal.run_ended(end, quiet=False)
    assert capsys.readouterr().err == "flatout: interrupted before its first step\n"
    terminal.run_ended(end, quiet=True)
    assert capsys.readouterr().err == ""
