"""`flatout run` watches its job: history, alerts, the end; a monitor beside it, killed or not."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

import forked
from flatout.nouns.errors import INTERRUPTED
from flatout.nouns.frame import Frame
from flatout.nouns.machine_sample import MachineSample
from flatout.probing.live.sampler import MachineSampler
from flatout.watching import job_watch
from flatout.watching.job_watch import JobWatch
from flatout.watching.observing import JobsObserver
from flatout.watching.recording import frames as frames_of

LIMIT_S = 120.0
SCRIPT = """
import sys, time, torch
from torch import nn

torch.manual_seed(0)
model = nn.Linear(16, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
steps, seconds, nan_from = int(sys.argv[1]), float(sys.argv[2]), int(sys.argv[3])
for step in range(1, steps + 1):
    loss = model(torch.randn(8, 16)).square().mean()
    if nan_from and step >= nan_from:
        loss = loss * float("nan")
    optimizer.zero_grad()
    loss.backward()
    optimizer.step()
    time.sleep(seconds)
print("trained", flush=True)
if len(sys.argv) > 4:
    raise RuntimeError(sys.argv[4])
"""
PATIENT = """
from flatout.watching import job_watch
job_watch.JOIN_S = 60.0
from flatout.__main__ import main
main()
"""
"""`flatout`, which waits for its last look however busy the machine is."""
pytestmark = pytest.mark.slow


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    (tmp_path / "train.py").write_text(SCRIPT)
    (tmp_path / "runtime").mkdir(mode=0o700)
    monkeypatch.setenv("XDG_RUNTIME_DIR", str(tmp_path / "runtime"))
    monkeypatch.chdir(tmp_path)
    return tmp_path


def started(*arguments: str) -> subprocess.Popen[str]:
    words = ["run", "--no-plan", "--python", forked.python(), "train.py", *arguments]
    command = [sys.executable, "-c", PATIENT, *words]
    environ = dict(os.environ, OMP_NUM_THREADS="1")
    return subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environ
    )


def history() -> list[Frame]:
    (run,) = Path(".flatout/runs").glob("*-run")
    return list(frames_of(run))


def until(observer: JobsObserver, holds: Callable[[Frame], Any]) -> Frame:
    deadline = time.monotonic() + LIMIT_S
    while time.monotonic() < deadline:
        frame = observer.frame()
        if holds(frame):
            return frame
        time.sleep(0.2)
    raise AssertionError(f"it did not come: {frame}")


def own(frame: Frame) -> Iterator[Any]:
    """Other tests list their jobs elsewhere, and all lists are read. With torch loaded by another
    test this process is a foreign job itself.
    """
    jobs = (job for job in frame.jobs if job.folder == str(Path.cwd()))
    return (job for job in jobs if job.state != "foreign")


def test_a_run_has_a_history_and_its_output_is_as_without(folder: Path) -> None:
    process = started("60", "0.02", "0")
    out, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 0
    assert out == "trained\n"
    frames = history()
    job = frames[-1].jobs[0]
    assert (job.state, job.exit_code, job.step) == ("ended", 0, 60)
    steps = {step.step: step.loss for frame in frames for step in frame.jobs[0].recent_steps}
    assert steps
    assert all(loss is not None for loss in steps.values())
    told = {alert.code for frame in frames for alert in frame.alerts}
    assert told <= {"DISK001"}, "of the machine, which may have little room"
    assert set(re.findall(r"[A-Z]+001", errors)) <= {"DISK001"}
    assert list((folder / "runtime/flatout").glob("*.rings")) == []


def test_a_lost_loss_is_told_once_and_a_failure_is_in_the_history(folder: Path) -> None:
    process = started("80", "0.02", "20", "CUDA error: out of memory")
    out, errors = process.communicate(timeout=LIMIT_S)
    assert (process.returncode, out) == (1, "trained\n")
    told = [line for line in errors.splitlines() if "NAN001" in line]
    assert len(told) == 1
    assert "the loss is NaN since step 20" in told[0]
    assert "RuntimeError: CUDA error: out of memory" in errors
    last = history()[-1]
    assert last.jobs[0].exit_code == 1
    alerts = {alert.code: alert for alert in last.alerts}
    assert "NAN001" in alerts
    assert alerts["END001"].state == "firing"
    assert "exit code 1" in alerts["END001"].evidence


@pytest.mark.thorough
def test_ctrl_c_raises_no_alert_whatever_the_programs_own_code_is(folder: Path) -> None:
    body = textwrap.indent(SCRIPT, "    ")
    (folder / "train.py").write_text(f"try:{body}except KeyboardInterrupt:\n    sys.exit(1)\n")
    process = started("100000", "0.02", "0")
    with JobsObserver() as observer:
        until(observer, lambda frame: any((job.step or 0) > 5 for job in own(frame)))
    process.send_signal(signal.SIGINT)
    _, errors = process.communicate(timeout=LIMIT_S)
    assert process.returncode == 1
    last = history()[-1]
    assert (last.jobs[0].exit_code, last.alerts) == (INTERRUPTED, ())
    assert "flatout: interrupted after " in errors


def test_a_monitor_sees_it_train_and_end(folder: Path) -> None:
    process = started("100000", "0.02", "0")
    try:
        with JobsObserver() as observer:
            frame = until(observer, lambda f: any((job.step or 0) > 30 for job in own(f)))
            (job,) = own(frame)
            assert job.state == "training"
            assert (job.step_s or 0) >= 0.02
            assert job.loss is not None
            assert job.samples_per_s is not None
            assert job.memory_bytes is not None
            assert not [other for other in frame.jobs if other.pid == job.pid and other != job]
            program = job.pid
            os.kill(program, signal.SIGKILL)
            frame = until(observer, lambda f: any(job.state == "ended" for job in own(f)))
            (job,) = own(frame)
            assert job.exit_code == 137
            assert any(alert.code == "END001" for alert in frame.alerts)
    finally:
        process.kill()
        process.communicate()


@pytest.mark.thorough
def test_where_no_list_can_be_kept_it_runs_unwatched(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from flatout.watching.job_watch import JobWatch
    from flatout_agent.wire import job_list

    def refused() -> list[Path]:
        return [folder / "train.py" / "no folder"]

    monkeypatch.setattr(job_list, "folders", refused)
    watch = JobWatch("train.py", (), print)
    assert watch.prepare(folder) == ""
    watch.begin(1)
    watch.end(0)
    watch.close()
    assert capsys.readouterr().out == ""


@pytest.mark.thorough
def test_a_driver_that_blocks_delays_nobody_at_the_end(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    asked, go_on = threading.Event(), threading.Event()

    def blocks(sampler: MachineSampler, *args: object) -> MachineSample:
        asked.set()
        go_on.wait()
        return MachineSample(1.0, "node")

    monkeypatch.setattr(MachineSampler, "sample", blocks)
    watch = JobWatch("train.py", (), print, every_s=0.01)
    run = folder / "run"
    run.mkdir()
    watch.prepare(run)
    watch.begin(os.getpid())
    assert asked.wait(LIMIT_S)
    watch.end(3)
    watch.close()
    go_on.set()
    frames = list(frames_of(run))
    assert [frame.jobs[0].exit_code for frame in frames] == [3]


@pytest.mark.thorough
def test_stacks_under_way_leave_no_rings_behind(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(job_watch, "JOIN_S", 0.01)
    watch = JobWatch("train.py", (), print)
    run = folder / "run"
    run.mkdir()
    rings = Path(watch.prepare(run))
    rings.mkdir(exist_ok=True)
    watch.begin(os.getpid())
    with watch._lock:
        watch.end(0)
        watch.close()
    assert not rings.exists()
