"""Random numbers that follow from what is loaded."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
import torch

from flatout_train.loader.seeding import seed_for, seeded


def test_seeds_differ_with_any_part() -> None:
    parts = [(0,), (1,), (0, 1), (1, 0), (0, "1"), (10, 1), (1, 1), (-1,), (2**70,)]
    assert len({seed_for(*each) for each in parts}) == len(parts)
    assert all(0 <= seed_for(*each) < 2**63 for each in parts)


def drawn() -> list[Any]:
    return [random.random(), np.random.rand(), torch.rand(1).item(), np.random.randn()]


def test_the_same_seed_draws_the_same_and_the_programs_numbers_go_on() -> None:
    with seeded(5):
        first = drawn()
    random.seed(1), np.random.seed(1), torch.manual_seed(1)
    np.random.randn()  # NumPy keeps the second of each pair of these for the next call
    before = random.getstate(), np.random.get_state(), torch.get_rng_state()
    with pytest.raises(ZeroDivisionError), seeded(5):
        assert drawn() == first
        raise ZeroDivisionError
    after = random.getstate(), np.random.get_state(), torch.get_rng_state()
    assert before[0] == after[0]
    assert all(np.array_equal(one, other) for one, other in zip(before[1], after[1], strict=True))
    assert torch.equal(before[2], after[2])
    with seeded(6):
        assert drawn() != first


GENERATORS = {
    "python": lambda: random.Random(1),
    "numpy": lambda: np.random.default_rng(1),
    "old numpy": lambda: np.random.RandomState(1),
    "torch": lambda: torch.Generator(),
}


@pytest.mark.parametrize("kind", list(GENERATORS))
def test_a_generator_that_the_data_set_holds_is_seeded(kind: str) -> None:
    generator = GENERATORS[kind]()

    def draw() -> float:
        if isinstance(generator, torch.Generator):
            return torch.rand(1, generator=generator).item()
        return generator.random()

    with seeded(3, [generator]):
        first = draw()
        draw()
    with seeded(3, [generator]):
        assert draw() == first
