"""The pulse in a real program: what it trained is in the ring, and nothing of it has changed."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest

import forked
from agent_paths import INJECT
from flatout.running.one.ring import Ring, rings
from flatout.running.ranks import stacks
from flatout_agent import wire
from flatout_agent.wire import pulse as layout

TRAIN = """
import json, random, sys
random.seed(0)
import torch
from torch import nn
from torch.utils.data import DataLoader, TensorDataset

torch.manual_seed(0)
model = nn.Sequential(nn.Linear(8, 16), nn.Dropout(0.1), nn.Linear(16, 1))
optimizer = torch.optim.Adam(model.parameters())
data = TensorDataset(torch.randn(96, 8), torch.randn(96, 1))
losses = []
for epoch in range(2):
    for x, y in DataLoader(data, batch_size=16, shuffle=True):
        loss = nn.functional.mse_loss(model(x), y)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        losses.append(loss.item())
    torch.save(model.state_dict(), sys.argv[1])
weights = [float(p.detach().sum()) for p in model.parameters()]
state = [float(torch.rand(())), random.random(), *weights]
print(json.dumps([losses, state]))
"""
HANG = """
import threading, torch
w = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for step in range(3):
    w.sum().backward()
    optimizer.step()
print("waits", flush=True)
lock = threading.Lock()
lock.acquire()
lock.acquire()  # for ever
"""
FORK = """
import os, torch
w = torch.ones(2, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
def train(steps):
    for step in range(steps):
        w.sum().backward()
        optimizer.step()
train(3)
if os.fork() == 0:
    train(4)
    os._exit(0)
os.wait()
train(2)
"""


def environment(tmp_path: Path, with_pulse: bool = True) -> dict[str, str]:
    records, pulses = tmp_path / "records", tmp_path / "pulse"
    records.mkdir(exist_ok=True)
    pulses.mkdir(exist_ok=True)
    orders = wire.Orders(str(records), pulse=str(pulses) if with_pulse else "")
    (tmp_path / "orders.json").write_text(wire.dump(orders))
    environ = dict(os.environ, PYTHONPATH=str(INJECT), OMP_NUM_THREADS="1")
    return environ | {wire.ORDERS_ENV: str(tmp_path / "orders.json")}


def output(tmp_path: Path, text: str, with_pulse: bool = True) -> str:
    script = tmp_path / "train.py"
    script.write_text(text)
    words = [str(script), str(tmp_path / "model.pt")]
    program = forked.start(words, tmp_path, environment(tmp_path, with_pulse))
    out, err = program.communicate(timeout=240)
    assert (program.returncode, err) == (0, "")
    return out


def faults(tmp_path: Path) -> list[str]:
    files = (tmp_path / "records").glob("*.jsonl")
    return [line for path in files for line in path.read_text().splitlines() if '"fault"' in line]


@pytest.mark.slow
def test_what_it_trained_is_in_the_ring_and_nothing_has_changed(tmp_path: Path) -> None:
    (plain_folder := tmp_path / "plain").mkdir()
    (pulse_folder := tmp_path / "pulse").mkdir()
    plain, told = output(plain_folder, TRAIN, with_pulse=False), output(pulse_folder, TRAIN)
    assert plain == told  # losses, weights and random state, to the last bit
    assert rings(plain_folder / "pulse") == []
    (path,) = rings(pulse_folder / "pulse")
    ring = Ring(path)
    steps = ring.new()
    losses = json.loads(told)[0]
    assert [step.step for step in steps] == list(range(1, 13))
    assert [step.loss for step in steps] == pytest.approx(losses, rel=1e-6)
    assert {step.samples for step in steps} == {16}
    assert steps[6].flags & layout.SAVED
    assert steps[6].flags & layout.EPOCH_BEGAN
    assert not steps[8].flags & (layout.SAVED | layout.EPOCH_BEGAN)
    assert ring.ended
    assert ring.header.device.rstrip(b"\0") == b"cpu"
    assert ring.header.loader_workers == 0
    assert ring.header.largest_save_bytes == (pulse_folder / "model.pt").stat().st_size
    assert len({step.shapes for step in steps}) == 1
    assert steps[0].shapes
    assert {step.own_s for step in steps} == {None}  # nobody waits for another rank
    assert faults(pulse_folder) == []


SEVERAL_SHAPES = """
import time, torch
from torch.utils.data import DataLoader
w = torch.ones(1, requires_grad=True)
optimizer = torch.optim.SGD([w], lr=0.1)
for x in DataLoader([torch.ones(length) for length in (3, 3, 5, 3)], batch_size=1):
    loss = (w * x).sum()
    time.sleep(0.05)
    loss.backward()
    optimizer.step()
"""


@pytest.mark.slow
def test_shapes_and_own_work_of_a_rank(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    output(tmp_path, SEVERAL_SHAPES)
    (path,) = rings(tmp_path / "pulse")
    steps = Ring(path).new()
    first, second, third, fourth = (step.shapes for step in steps)
    assert first == second == fourth
    assert third not in (first, None)
    assert steps[0].own_s is None  # nobody knows when it began
    assert all(0.05 <= (step.own_s or 0.0) <= step.duration_s for step in steps[1:])


@pytest.mark.slow
@pytest.mark.skipif(not hasattr(os, "fork"), reason="forks")
def test_a_fork_that_trains_has_a_ring_of_its_own(tmp_path: Path) -> None:
    output(tmp_path, FORK)
    counts = sorted(len(Ring(path).new()) for path in rings(tmp_path / "pulse"))
    assert counts == [4, 5]


@pytest.mark.slow
@pytest.mark.skipif(sys.platform == "win32", reason="signals")
def test_a_hung_program_tells_its_line_and_leaves_its_ring_when_killed(tmp_path: Path) -> None:
    (tmp_path / "train.py").write_text(HANG)
    program = subprocess.Popen(
        [forked.python(), str(tmp_path / "train.py")],
        env=environment(tmp_path),
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        assert program.stdout is not None
        assert program.stdout.readline() == "waits\n"
        (path,) = rings(tmp_path / "pulse")
        ring = Ring(path)
        if sys.platform.startswith("linux"):
            deadline, text = time.monotonic() + 120, ""
            while 'train.py", line 11' not in text and time.monotonic() < deadline:
                assert stacks.request(ring)  # again: it may not have come to that line yet
                time.sleep(0.2)
                text = stacks.read(ring)  # once: the next one may be half written
            assert 'train.py", line 11' in text
        assert program.poll() is None
        os.kill(ring.header.pid, signal.SIGKILL)
        assert program.wait(timeout=120) == -signal.SIGKILL  # as the program
    finally:
        program.kill()
        program.communicate()
    assert len(ring.new()) == 3
    assert not ring.ended
    assert ring.writer_alive() is False
    assert not stacks.request(ring)


def test_where_no_ring_can_be_made_there_is_none(tmp_path: Path) -> None:
    from flatout_agent.tell import pulse

    assert pulse.opened("") is None
    assert pulse.opened(str(tmp_path / "none")) is None
