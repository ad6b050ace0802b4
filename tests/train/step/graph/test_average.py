"""The moving average as part of a recorded step: with a stand-in for CUDA graphs."""

from __future__ import annotations

import copy
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import flatout
from flatout_train.step import train_step, update
from flatout_train.step.averaging import Average
from flatout_train.step.graph.whole_step import WholeStep
from train.step.graph.fake import FakeRecorder
from train.step.loops import Calls

CPU = torch.device("cpu")
WARM = 3
"""Steps of a shape before its recording."""
DECAY = 0.75


@pytest.fixture(autouse=True)
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """The step as on a device, with its tensors on the CPU."""
    monkeypatch.setattr(train_step, "HostUpdate", update.DeviceUpdate)


class Pair:
    """The same training twice: eager, and recorded."""

    def __init__(self, ema: float | None = DECAY, **options: Any) -> None:
        self.plain, self.step = made(ema=ema, **options), made(ema=ema, **options)
        self.fake = FakeRecorder(self.tensors)
        self.step._graph_step = WholeStep(
            self.step._body,
            self.step.model,
            self.step.optimizer,
            CPU,
            average=lambda: self.step.ema,
            recorder=self.fake,
            undo=self.step._passes.undo,
        )

    def tensors(self) -> list[Tensor]:
        states = self.step.optimizer.state.values()
        average = self.step.ema.state_dict(keep_vars=True) if self.step.ema is not None else {}
        return [
            *self.step.model.state_dict(keep_vars=True).values(),
            *average.values(),
            *(each for state in states for each in state.values() if isinstance(each, Tensor)),
            *(each for each in self.step._buffers._copies if each is not None),
        ]

    def both(self, change: Callable[[Any], Any]) -> None:
        for step in (self.plain, self.step):
            change(step)

    def train(self, data: list[Any]) -> None:
        for place, batch in enumerate(data):
            assert torch.equal(self.step(batch), self.plain(batch)), place
            assert_same(self.step.model, self.plain.model)
            if self.plain.ema is not None:
                assert_same(self.step.ema, self.plain.ema)


def assert_same(one: nn.Module, other: nn.Module) -> None:
    expected = other.state_dict()
    for name, value in one.state_dict().items():
        assert torch.equal(value, expected[name]), name


def made(**options: Any) -> Any:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(4, 8), nn.BatchNorm1d(8), nn.Tanh(), nn.Linear(8, 3))
    optimizer = torch.optim.SGD(model.parameters(), lr=2**-4, momentum=0.9, fused=True)
    options = {"precision": "fp32", "compile": False, "graph": False, **options}
    schedule = options.pop("schedule", None)
    scheduler = None if schedule is None else schedule(optimizer)
    return flatout.train_step(model, F.cross_entropy, optimizer, scheduler=scheduler, **options)


def batches(count: int, *sizes: int) -> list[Any]:
    drawn = torch.Generator().manual_seed(7)
    return [
        (torch.randn(size, 4, generator=drawn), torch.randint(0, 3, (size,), generator=drawn))
        for _ in range(count)
        for size in sizes or (6,)
    ]


def halving(optimizer: torch.optim.Optimizer) -> Any:
    return torch.optim.lr_scheduler.StepLR(optimizer, 3, gamma=0.5)


def test_replays_move_the_average_as_eager_steps_do_whatever_the_shape() -> None:
    pair = Pair(schedule=halving)
    pair.train(batches(12, 6, 9))
    assert pair.step.notes["graph"] == "recorded"
    assert pair.fake.recordings == 2
    # the first call of all is not asked of the recorder
    assert pair.fake.replays == 2 * 12 - 2 * WARM - 1
    assert int(pair.step.ema.n_averaged) == 24


def test_a_replayed_step_launches_nothing_for_the_average(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    pair = Pair()
    pair.train(batches(6))
    monkeypatch.setattr(Average, "_write", lambda *_: pytest.fail("it was written by hand"))
    monkeypatch.setattr(pair.fake, "_tensors", lambda: pytest.fail("it was recorded"))
    for recording in pair.step._graph_step._recordings.values():
        recording.replay = lambda: None
    with Calls() as calls:
        pair.step(batches(1)[0])
    assert not {name for name in calls.names if "lerp" in name}
    assert calls.names.count("aten::_foreach_copy_") == 1, "the batch"


def loaded(step: Any, states: dict[Any, Any]) -> None:
    step.load_state_dict(states[step])


def test_a_checkpoint_that_is_loaded_brings_its_average() -> None:
    pair, data = Pair(schedule=halving), batches(24)
    states: dict[Any, Any] = {}
    pair.train(data[:8])
    pair.both(lambda step: states.update({step: copy.deepcopy(step.state_dict())}))
    pair.train(data[8:14])
    pair.both(lambda step: loaded(step, states))
    assert int(pair.step.ema.n_averaged) == 8
    pair.train(data[8:])
    assert pair.step.notes["graph"] == "recorded"
    assert int(pair.step.ema.n_averaged) == 24


def test_after_a_reset_the_first_update_copies_and_is_not_replayed() -> None:
    pair, data = Pair(), batches(20)
    for place in range(0, 20, 5):
        pair.both(lambda step: step.ema.n_averaged.zero_())
        replays = pair.fake.replays
        pair.train(data[place : place + 1])
        assert pair.fake.replays == replays
        assert_same(pair.step.ema.module, pair.step.model)
        pair.train(data[place + 1 : place + 5])
    assert pair.fake.recordings == 1
    assert pair.fake.replays > 8


def another_average(step: Any) -> None:
    step.ema = Average(step.model, 0.5)


def test_another_average_is_recorded_anew() -> None:
    pair = Pair()
    pair.train(batches(7))
    pair.both(another_average)
    pair.train(batches(8))
    assert pair.step.notes["graph"] == "recorded"
    assert pair.fake.recordings == 2


def test_an_average_that_is_taken_away_is_moved_no_more() -> None:
    pair = Pair()
    pair.train(batches(7))
    average = pair.step.ema
    before = copy.deepcopy(average.state_dict())
    pair.both(lambda step: setattr(step, "ema", None))
    pair.train(batches(8))
    assert pair.step.notes["graph"] == "recorded"
    assert all(torch.equal(value, before[name]) for name, value in average.state_dict().items())


def test_an_average_on_another_device_is_updated_beside_the_recording() -> None:
    """The meta device stands in for it."""
    pair = Pair()
    pair.step.ema.module.to("meta")
    for place, batch in enumerate(batches(8)):
        pair.step(batch)
        assert int(pair.step.ema.n_averaged) == place + 1
    assert pair.step.notes["graph"] == "recorded"
    assert pair.fake.replays == 8 - WARM - 1


def test_a_rehearsal_that_is_known_to_be_left_out_advances_nothing() -> None:
    """Momentum is made in a step that must not be left out on the device, so the host looks."""
    pair = Pair(ema=None, nonfinite="skip", schedule=halving)
    pair.fake.waits = "the step waits for the device"
    data = batches(8)
    for batch in data[:6]:
        batch[0].fill_(torch.inf)
    for batch in data:
        pair.both(lambda step, batch=batch: step(batch))
        assert pair.step.scheduler.last_epoch == pair.plain.scheduler.last_epoch
    assert pair.fake.rehearsals == 1
    assert pair.plain.scheduler.last_epoch == 2
