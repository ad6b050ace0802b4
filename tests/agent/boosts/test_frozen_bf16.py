"""frozen-bf16: models that each step calls without training them, found and run in bfloat16."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Declined
from flatout_agent.boosts import frozen_bf16 as boost
from flatout_agent.discover.discovery import Discovery
from flatout_agent.job import Job
from flatout_agent.speedups import precision
from flatout_agent.speedups.precision import Bf16Support
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch import Watcher


@pytest.fixture(autouse=True)
def native(monkeypatch: pytest.MonkeyPatch) -> None:
    """This machine's CPU may only emulate bfloat16."""
    monkeypatch.setattr(precision, "native_bf16", lambda device: Bf16Support(True, "native"))
    torch.manual_seed(0)


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(16, 32), nn.ReLU(), nn.Linear(32, 4))


def products(model: nn.Module) -> list[torch.dtype]:
    """The dtypes that the model's first layer computes in, filled by its calls."""
    found: list[torch.dtype] = []
    layer: Any = model[0]
    forward = layer.forward

    def record(x: torch.Tensor) -> torch.Tensor:  # a hook would get float32
        output: torch.Tensor = forward(x)
        found.append(output.dtype)
        return output

    layer.forward = record
    return found


def test_outputs_are_float32_and_off_by_rounding():
    model, x = net(), torch.randn(8, 16)
    with torch.no_grad():
        written = model(x)
        dtypes = products(model)
        applied = boost.apply(Job(), model, {})
        found = model(x)
        applied.undo()
        again = model(x)
    assert dtypes == [torch.bfloat16, torch.float32]
    assert found.dtype is torch.float32
    assert 0 < (found - written).norm() < 0.02 * written.norm()
    assert torch.equal(again, written)
    assert "_compiled_call_impl" not in vars(model)


@pytest.mark.parametrize("flows", ["to its weights", "to its inputs", "nowhere"])
def test_calls_through_which_gradients_flow_stay_as_they_are(flows: str):
    model = net().requires_grad_(flows == "to its weights")
    dtypes = products(model)
    boost.apply(Job(), model, {})
    model(torch.randn(8, 16, requires_grad=flows == "to its inputs"))
    assert dtypes == [torch.bfloat16 if flows == "nowhere" else torch.float32]


def test_models_in_other_precisions_are_declined():
    with pytest.raises(Declined, match="float64"):
        boost.apply(Job(), net().double(), {})
    with pytest.raises(Declined, match="half precision"):
        boost.apply(Job(), net().bfloat16(), {})
    with pytest.raises(Declined, match="no floating-point parameters"):
        boost.apply(Job(), nn.ReLU(), {})
    model = net()
    model.compile(backend="eager")
    with pytest.raises(Declined, match="compiled"):
        boost.apply(Job(), model, {})


def test_it_promises_more_for_a_larger_teacher():
    model = wire.ModelFacts("Net", 1000, "torch.float32", "cpu", matmul=2)
    facts = wire.JobFacts("2.13", "3.11", "linux", "cpu", bf16=True, models=(model,))
    assert boost.promise(facts, {}) == 1.0
    teacher = dataclasses.replace(model, parameters=9000)
    assert 1.3 < boost.promise(dataclasses.replace(facts, frozen=(teacher,)), {}) < boost.FACTOR


class Found(Watcher):
    def __init__(self) -> None:
        self.frozen: list[nn.Module] = []

    def frozen_found(self, model: nn.Module) -> None:
        self.frozen.append(model)


class Training:
    """A student under the agent, with a plan that has the boost."""

    def __init__(self, folder: Path) -> None:
        self.job, self.watch = Job(), Found()
        self.recorder = recorder = Recorder(str(folder))
        self.booster = Booster(self.job, (wire.BoostOrder("frozen-bf16", {}),), recorder)
        self.discovery = Discovery(self.job, self.watch, self.booster, recorder)
        self.watch.leave = self.discovery.remove
        self.discovery.install()
        self.student, self.teacher, self.once = net(), net().eval(), net().eval()
        self.loss = nn.MSELoss()
        self.optimizer = torch.optim.SGD(self.student.parameters(), 0.1)

    def evaluate(self, model: nn.Module) -> None:
        with torch.no_grad():
            model.eval()(torch.randn(8, 16))
        self.student.train()

    def step(self) -> None:
        x = torch.randn(8, 16)
        with torch.no_grad():
            wanted = self.teacher(x)
        self.loss(self.student(x), wanted).backward()
        self.optimizer.step()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    run = Training(tmp_path)
    yield run
    run.booster.undo()
    run.discovery.remove_between_steps()
    run.recorder.close()


def test_a_teacher_is_found_in_the_second_step(training: Training):
    training.evaluate(training.student)  # before training, as Lightning does
    training.evaluate(training.once)
    dtypes = products(training.teacher)
    for _ in range(4):
        training.step()
        training.evaluate(training.student)
    assert training.watch.frozen == [training.teacher]
    assert list(training.job.frozen) == [training.teacher]
    assert list(training.job.models) == [training.student]
    assert dtypes == [torch.float32, *[torch.bfloat16] * 3]


def test_all_is_put_back(training: Training):
    for _ in range(3):
        training.step()
    training.booster.undo()
    training.discovery.remove_between_steps()
    for model in (training.student, training.teacher):
        assert "_compiled_call_impl" not in vars(model)
