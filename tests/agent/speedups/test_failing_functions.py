"""Functions that fail under autocast are computed in float32, and no others."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.boosts import bf16_autocast
from flatout_agent.job import Job
from flatout_agent.speedups import failing_functions, precision
from flatout_agent.speedups.failing_functions import MendedFunctions
from flatout_agent.speedups.precision import Bf16Support

ROWS, WIDTH = 24, 16
INDEX = torch.zeros(ROWS, WIDTH, dtype=torch.long)
GRAPH = torch.eye(ROWS).roll(1, 0).to_sparse()


def zeros() -> torch.Tensor:
    return torch.zeros(ROWS, WIDTH)


def part_assigned(hidden: torch.Tensor) -> torch.Tensor:
    hidden = hidden.clone()
    hidden[:5] = torch.ones(WIDTH)
    return hidden


def rows_assigned(hidden: torch.Tensor) -> torch.Tensor:
    result = zeros()
    result[torch.arange(ROWS)] = hidden
    return result


class Spectral(nn.Module):
    """A layer of a Fourier neural operator: its weights are complex."""

    def __init__(self) -> None:
        super().__init__()
        self.out = nn.Linear(WIDTH, WIDTH)
        self.weight = nn.Parameter(torch.randn(WIDTH, WIDTH, dtype=torch.complex64) / WIDTH)

    def forward(self, hidden: torch.Tensor) -> Any:
        modes = torch.fft.rfft(hidden, dim=0)[:5] @ self.weight
        return self.out(torch.fft.irfft(modes, n=len(hidden), dim=0) + hidden)


FUNCTIONS: dict[str, Callable[[torch.Tensor], torch.Tensor]] = {
    "scatter_add_": lambda hidden: zeros().scatter_add_(0, INDEX, hidden),
    "scatter_add": lambda hidden: zeros().scatter_add(0, INDEX, hidden),
    "index_add_": lambda hidden: zeros().index_add_(0, torch.arange(ROWS), hidden),
    "index_put": lambda hidden: zeros().index_put((torch.arange(ROWS),), hidden),
    "masked_scatter": lambda hidden: zeros().masked_scatter(INDEX == 0, hidden),
    "lerp": lambda hidden: torch.lerp(zeros(), hidden, 0.5),
    "numpy": lambda hidden: hidden * float(hidden.detach().numpy().mean()),
    "a part assigned": part_assigned,
    "rows assigned": rows_assigned,
    "sparse.mm": lambda hidden: torch.sparse.mm(GRAPH, hidden),
    "sparse matrix @": lambda hidden: GRAPH @ hidden,
    "complex weights": Spectral(),
}


class Calls(nn.Module):
    """A layer, and a function of what it gives."""

    def __init__(self, function: Callable[[torch.Tensor], Any]) -> None:
        super().__init__()
        self.layer, self.function, self.calls = nn.Linear(WIDTH, WIDTH), function, 0

    def forward(self, batch: torch.Tensor) -> Any:
        self.calls += 1
        return self.function(self.layer(batch))


@pytest.fixture(autouse=True)
def fresh(monkeypatch: pytest.MonkeyPatch) -> Iterator[MendedFunctions]:
    """With no function known yet; bfloat16 counts as native."""
    known = MendedFunctions()
    monkeypatch.setattr(failing_functions, "mended_functions", lambda: known)
    monkeypatch.setattr(precision, "native_bf16", lambda device: Bf16Support(True, "here"))
    yield known
    assert not any(name in vars(torch.Tensor) for name in ("scatter_add_", "index_add_", "numpy"))


def trained(model: nn.Module, batch: torch.Tensor) -> tuple[torch.Tensor, list[torch.Tensor]]:
    output = model(batch)
    return output.detach(), list(torch.autograd.grad(output.sum(), list(model.parameters())))


@pytest.mark.parametrize("name", FUNCTIONS)
def test_the_model_trains_as_written_but_for_rounding(name: str) -> None:
    torch.manual_seed(1)
    model, batch = Calls(FUNCTIONS[name]), torch.randn(ROWS, WIDTH)
    output, gradients = trained(model, batch)
    applied = bf16_autocast.apply(Job(), model, {})
    calls = model.calls
    for number in range(3):
        found, of_weights = trained(model, batch)
        if number:
            assert model.calls == calls + 1, "only the first call is made twice"
        calls = model.calls
        assert found.dtype is torch.float32
        torch.testing.assert_close(found, output, rtol=0.05, atol=0.05)
        for one, other in zip(of_weights, gradients, strict=True):
            torch.testing.assert_close(one, other, rtol=0.05, atol=0.3)
    told = applied.engaged()
    assert told is not None and told[0]
    applied.undo()
    assert torch.equal(model(batch), output)


def test_float64_is_not_rounded() -> None:
    matrix, dense = GRAPH.double(), torch.full((ROWS, 4), 1 / 3, dtype=torch.float64)
    expected = torch.sparse.mm(matrix, dense)
    applied = bf16_autocast.apply(Job(), nn.Linear(2, 2), {})
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(torch.sparse.mm(matrix, dense), expected)
    applied.undo()


def test_only_arguments_that_fail_are_cast(fresh: MendedFunctions) -> None:
    def both(hidden: torch.Tensor) -> torch.Tensor:
        same = torch.zeros_like(hidden).scatter_add_(0, INDEX, hidden)
        seen.append(same.dtype)
        return zeros().scatter_add_(0, INDEX, hidden) + same

    seen: list[torch.dtype] = []
    model, batch = Calls(both), torch.randn(ROWS, WIDTH)
    applied = bf16_autocast.apply(Job(), model, {})
    for _ in range(2):
        model(batch)
    assert set(seen) == {torch.bfloat16}
    assert fresh.names == ("torch.Tensor.scatter_add_",)
    told = applied.engaged()
    assert told is not None
    assert told[0]
    assert "in float32, as it fails in bfloat16: torch.Tensor.scatter_add_" in told[1]
    applied.undo()


def test_the_scripts_own_errors_come_through() -> None:
    def wrong(hidden: torch.Tensor) -> Any:
        return zeros().scatter_add_(0, INDEX.float(), hidden)

    model, batch = Calls(wrong), torch.randn(ROWS, WIDTH)
    applied = bf16_autocast.apply(Job(), model, {})
    with pytest.raises(RuntimeError, match=r"scatter\(\): Expected dtype int"):
        model(batch)
    applied.undo()


def test_a_function_that_was_imported_by_name_is_mended_in_each_call(
    fresh: MendedFunctions,
) -> None:
    lerp = torch.lerp
    model, batch = Calls(lambda hidden: lerp(zeros(), hidden, 0.5)), torch.randn(ROWS, WIDTH)
    expected = model(batch)
    applied = bf16_autocast.apply(Job(), model, {})
    for _ in range(4):
        torch.testing.assert_close(model(batch), expected, rtol=0.05, atol=0.05)
    assert fresh.unreached
    applied.undo()


def test_what_is_recomputed_in_the_backward_pass_is_mended_too() -> None:
    def scattered(hidden: torch.Tensor) -> torch.Tensor:
        return zeros().scatter_add_(0, INDEX, hidden @ torch.eye(WIDTH))

    def recomputed(hidden: torch.Tensor) -> Any:
        return torch.utils.checkpoint.checkpoint(scattered, hidden, use_reentrant=False)

    model, batch = Calls(recomputed), torch.randn(ROWS, WIDTH)
    _, expected = trained(model, batch)
    applied = bf16_autocast.apply(Job(), model, {})
    for _ in range(2):
        _, gradients = trained(model, batch)
    torch.testing.assert_close(gradients, expected, rtol=0.05, atol=0.3)
    applied.undo()
