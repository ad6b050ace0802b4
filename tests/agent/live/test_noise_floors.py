"""A noise floor serves until the program has trained on so far that it may no longer hold."""

from __future__ import annotations

import gc

import pytest
from torch import nn

from flatout_agent.boost import Boost
from flatout_agent.boosts import load
from flatout_agent.live.candidates import Candidate
from flatout_agent.live.guard import NoiseFloor
from flatout_agent.live.noise_floors import NoiseFloorPurpose, NoiseFloors, purpose_of

OWN = NoiseFloor(1e-6, 0.5, None)
EXACT, ROUNDS = NoiseFloorPurpose(False, False, 0.0), NoiseFloorPurpose(False, True, 0.0)


def candidate(boost: str) -> Candidate:
    return Candidate(boost, {}, load(boost).BOOST, 1.0)


def on(*boosts: str) -> dict[str, Boost]:
    return {boost: load(boost).BOOST for boost in boosts}


def test_what_it_is_for() -> None:
    bf16, layout = candidate("bf16-autocast"), candidate("channels-last")
    assert purpose_of([layout], [layout], on("gc-pause")) == EXACT
    assert purpose_of([bf16], [bf16], {}) == ROUNDS
    assert purpose_of([candidate("fast-dropout")], [], {}).redraws
    # An exact boost on top of one that rounds reorders what is rounded; its own rounding is what
    # is asked about.
    assert purpose_of([layout], [layout], on("bf16-autocast", "tf32")) == NoiseFloorPurpose(
        False, False, 2.0**-9
    )
    assert purpose_of(
        [layout, bf16], [layout, bf16], on("bf16-autocast", "tf32")
    ) == NoiseFloorPurpose(False, True, 2.0**-12)
    # One of several in question is judged by its own rule: the others are off meanwhile.
    assert purpose_of([layout], [layout, bf16], on("bf16-autocast")) == EXACT


def test_it_is_known_for_the_same_model_and_question() -> None:
    model, other, known = nn.Linear(2, 2), nn.Linear(2, 2), NoiseFloors()
    known.add(model, EXACT, 20, OWN)
    assert known.get(model, EXACT, 20) is OWN
    assert not known.reused, "it was measured in this step"
    assert known.get(model, EXACT, 25) is OWN
    assert known.reused
    assert known.get(model, ROUNDS, 25) is None
    assert known.get(other, EXACT, 25) is None
    assert known.cover([model], EXACT, 25)
    assert not known.cover([model, other], EXACT, 25)


def test_it_is_measured_again_as_training_goes_on_and_once_forgotten() -> None:
    model, known = nn.Linear(2, 2), NoiseFloors()
    known.add(model, EXACT, 100, OWN)
    assert known.get(model, EXACT, 160) is OWN
    assert known.get(model, EXACT, 161) is None
    known.forget()
    assert known.get(model, EXACT, 160) is None


@pytest.mark.slow
def test_models_that_are_gone_are_let_go_of() -> None:
    model, known = nn.Linear(2, 2), NoiseFloors()
    known.add(model, EXACT, 100, OWN)
    del model
    gc.collect()
    assert len(known._noise_floors) == 0
