"""What a program that trains with the library tells of its steps, without `flatout run`."""

from __future__ import annotations

import json
import math
import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch
from torch import nn

import flatout
from flatout.nouns.job_sample import PulseStep
from flatout.running.one import jobs
from flatout.running.one.ring import Ring, rings
from flatout_agent.tell import stack_dump
from flatout_agent.watch import beat, library_pulse
from flatout_agent.wire import pulse as layout

pytestmark = pytest.mark.skipif(sys.platform == "win32", reason="an open file stays")
PROGRAM = """
import os, sys, torch, flatout
model = torch.nn.Linear(2, 1)
optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
step = flatout.train_step(model, torch.nn.MSELoss(), optimizer, compile=False)
def train(steps):
    for _ in range(steps):
        step((torch.ones(4, 2), torch.ones(4, 1)))
"""
KILLED = "train(3)\nprint(flush=True)\nimport time\ntime.sleep(600)\n"


@pytest.fixture
def runtime(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Iterator[Path]:
    """The folder in which this process lists itself, as one that has not yet trained."""
    monkeypatch.setattr(library_pulse.job_list, "folders", lambda: [tmp_path / "flatout"])
    monkeypatch.setattr(stack_dump, "install", lambda path: 0)
    monkeypatch.delenv(library_pulse.SWITCH)
    monkeypatch.delitem(sys.modules, "flatout_agent.process.session", raising=False)
    monkeypatch.setattr(library_pulse, "_over", False)
    monkeypatch.setattr(library_pulse, "_process", None)
    monkeypatch.setattr(library_pulse, "_waited_s", math.nan)
    monkeypatch.setattr(beat, "of_process", None)
    yield tmp_path / "flatout"
    library_pulse.stop()


def a_step(accumulate: int = 1, nonfinite: str = "stop") -> flatout.train_step:
    model = nn.Linear(2, 1)
    optimizer = torch.optim.SGD(model.parameters(), lr=0.01)
    options = {"accumulate": accumulate, "nonfinite": nonfinite, "compile": False}
    return flatout.train_step(model, nn.MSELoss(), optimizer, **options)


def a_batch(value: float = 1.0, rows: int = 4) -> tuple[torch.Tensor, torch.Tensor]:
    return torch.full((rows, 2), value), torch.ones(rows, 1)


def told(runtime: Path) -> list[PulseStep]:
    (entry,) = jobs.listed()
    assert Path(entry.rings).parent == runtime
    (path,) = rings(Path(entry.rings))
    return Ring(path).new()


def test_each_step_is_told_with_its_loss_and_samples(runtime: Path) -> None:
    step = a_step()
    assert jobs.listed() == [], "nothing has trained yet"
    losses = [float(step(a_batch())) for _ in range(3)]
    steps = told(runtime)
    assert [(s.step, s.loss, s.samples, s.wait_s) for s in steps] == [
        (number, loss, 4, None) for number, loss in enumerate(losses, 1)
    ], "how long the program waited for its batches is not known"


def test_it_is_off_the_list_when_it_ends(runtime: Path) -> None:
    a_step()(a_batch())
    (entry,) = jobs.listed()
    assert (entry.pid, entry.program_pid, entry.run_folder) == (os.getpid(), os.getpid(), "")
    assert jobs.owner_alive(entry) is True
    library_pulse.stop()
    assert list(runtime.iterdir()) == []


def test_the_wait_for_the_librarys_loader_is_told(runtime: Path) -> None:
    step = a_step(accumulate=2)
    data = torch.utils.data.TensorDataset(*a_batch(rows=12))
    for batch in flatout.loader(data, 3, device="cpu"):
        step(batch)
    steps = told(runtime)
    assert [(s.step, s.samples) for s in steps] == [(1, 6), (2, 6)]
    assert all(s.wait_s is not None and s.wait_s > 0 for s in steps)


def test_a_skipped_step_is_none(runtime: Path) -> None:
    step = a_step(nonfinite="skip")
    for value in (1.0, math.inf, 1.0):
        step(a_batch(value))
    assert [(s.step, bool(s.flags & layout.SKIPPED)) for s in told(runtime)] == [
        (1, False),
        (1, True),
        (2, False),
    ]


def test_of_several_train_steps_the_first_counts(runtime: Path) -> None:
    first, second = a_step(), a_step()
    for _ in range(3):
        first(a_batch())
        second(a_batch())
    assert [s.step for s in told(runtime)] == [1, 2, 3]
    del first
    second(a_batch())
    assert [s.step for s in told(runtime)] == [1, 2, 3, 4]


@pytest.mark.slow
def test_steps_that_are_tried_and_taken_back_are_not_told(runtime: Path) -> None:
    step = a_step()
    flatout.find_batch_size(step, lambda rows: a_batch(rows=rows), limit=8)
    assert jobs.listed() == []
    step(a_batch())
    assert [s.step for s in told(runtime)] == [1]


def test_a_checkpoint_is_told(runtime: Path, tmp_path: Path) -> None:
    step = a_step()
    step(a_batch())
    with flatout.Checkpoint(tmp_path / "saved", every=1, step=step) as checkpoint:
        checkpoint.after_step()
        checkpoint.wait()
        step(a_batch())
    assert [bool(s.flags & layout.SAVED) for s in told(runtime)] == [False, True]
    (path,) = rings(Path(jobs.listed()[0].rings))
    written = sum(file.stat().st_size for file in (tmp_path / "saved").rglob("*.pt"))
    assert Ring(path).header.largest_save_bytes == written


def test_an_error_ends_the_pulse_and_nothing_else(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    step = a_step()
    step(a_batch())
    monkeypatch.setattr(library_pulse.ProcessPulse, "step", lambda *_: 1 / 0)
    for _ in range(2):
        step(a_batch())
    assert step.metrics().steps == 3
    assert jobs.listed() == []


@pytest.mark.parametrize("reason", ["switched off", "under the agent", "no folder"])
def test_nothing_is_listed(runtime: Path, monkeypatch: pytest.MonkeyPatch, reason: str) -> None:
    if reason == "switched off":
        monkeypatch.setenv(library_pulse.SWITCH, "0")
    elif reason == "under the agent":
        monkeypatch.setitem(sys.modules, "flatout_agent.process.session", sys)
    else:
        monkeypatch.setattr(library_pulse.job_list, "folders", list)
    a_step()(a_batch())
    assert not runtime.exists()


def test_ranks_of_one_launcher_are_one_job(runtime: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(library_pulse.LAUNCHER, "none")
    monkeypatch.setenv("RANK", "1")
    a_step()(a_batch())
    (entry,) = jobs.listed()
    assert entry.pid == os.getppid()
    other = Path(entry.rings) / f"0-1{layout.SUFFIX}"
    other.touch()
    library_pulse.stop()
    assert jobs.listed() == [entry], "rank 0 still trains"
    assert rings(Path(entry.rings)) == [other]


def test_its_ring_is_released_before_it_is_removed(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Windows removes no file that is mapped."""
    step = a_step()
    step(a_batch())
    process, unlink = library_pulse._process, Path.unlink
    assert process is not None

    def removes(path: Path, missing_ok: bool = False) -> None:
        if path == Path(process.pulse.path) and not process.pulse.closed:
            raise PermissionError(13, "in use", str(path))
        unlink(path, missing_ok)

    monkeypatch.setattr(Path, "unlink", removes)
    process._end()
    assert list(runtime.iterdir()) == []
    step(a_batch())  # one more at the interpreter's end
    assert library_pulse._over


def test_a_program_on_macos_removes_what_a_killed_one_has_left(
    runtime: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sys, "platform", "darwin")
    runtime.mkdir(mode=0o700)
    names = {f"{2**22 - 7}-0": False, f"{os.getpid()}-0": True, "other": True}
    for name in names:
        (runtime / f"{name}.json").write_text("{}")
        (runtime / f"{name}.rings").mkdir()
        os.utime(runtime / f"{name}.json", (1, 1))
    library_pulse._sweep(runtime, 0)
    for name, stays in names.items():
        assert (runtime / f"{name}.json").exists() is stays
        assert (runtime / f"{name}.rings").exists() is stays


@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="/proc")
def test_what_a_killed_program_has_left_goes_with_the_next(runtime: Path) -> None:
    a_step()(a_batch())
    (entry,) = jobs.listed()
    library_pulse.stop()
    left = runtime / f"{entry.pid}-1-{entry.pid_namespace}.json"
    lately = runtime / f"{entry.pid}-2-{entry.pid_namespace}.json"
    for path in (left, lately):
        path.write_text(json.dumps({}))
        path.with_suffix(".rings").mkdir()
    os.utime(left, (time.time() - library_pulse.KEPT_S - 1,) * 2)
    library_pulse._over = False
    a_step()(a_batch())
    assert {path.name for path in runtime.iterdir()} == {
        lately.name,
        lately.with_suffix(".rings").name,
        f"{entry.id}.json",
        f"{entry.id}.rings",
    }


def started(program: str, tmp_path: Path) -> subprocess.Popen[str]:
    environ = dict(os.environ, XDG_RUNTIME_DIR=str(tmp_path), OMP_NUM_THREADS="1")
    del environ[library_pulse.SWITCH]
    return subprocess.Popen(
        [sys.executable, "-c", PROGRAM + program, str(tmp_path)],
        env=environ,
        stdout=subprocess.PIPE,
        text=True,
    )


@pytest.mark.slow
def test_the_monitor_shows_it(tmp_path: Path) -> None:
    program = started(KILLED, tmp_path)
    assert program.stdout is not None
    program.stdout.readline()
    environ = dict(os.environ, XDG_RUNTIME_DIR=str(tmp_path))
    command = [sys.executable, "-m", "flatout", "monitor", "--once", "--json"]
    try:
        done = subprocess.run(command, env=environ, capture_output=True, text=True, check=True)
    finally:
        program.send_signal(signal.SIGKILL)
        program.communicate()
    (job,) = [job for job in json.loads(done.stdout)["jobs"] if job["pid"] == program.pid]
    assert (job["state"], job["step"], job["wait_share"]) == ("training", 3, None)
    assert job["loss"] is not None
    assert job["run_folder"] is None
