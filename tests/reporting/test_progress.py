import io
import os
import re
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from rich.console import Console

from flatout.nouns.observer import Observer
from flatout.nouns.trial import Trial, Verdict
from flatout.reporting.progress import TuneView
from reporting import tuned_examples

UNIX = pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals are a Unix thing")


def play(view: Observer) -> None:
    """One tuning, told as the loop tells it."""
    tuned = tuned_examples.good()
    view.phase("measuring the program as written")
    for index, trial in enumerate(tuned.trials, 1):
        if trial.verdict is not Verdict.SKIPPED:
            view.started(trial.tried, trial.params, index, 21.0)
            view.step(0, "warmup", 0.5)
            view.step(1, "window", 0.4)
        view.finished(trial)
    assert tuned.confirmation is not None
    for pair, ratio in enumerate(tuned.confirmation.ratios, 1):
        if pair > 1:
            view.confirming(pair, None)
        view.confirming(pair, ratio)


def test_a_log_gets_one_plain_line_per_trial() -> None:
    file = io.StringIO()
    with TuneView(Console(file=file)) as view:
        play(view)
    lines = file.getvalue().splitlines()
    assert "bf16-autocast: kept, 1.92x, 786 ms/step" in lines
    assert "as written: 1514 ms/step" in lines
    assert "as written, again: its own noise: 1509 ms/step" in lines
    assert "skipped: 3 boosts that do not apply" in lines
    assert "A/B pair 5: 3.70x" in lines
    failed = [line for line in lines if line.startswith("compile mode=max-autotune: failed - ")]
    assert failed and "CUDA out of memory" in failed[0]
    assert len(lines) == 1 + 11 + 1 + 5  # phase, trials, skipped together, pairs
    assert "\x1b" not in file.getvalue()


def test_what_a_longer_run_may_try_is_named_with_its_reason() -> None:
    file = io.StringIO()
    with TuneView(Console(file=file)) as view:
        view.finished(Trial((), "tf32", reason="TF32 needs an NVIDIA GPU"))
        late = Trial((), "compile", reason="no time left", why_untried="no_time")
        view.finished(late)
        view.finished(late)  # the next process of the tuning says so again
    assert file.getvalue().splitlines() == [
        "skipped: 1 boost that does not apply",
        "compile: not tried - no time left",
    ]


def test_why_a_trial_failed_is_not_cut() -> None:
    reason = "RuntimeError: " + "the compiler has found nothing to compile here, " * 4
    trial = Trial((), "compile", verdict=Verdict.FAILED, reason=reason)
    file = io.StringIO()
    view = TuneView(Console(file=file, width=80))
    view.animated = True  # as on a terminal: the columns of a table
    view.finished(trial)
    assert reason.strip() in " ".join(line.strip() for line in file.getvalue().splitlines())


def test_a_log_with_forced_colours_is_not_animated() -> None:
    """FORCE_COLOR makes rich take a file for a terminal."""
    file = io.StringIO()
    with TuneView(Console(file=file, _environ={"FORCE_COLOR": "1"})) as view:
        play(view)
    assert "\r" not in file.getvalue() and "\x1b[2K" not in file.getvalue()


def test_what_each_process_skips_is_told_once() -> None:
    file = io.StringIO()
    with TuneView(Console(file=file)) as view:
        for _ in range(3):
            view.finished(tuned_examples.good().trials[-1])
            view.phase("again")
    assert file.getvalue().count("skipped") == 1


SCRIPT = """
import sys
from flatout.reporting.progress import TuneView
from reporting import test_progress, tuned_examples
with TuneView() as view:
    test_progress.play(view)
    view.started("compile", {"mode": "default"}, 9, None)
    view.step(3, "warmup", 0.123)
    sys.stdin.readline()
print("done")
"""


class Terminal:
    """A process on a pseudo-terminal of its own (stderr); stdout is a pipe."""

    def __init__(self, width: int, **variables: str) -> None:
        import pty

        self.master, slave = pty.openpty()
        roots = [str(Path(__file__).parents[1]), *(path for path in sys.path if path)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(roots),
            "COLUMNS": str(width),
            "TERM": "xterm-256color",
            **variables,
        }
        self.process = subprocess.Popen(
            [sys.executable, "-c", SCRIPT],
            stderr=slave,
            stdin=slave,
            stdout=subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
        os.close(slave)
        self.seen = b""

    def read(self) -> bool:
        """Take in what there is; False when the other side has closed."""
        try:
            data = os.read(self.master, 65536)
        except OSError:  # Linux says so when the last holder of the other side has gone
            return False
        self.seen += data
        return bool(data)

    def until(self, wanted: bytes, seconds: float = 120) -> None:
        end = time.monotonic() + seconds
        while wanted not in self.seen:
            assert time.monotonic() < end and self.read(), self.seen[-500:]

    def end(self, drawn: bytes) -> tuple[str, str, int]:
        """Let it end once that was drawn."""
        self.until(drawn)
        os.write(self.master, b"\n")
        return self.close()

    def close(self) -> tuple[str, str, int]:
        """Screen output, standard output and exit code."""
        while self.read():
            pass
        output, _ = self.process.communicate(timeout=120)
        os.close(self.master)
        return self.seen.decode(), output.decode(), self.process.returncode


@pytest.mark.slow
@UNIX
@pytest.mark.parametrize("width", [80, 120])
def test_rows_stay_and_the_running_trial_moves(width: int) -> None:
    screen, output, code = Terminal(width).end(b"123 ms/step, warm-up, step 3")
    assert code == 0
    assert output == "done\n"  # nothing of the view on stdout
    rows = [line.split("\x1b[2K")[-1] for line in screen.splitlines()]
    assert any("bf16-autocast" in row and "1.92x  kept" in row for row in rows)
    assert any("CUDA out of memory" in row for row in rows)
    assert any("so far 3.61x 3.67x" in row for row in rows)
    assert "compile mode=default: 123 ms/step, warm-up, step 3" in screen
    assert screen.index("\x1b[?25l") < screen.index("\x1b[?25h")
    assert screen.count("\x1b[?25h") >= 1


@pytest.mark.slow
@UNIX
def test_no_color_has_no_colours_and_still_moves() -> None:
    screen, _, _ = Terminal(80, NO_COLOR="1").end(b"123 ms/step")
    assert "\x1b[2K" in screen
    assert not re.search(r"\x1b\[(?:\d+;)*3\dm", screen)


@UNIX
def test_a_dumb_terminal_gets_plain_lines() -> None:
    screen, _, _ = Terminal(80, TERM="dumb").end(b"786 ms/step")
    assert "\x1b" not in screen
    assert "bf16-autocast: kept, 1.92x, 786 ms/step" in screen.splitlines()


@pytest.mark.slow
@UNIX
def test_ctrl_c_gives_the_terminal_back() -> None:
    terminal = Terminal(80)
    terminal.until(b"123 ms/step")
    assert b"\x1b[?25h" not in terminal.seen  # the cursor is hidden while it moves
    terminal.process.send_signal(signal.SIGINT)
    screen, output, code = terminal.close()
    assert "KeyboardInterrupt" in screen and code != 0 and output == ""
    hidden, shown = screen.rindex("\x1b[?25l"), screen.rindex("\x1b[?25h")
    assert hidden < shown < screen.index("KeyboardInterrupt")
