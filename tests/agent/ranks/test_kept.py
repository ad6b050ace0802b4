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


class Keeping(torch.nn.Linear):
    def forward(self, x: torch.Tensor) -> torch.Tensor:
        self.last = super().forward(x)
        return self.last


def test_a_tensor_of_a_later_call_never_takes_the_identity_of_an_earlier_one() -> None:
    model = Keeping(2, 2)
    kept = Kept(model)
    seen = []
    for _ in range(50):
        model(torch.ones(1, 2))
        seen.append(kept.left())
        kept.put_back()
    assert (
        len({id(tensor) for left in seen for tensors in left.values() for tensor in tensors}) == 50
    )
