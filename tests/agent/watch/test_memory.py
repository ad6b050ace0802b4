"""A program watched for the memory of its steps: on parts of its batch, then ended."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from flatout_agent import wire
from flatout_agent.watch.memory import first_rows

JOBS = Path(__file__).parents[2] / "jobs"


def test_the_first_rows_of_a_batch() -> None:
    batch = {
        "x": torch.arange(12).view(6, 2),
        "ids": list("abcdef"),
        "mask": torch.ones(2, 2),
        "names": ["a", "b"],
        "scale": 3,
    }
    cut = first_rows(batch, 6, 2)
    assert torch.equal(cut["x"], batch["x"][:2])
    assert cut["x"].untyped_storage().nbytes() == 2 * 2 * 8  # a copy: the rest is not held
    assert cut["ids"] == ["a", "b"]
    assert (cut["mask"] is batch["mask"], cut["names"], cut["scale"]) == (True, ["a", "b"], 3)
    inputs, targets = first_rows([torch.ones(4, 3), torch.ones(4)], 4, 2)
    assert (inputs.shape, targets.shape) == ((2, 3), (2,))


def seen(run_agent: Any, name: str, cut: bool = True) -> wire.MemorySeen:
    argv = [str(JOBS / f"{name}.py"), "--steps", "500"]
    orders = wire.MemoryOrders(cut=cut)
    run = run_agent(argv, trial=wire.TrialOrders(), memory=orders, light=True)
    assert run.returncode == 0, run.stderr
    assert run.of(wire.Fault) == []
    assert run.one(wire.Ended).reason == "window"
    found: wire.MemorySeen = run.one(wire.MemorySeen)
    return found


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "name",
    ["plain", "accumulation", "workers", "rnn"],
)
def test_styles_of_loops(run_agent: Any, name: str) -> None:
    found = seen(run_agent, name)
    small, large = found.points
    assert 2 <= small.rows < large.rows <= found.batch_rows // 2
    assert small.activations_bytes < large.activations_bytes
    assert found.parameters_bytes >= found.gradients_bytes > 0


@pytest.mark.slow
@pytest.mark.few(1)
@pytest.mark.parametrize(
    ("name", "cut"),
    [("no_loader", True), ("plain", False), ("gan", True), ("scaler", True)],
)
def test_a_batch_that_is_not_cut(run_agent: Any, name: str, cut: bool) -> None:
    """As ordered, or because there is no loader that gives it."""
    found = seen(run_agent, name, cut)
    (point,) = found.points
    assert point.rows == found.batch_rows
