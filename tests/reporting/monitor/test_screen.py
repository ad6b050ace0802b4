"""The screen: what matters is on it, at any size, and nothing is wider or longer than that."""

from __future__ import annotations

import io
import os
import select
import sys
import time
from dataclasses import replace
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len
from rich.console import Console

from flatout.nouns.frame import Frame
from flatout.nouns.job_sample import JobSample
from flatout.reporting.monitor import live_screen, screen
from flatout.reporting.monitor.curves import KEPT, Curves
from reporting.monitor import frames

TESTS = Path(__file__).parents[2]


def drawn(frame: Frame, width: int = 120, height: int = 40, sort: str = "begin") -> list[str]:
    curves = Curves()
    curves.add(frame)
    return [line.plain for line in screen.lines(frame, width, height, curves, sort, "q quit")]


def test_a_machine_with_its_jobs() -> None:
    text = "\n".join(drawn(frames.eight_gpus()))
    for part in (
        "5 jobs, 2 alerts",
        "H100 80GB HBM3",
        "61G/80G",
        "512/700 W",
        "thermal",
        "train.py --epochs 0",
        "1234/20000",
        "201 ms",
        "41%",
        "2.317",
        "0-3",
        "1h02",
        "exit 1",
        "HANG001: the job waits",
        "82 ms of 200 ms a step",
        "$ flatout run --live S",
    ):
        assert part in text, part


@pytest.mark.parametrize(("width", "height"), [(80, 24), (120, 40), (200, 50)])
def test_the_gpus_the_jobs_and_the_alerts_are_there_at_any_size(width: int, height: int) -> None:
    text = "\n".join(drawn(frames.eight_gpus(), width, height))
    assert text.count("61G/80G") == 8
    for part in (
        "5 jobs, 2 alerts",
        "HANG001",
        "WAIT001",
        "train.py --epochs 4",
        "2.317",
        "q quit",
    ):
        assert part in text, part


def test_an_empty_machine() -> None:
    text = "\n".join(drawn(frames.empty()))
    assert "no job runs" in text
    assert "flatout run train.py" in text
    assert "memory -/-" in text


names = st.text(max_size=60)
jobs = st.builds(
    JobSample,
    id=names,
    state=st.sampled_from(["training", "ended", "foreign", "starting", "stalled"]),
    hostname=names,
    program=names,
    pid=st.integers(0, 10**6),
    step=st.one_of(st.none(), st.integers(0, 10**12)),
    step_s=st.one_of(st.none(), st.floats(0, 1e9)),
    loss=st.one_of(st.none(), st.floats()),
    wait_share=st.one_of(st.none(), st.floats(0, 1)),
    memory_bytes=st.one_of(st.none(), st.integers(0, 2**60)),
    left_s=st.one_of(st.none(), st.floats(0, 1e12)),
    gpus=st.lists(st.integers(0, 15), max_size=9).map(tuple),
    exit_code=st.one_of(st.none(), st.integers(0, 255)),
)


@given(st.lists(jobs, max_size=9), st.integers(20, 220), st.integers(3, 60))
def test_any_frame_fits(some: list[JobSample], width: int, height: int) -> None:
    lines = drawn(Frame(0.0, (frames.machine(gpus=2),), tuple(some)), width, height)
    assert len(lines) <= height
    assert all(cell_len(line) <= width and "\n" not in line for line in lines)


def test_jobs_are_sorted_and_ended_ones_come_last() -> None:
    slow, fast = frames.job(1, step_s=2.0), frames.job(2, step_s=0.1)
    ended = frames.job(3, state="ended", step_s=9.0)
    frame = Frame(0.0, (frames.machine(),), (ended, fast, slow))
    text = "\n".join(drawn(frame, sort="step time"))
    assert text.index("epochs 1") < text.index("epochs 2") < text.index("epochs 3")


def test_curves_are_bounded() -> None:
    curves = Curves()
    for number in range(KEPT + 200):
        job = frames.job(0) if number < 50 else frames.job(1)
        curves.add(Frame(0.0, (), (replace(job, loss=float(number)),)))
    assert len(curves.of("7-1", "loss")) == KEPT
    for _ in range(KEPT):
        curves.add(frames.empty())
    assert curves.of("7-0", "loss") == []


def test_one_frame_in_a_pipe() -> None:
    out = io.StringIO()
    live_screen.show_once(frames.eight_gpus(), Console(file=out, width=100))
    assert "\x1b" not in out.getvalue()
    assert "HANG001" in out.getvalue()


PROGRAM = """
import sys, time
from flatout.reporting.monitor import live_screen
from reporting.monitor import frames

def source():
    yield frames.eight_gpus()
    if sys.argv[1] == "source":
        raise ValueError("the source broke")
    while True:
        time.sleep(0.1)
        yield frames.eight_gpus()

try:
    live_screen.show(source())
except KeyboardInterrupt:
    sys.exit(130)
except ValueError:
    sys.exit(7)
"""


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="pseudo-terminals")
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("ends", "code"),
    [(b"q", 0), (b"\x03", 130), (b"source", 7)],
)
def test_on_a_terminal(ends: bytes, code: int) -> None:
    import pty

    environ = dict(os.environ, TERM="xterm-256color", COLUMNS="100", LINES="30")
    environ["PYTHONPATH"] = os.pathsep.join([str(TESTS), str(TESTS.parent / "src")])
    pid, descriptor = pty.fork()
    if pid == 0:
        os.execve(sys.executable, [sys.executable, "-c", PROGRAM, ends.decode()], environ)
    seen, sent, deadline = b"", False, time.monotonic() + 120
    try:
        while time.monotonic() < deadline:
            if not select.select([descriptor], [], [], 1.0)[0]:
                continue
            chunk = os.read(descriptor, 65536)
            if not chunk:
                break
            seen += chunk
            if b"HANG001" in seen and not sent and ends != b"source":
                sent = True
                os.write(descriptor, ends)
    except OSError:  # Linux says so where the other side is closed
        pass
    finally:
        if time.monotonic() >= deadline:
            os.kill(pid, 9)
        status = os.waitpid(pid, 0)[1]
        os.close(descriptor)
    assert os.waitstatus_to_exitcode(status) == code
    assert seen.count(b"\x1b[?1049h") == seen.count(b"\x1b[?1049l") == 1
    assert b"\x1b[?25h" in seen  # the cursor is back
