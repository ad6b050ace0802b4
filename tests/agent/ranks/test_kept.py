"""What a look at a model leaves behind: nothing."""

import random

import numpy
import torch

from flatout_agent.ranks.kept import Kept


def test_random_numbers_of_all_three_go_on_as_if_nobody_had_looked() -> None:
    numpy.random.seed(0)  # it is there from its first use on
    kept = Kept(torch.nn.Linear(2, 2))
    first = random.random(), numpy.random.rand(), torch.rand(()).item()
    kept.put_back()
    assert (random.random(), numpy.random.rand(), torch.rand(()).item()) == first
