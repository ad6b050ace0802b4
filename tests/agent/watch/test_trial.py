"""A trial: the same seed gives the same steps, step times settle, the program stops itself."""

from __future__ import annotations

import statistics
import threading
import time
from pathlib import Path

import pytest

from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.job import Job
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch.trial import TrialWatch
from flatout_agent.watch.window import STEPS_AFTER_GATE, TrialWindow, stable

pytestmark = pytest.mark.slow

JOBS = Path(__file__).parents[2] / "jobs"
PAUSE_S = 0.5
SHORT = {"min_steps": 4, "max_steps": 6, "window_s": 0.2}


def trial(**more) -> wire.TrialOrders:
    return wire.TrialOrders(**{**SHORT, **more})


def job(name: str, *options: str) -> list[str]:
    return [str(JOBS / f"{name}.py"), "--steps", "500", *options]


def test_baseline_and_twin_agree_to_the_last_bit(run_agent):
    one_thread = {"OMP_NUM_THREADS": "1"}  # as in the fork
    base = run_agent(job("plain"), trial=trial(), name="base", env=one_thread)
    twin = run_agent(job("plain"), trial=trial(), name="twin", light=True)
    assert base.returncode == twin.returncode == 0
    assert base.one(wire.Ended).reason == "window"
    losses = [run.one(wire.LossesSeen).losses for run in (base, twin)]
    shared = min(map(len, losses))
    assert losses[0][:shared] == losses[1][:shared]
    phases = [step.phase for step in base.of(wire.StepTaken)]
    assert phases[:2] == ["warmup"] * 2
    assert 4 <= phases.count("window") <= 6


AUGMENTS = """
import random
import numpy as np
import torch
from torch.utils.data import DataLoader, Dataset

class Augmented(Dataset):
    def __init__(self):
        self.generator = np.random.default_rng(3)
    def __len__(self):
        return 64
    def __getitem__(self, index):
        drawn = {"python": random.random, "numpy": np.random.rand, "own": self.generator.random}
        return torch.full((4,), drawn[NAME]())

random.seed(1); np.random.seed(1); torch.manual_seed(1)
data = Augmented()
model = torch.nn.Linear(4, 1)
optimizer = torch.optim.SGD(model.parameters(), 0.01)
for epoch in range(100):
    for batch in DataLoader(data, batch_size=4):
        model(batch).square().mean().backward()
        optimizer.step()
        optimizer.zero_grad()
"""


@pytest.mark.parametrize("source", ["python", "numpy", "own"])
def test_other_random_numbers_reach_the_augmentation(run_agent, tmp_path, source):
    script = tmp_path / "augments.py"
    script.write_text(AUGMENTS.replace("NAME", repr(source)))
    orders = [trial(reseed=reseed) for reseed in (0, 1)]
    runs = [
        run_agent([str(script)], trial=order, name=f"{source}{order.reseed}", light=True)
        for order in orders
    ]
    written, redrawn = (run.one(wire.LossesSeen).losses for run in runs)
    assert written[0] == redrawn[0], "from the second step on"
    assert written[1:4] != redrawn[1:4]


@pytest.mark.few(3)
@pytest.mark.parametrize(
    ("name", "expected"),
    [
        ("accumulation", lambda f: f.micro_steps > 1),
        ("gan", lambda f: len(f.models) == 2 and len(f.optimizers) == 2),
        ("workers", lambda f: f.loaders[0].num_workers == 2),
        ("custom_optimizer", lambda f: not f.optimizers[0].from_torch),
        ("no_loader", lambda f: not f.loaders),
        ("dynamic_shapes", lambda f: len(f.models[0].input_shapes) > 1),
        ("scaler", lambda f: f.scaler or f.autocast),
        ("methods", lambda f: len(f.models) > 1),
        ("eval_with_grad", lambda f: f.eval_with_grad),
        ("iterable", lambda f: f.loaders[0].iterable),
        ("float64", lambda f: f.models[0].dtype == "float64"),
        ("dropout", lambda f: f.models[0].random_forward),
    ],
)
def test_what_is_seen_of_each_style(run_agent, name, expected):
    run = run_agent(job(name), trial=trial(min_steps=40, max_steps=40), light=True)
    facts = run.one(wire.JobSeen).facts
    assert expected(facts), facts
    assert run.one(wire.Ended).samples > 0
    assert run.of(wire.Fault) == []


def test_few_steps_end_with_the_program(run_agent):
    run = run_agent([str(JOBS / "few_steps.py")], trial=trial(), light=True)
    ended = run.one(wire.Ended)
    assert (ended.reason, run.returncode) == ("program", 0)


def test_it_waits_at_each_gate(run_agent, tmp_path):
    waited: list[int] = []

    def open_gates() -> None:
        folder = tmp_path / "gated"
        for number, text in ((wire.FIRST_GATE, "6"), (0, ""), (1, "7"), (2, "")):
            deadline = time.monotonic() + 120
            while time.monotonic() < deadline:
                told = [p.read_text() for p in folder.glob("*.jsonl")] if folder.exists() else []
                if any(f'"number":{number},' in text and '"gate"' in text for text in told):
                    break
                time.sleep(0.05)
            time.sleep(PAUSE_S)
            waited.append(number)
            written = folder / f"gate-{number}.text"
            written.write_text(text)
            written.replace(folder / f"gate-{number}")

    opener = threading.Thread(target=open_gates)
    opener.start()
    run = run_agent(job("plain"), trial=trial(gates=3), name="gated", light=True)
    opener.join()
    steps = run.of(wire.StepTaken)
    windows = [step for step in steps if step.phase == "window"]
    assert waited == [-1, 0, 1, 2]
    assert {step.window for step in windows} == {0, 1, 2}
    firsts = [next(step.wall_s for step in windows if step.window == n) for n in range(3)]
    firsts.append(steps[1].wall_s)
    assert statistics.median(firsts) < PAUSE_S, "the pause is not part of a step"
    # the host's numbers: the index of the warm-up's last step, and the steps of a window
    assert windows[0].index == 6 + STEPS_AFTER_GATE + 1
    assert sum(step.window == 1 for step in windows) == 7


def test_an_evaluation_waits_for_the_training_before_it(
    recorder: Recorder, monkeypatch: pytest.MonkeyPatch
) -> None:
    waited: list[Job] = []
    monkeypatch.setattr("flatout_agent.watch.trial.synchronize", waited.append)
    job = Job()
    watch = TrialWatch(job, Booster(job, (), recorder), recorder, wire.TrialOrders())
    for _ in range(2):
        watch.record.evaluation_begins()
    assert waited == [job]
    watch.notes.close()


def test_stable():
    assert not stable([1.0, 1.0])
    assert stable([9.0, 1.0, 1.05, 1.1])
    assert not stable([9.0, 5.0, 3.0])
    assert stable([0.1, 1.9] * 20)
    assert not stable([3.0 - 0.1 * i for i in range(20)])


def test_a_window_has_at_least_the_steps_and_the_time_asked_for():
    window = TrialWindow(wire.TrialOrders(min_steps=3, max_steps=100, window_s=1.0))
    now, index = 0.0, 0
    while not window.complete and index < 200:
        now += 0.1
        phase = window.phase()
        closing = phase == "window" and window.closes(now)
        step = wire.StepTaken(index, phase, 0.1)
        if window.step_ended(step, closing, 0, 0, False):
            window.begins(now)
        index += 1
    assert window.complete
    assert 10 <= window._steps <= 12


@pytest.mark.parametrize(("lockstep", "expected_s"), [(False, 8.0), (True, 1.0)])
def test_a_window_waits_until_a_cache_is_filled(lockstep: bool, expected_s: float) -> None:
    def first_window(filled_after_s: float) -> float:
        window = TrialWindow(wire.TrialOrders(min_steps=3, max_steps=9, window_s=1.0), lockstep)
        for index in range(1000):
            now = 0.1 * (index + 1)
            step = wire.StepTaken(index, "warmup", 0.1)
            if window.step_ended(step, False, 0, 0, now < filled_after_s):
                return now
        raise AssertionError

    assert first_window(0.0) < 1.0
    assert first_window(8.0) == pytest.approx(expected_s, abs=0.3)
    assert first_window(500.0) == pytest.approx(20.0 if not lockstep else 1.0, abs=0.3)


@pytest.mark.thorough
def test_processes_that_the_program_starts_itself_are_counted(run_agent, tmp_path):
    path = tmp_path / "hogwild.py"
    path.write_text(
        "import torch\n"
        "from torch import multiprocessing\n"
        "if __name__ == '__main__':\n"
        "    children = [multiprocessing.Process(target=print, args=(n,)) for n in range(2)]\n"
        "    [child.start() for child in children]\n"
        "    [child.join() for child in children]\n"
    )
    run = run_agent([str(path)], trial=trial(), light=True)
    assert run.returncode == 0
    assert [record.children for record in run.of(wire.Ended) if record.children] == [2]
