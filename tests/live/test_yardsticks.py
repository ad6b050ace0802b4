"""A yardstick serves until the program has trained on so far that it may no longer hold."""

from __future__ import annotations

import gc

from torch import nn

from flatout_agent.live.guard import Yardstick
from flatout_agent.live.yardsticks import Yardsticks

OWN = Yardstick(1e-6, 0.5, None)
EXACT, ROUNDS = (False, False), (False, True)


def test_it_is_known_for_the_same_model_and_question() -> None:
    model, other, known = nn.Linear(2, 2), nn.Linear(2, 2), Yardsticks()
    known.add(model, EXACT, 20, OWN)
    assert not known.reused
    assert known.get(model, EXACT, 25) is OWN
    assert known.reused
    assert known.get(model, ROUNDS, 25) is None
    assert known.get(other, EXACT, 25) is None
    assert known.cover([model], EXACT, 25)
    assert not known.cover([model, other], EXACT, 25)


def test_it_is_measured_again_as_training_goes_on() -> None:
    model, known = nn.Linear(2, 2), Yardsticks()
    known.add(model, EXACT, 100, OWN)
    assert known.get(model, EXACT, 160) is OWN
    assert known.get(model, EXACT, 161) is None


def test_what_is_forgotten_is_measured_anew() -> None:
    model, known = nn.Linear(2, 2), Yardsticks()
    known.add(model, EXACT, 100, OWN)
    known.forget()
    assert known.get(model, EXACT, 100) is None


def test_models_that_are_gone_are_let_go_of() -> None:
    model, known = nn.Linear(2, 2), Yardsticks()
    known.add(model, EXACT, 100, OWN)
    del model
    gc.collect()
    assert len(known._known) == 0
