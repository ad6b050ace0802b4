"""The losses of a program with a gradient scaler are told as it computes them."""

from __future__ import annotations

import gc
import weakref
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.job import Job
from flatout_agent.tell.pulse import Pulse
from flatout_agent.tell.recorder import Recorder
from flatout_agent.watch.beat import Beat
from flatout_agent.watch.trial import TrialWatch
from flatout_agent.watch.unscaled import UnscaledLosses

SCALE = 1024.0


@pytest.fixture
def losses() -> Iterator[UnscaledLosses]:
    own = torch.amp.GradScaler.scale
    found = UnscaledLosses()
    yield found
    found.close()
    assert torch.amp.GradScaler.scale is own


def scaler(enabled: bool = True) -> Any:
    return torch.amp.GradScaler("cpu", init_scale=SCALE, enabled=enabled)


def loss_of(value: float) -> torch.Tensor:
    return torch.tensor(value, requires_grad=True) * 1.0


def test_the_value_before_it_was_scaled_is_known(losses: UnscaledLosses) -> None:
    loss = loss_of(2.5)
    assert losses.of(loss) is loss
    scaled = scaler().scale(loss)
    assert scaled.item() == 2.5 * SCALE
    assert float(losses.of(scaled)) == 2.5
    assert losses.of(loss) is loss, "another one is what it is"
    assert losses.enabled


def test_several_at_once_and_a_scaler_that_is_off_are_left_alone(losses: UnscaledLosses) -> None:
    assert losses.of(scaler(enabled=False).scale(loss_of(2.5))).item() == 2.5
    assert not losses.enabled
    first, _ = scaler().scale([loss_of(1.0), loss_of(2.0)])
    assert losses.of(first) is first
    assert losses.enabled


def test_the_graph_of_the_loss_is_not_held(losses: UnscaledLosses) -> None:
    loss = loss_of(2.5)
    scaled = scaler().scale(loss)
    held = weakref.ref(loss), weakref.ref(scaled)
    del loss, scaled
    gc.collect()
    assert [reference() for reference in held] == [None, None]
    assert losses.last is not None
    assert losses.last[1].grad_fn is None


def test_the_pulse_tells_the_loss_of_the_program(tmp_path: Path, recorder: Recorder) -> None:
    beat = Beat(Pulse(str(tmp_path)), Job(), recorder)
    beat.loss_seen(scaler().scale(loss_of(2.5)))
    told = beat._loss
    beat.loss_seen(loss_of(0.5))
    assert (told, beat._loss) == (2.5, 0.5)
    beat._undo()
    beat.end()


def test_a_trial_tells_the_loss_of_the_program(recorder: Recorder) -> None:
    job = Job()
    watch = TrialWatch(job, Booster(job, (), recorder), recorder, wire.TrialOrders())
    watch.backward(scaler().scale(loss_of(2.5)))
    assert [float(loss) for loss in watch._step_losses] == [2.5]
    watch.notes.close()
