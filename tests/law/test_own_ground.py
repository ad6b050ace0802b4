"""Tests hold their own ground: what they start can be interrupted, and ends when they fail; and a
program in a fork (`forked`) is as one with a process of its own."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import psutil
import pytest

import forked
from every import for_every

FAILS = """
import os, signal, subprocess, sys

def started(code, **options):
    options = {"stdout": subprocess.PIPE, "stderr": subprocess.DEVNULL, "text": True, **options}
    process = subprocess.Popen([sys.executable, "-c", code], **options)
    return process.stdout.readline().strip()

WAIT = "import os, time; print(os.getpid(), flush=True); time.sleep(600)"

def test_fails():
    with open("failed", "w") as left:
        print(started(WAIT, start_new_session=True), file=left)
    with open("sigint", "w") as sigint:
        code = "import signal; print(signal.getsignal(signal.SIGINT).__name__)"
        print(started(code), file=sigint)
    raise AssertionError("on purpose")

def test_fails_not():
    with open("passed", "w") as left:
        print(started(WAIT, start_new_session=True), file=left)
"""


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="POSIX sessions")
def test_what_tests_start_can_be_interrupted_and_ends_with_them(tmp_path: Path, root: Path) -> None:
    (tmp_path / "test_some.py").write_text(FAILS)
    mine = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
    command = [sys.executable, "-m", "pytest", "-p", "processes", "-n", "2", "-q", tmp_path]
    try:
        done = subprocess.run(
            command,
            cwd=tmp_path,
            # As where a worker of the same name runs this test: the inner workers are no test's.
            env={**os.environ, "PYTHONPATH": str(root / "tests"), "PYTEST_XDIST_WORKER": "gw1"},
            capture_output=True,
            text=True,
            timeout=120,
            preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_IGN),
        )
        assert "1 failed, 1 passed" in done.stdout, done.stdout + done.stderr
        assert (tmp_path / "sigint").read_text() == "default_int_handler\n"
        failed, passed = ((tmp_path / name).read_text().strip() for name in ("failed", "passed"))
        assert not psutil.pid_exists(int(failed))
        assert not psutil.pid_exists(int(passed))
        assert "left running, and ended now -" in done.stdout
        assert f"{failed} {sys.executable}" in done.stdout
        assert f"{passed} {sys.executable}" in done.stdout.partition("by tests, and ended now")[2]
        assert mine.poll() is None  # another run's
    finally:
        mine.kill()
        mine.wait()


PROGRAM = """
import atexit, os, signal, sys
atexit.register(print, "cleaned up")
print(sys.argv, os.getcwd(), os.environ["WORD"], "PYTEST_CURRENT_TEST" in os.environ)
print(__name__, __file__, sys.path[0], sys.stdin.read(), flush=True)
print("an error", file=sys.stderr)
if sys.argv[1] == "raises":
    raise ValueError(sys.argv[2])
if sys.argv[1] == "terminates":
    os.kill(os.getpid(), signal.SIGTERM)
sys.exit(int(sys.argv[1]))
"""


@pytest.mark.slow
@pytest.mark.skipif(not forked.POSSIBLE, reason="there are no forks")
def test_a_program_in_a_fork_is_as_one_of_its_own(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(PROGRAM)
    for words in (["0"], ["3"], ["raises", "on purpose"], ["terminates"]):
        own, fork = (
            subprocess.run(
                [python, "train.py", *words],
                cwd=tmp_path,
                env={**os.environ, "WORD": "given"},
                input="typed",
                capture_output=True,
                text=True,
                timeout=120,
            )
            for python in (sys.executable, forked.python())
        )
        assert (fork.returncode, fork.stdout) == (own.returncode, own.stdout), fork.stderr
        assert fork.stderr.splitlines()[-1] == own.stderr.splitlines()[-1]
    code = [forked.python(), "-c", "import sys; print('torch' in sys.modules)"]
    assert subprocess.run(code, capture_output=True, text=True).stdout == "False\n"


WAITS = """
import os, signal, time
signal.signal(signal.SIGUSR1, lambda *_: print("warned", flush=True))
print(os.getpid(), flush=True)
time.sleep(600)
"""


@pytest.mark.slow
@pytest.mark.skipif(not forked.POSSIBLE, reason="there are no forks")
def test_a_program_in_a_fork_hears_signals_and_ends_with_its_starter(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(WAITS)
    command = [forked.python(), "train.py"]
    with subprocess.Popen(command, cwd=tmp_path, stdout=subprocess.PIPE, text=True) as starter:
        assert starter.stdout is not None
        program = psutil.Process(int(starter.stdout.readline()))
        starter.send_signal(signal.SIGUSR1)
        assert starter.stdout.readline() == "warned\n"
        starter.kill()
    assert psutil.wait_procs([program], timeout=120)[1] == []
    process = forked.start(["train.py"], tmp_path, os.environ)
    program = psutil.Process(process.pid)
    process.kill()
    assert psutil.wait_procs([program], timeout=120)[1] == []


def test_a_law_names_all_that_break_it() -> None:
    @for_every(range(5), lambda number: f"number {number}")
    def law(number: int) -> None:
        assert number % 2 == 0, "odd"
        [0, 0, 0][number]

    with pytest.raises(pytest.fail.Exception) as caught:
        law()
    rows = str(caught.value).splitlines()
    assert rows[0] == "3 of 5"
    assert [row.partition(":")[0] for row in rows if "number" in row] == [
        "number 1",
        "number 3",
        "number 4",
    ]
