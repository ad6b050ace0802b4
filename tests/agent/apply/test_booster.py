"""What became of a boost is known across switching it off and on."""

from __future__ import annotations

from pathlib import Path

import torch

from flatout_agent import wire
from flatout_agent.apply.booster import Booster
from flatout_agent.boost import Moment
from flatout_agent.job import Job
from flatout_agent.tell.recorder import Recorder


def test_what_took_hold_before_a_switch_is_not_idle_right_after_it(tmp_path: Path) -> None:
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Dropout(0.5))
    job = Job()
    job.models.append(model)
    recorder = Recorder(str(tmp_path))
    booster = Booster(job, (), recorder)
    order = wire.BoostOrder("fast-dropout")
    assert booster.on(order) is None
    assert booster.idle("fast-dropout") is not None
    booster.off("fast-dropout")
    booster.on(order)
    assert booster.idle("fast-dropout") is not None, "it has drawn no mask yet"
    model(torch.randn(64, 64))
    assert booster.idle("fast-dropout") is None
    booster.off("fast-dropout")
    booster.on(order)
    assert booster.idle("fast-dropout") is None, "no step was taken since"
    booster.on(wire.BoostOrder("fast-dropout", {"other": 1}))
    assert booster.idle("fast-dropout") is not None, "with other parameters it is another"
    booster.off("fast-dropout")
    assert booster.idle("fast-dropout") is not None, "it has not drawn a mask until now"
    recorder._file.close()


def test_what_the_program_was_started_with_stays_what_it_was(tmp_path: Path) -> None:
    """A program that is begun again starts with what was kept: switched off and on, that is on."""
    model = torch.nn.Sequential(torch.nn.Linear(64, 128), torch.nn.Dropout(0.5))
    job = Job()
    job.models.append(model)
    recorder = Recorder(str(tmp_path))
    order = wire.BoostOrder("fast-dropout")
    booster = Booster(job, (order,), recorder)
    booster.at(Moment.MODEL, model)
    model(torch.randn(64, 64))
    booster.off("fast-dropout")
    booster.on(order)
    assert booster.idle("fast-dropout") is None, "no step was taken since"
    booster.off("fast-dropout")
    recorder._file.close()
