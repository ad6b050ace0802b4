"""Root models are found in a running program."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch import nn

from discovered import discovered
from flatout_agent.job import Job
from flatout_agent.watch import Watcher


@pytest.fixture
def job() -> Iterator[Job]:
    with discovered(Watcher()) as (job, _):
        yield job


class Bundle(nn.Module):
    """Keeps its weights in a list, which its `parameters` gives."""

    def __init__(self) -> None:
        super().__init__()
        self.weights = nn.ParameterList([nn.Parameter(torch.randn(4, 4))])

    def forward(self, batch: torch.Tensor) -> torch.Tensor:
        return batch @ self.weights[0]

    def parameters(self, recurse: bool = True):  # type: ignore[no-untyped-def]
        return self.weights


def test_a_frozen_network_behind_the_loss_is_found(job: Job) -> None:
    trained, perceiving = nn.Linear(4, 4), nn.Linear(4, 4).requires_grad_(False).eval()
    optimizer = torch.optim.SGD(trained.parameters(), 0.1)
    batch = torch.randn(2, 4)
    for _ in range(3):
        target = perceiving(batch)
        nn.functional.mse_loss(perceiving(trained(batch)), target).backward()  # type: ignore[no-untyped-call]
        optimizer.step()
        optimizer.zero_grad()
    assert list(job.models) == [trained, perceiving]
    assert not list(job.frozen)


def test_a_model_whose_parameters_are_a_list_is_found(job: Job) -> None:
    model = Bundle()
    optimizer = torch.optim.SGD(model.parameters(), 0.1)
    for _ in range(3):
        model(torch.randn(2, 4)).sum().backward()
        optimizer.step()
        with torch.no_grad():
            model(torch.randn(2, 4))
    assert list(job.models) == [model]
