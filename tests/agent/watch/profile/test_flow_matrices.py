"""Sorts, inverses, diagonal matrices and joined lists, in steps of small loops."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable

import pytest
import torch
from torch import nn
from torch.distributions import Independent, MultivariateNormal, Normal, kl_divergence

from agent.watch.profile import flow_steps
from agent.watch.profile.flow_steps import mark
from flatout_agent import wire
from flatout_agent.watch.profile import flow, flow_matrix_rows

ROWS, LENGTH = 32, 256
X = torch.randn(ROWS, LENGTH)


@pytest.fixture(autouse=True)
def _not_by_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(flow_matrix_rows, "LEAST", 0.0)
    monkeypatch.setattr(flow, "LEAST_S", 60.0)


def followed(
    layer: nn.Module, loss: Callable[[], torch.Tensor], modelled: bool = True
) -> wire.FlowSeen:
    """The flow of two steps of such a loss."""
    return flow_steps.of_loss(layer, loss, 1e-3, 0.0, modelled)


Read = Callable[[torch.Tensor], torch.Tensor]


def sorts(read: Read) -> list[tuple[str, int, int, bool]]:
    """Of a loss that reads this of the layer's output."""
    layer = nn.Linear(LENGTH, LENGTH)
    rows = followed(layer, lambda: read(layer(X)).float().square().mean()).sorts
    return [(row.kind, row.length, row.read, row.largest) for row in rows]


def nearest(y: torch.Tensor) -> torch.Tensor:
    with torch.no_grad():
        order = torch.argsort(y, dim=-1)[:, :8]
    return y.gather(1, order.reshape(ROWS, 4, 2).flatten(1))


@pytest.mark.parametrize(
    ("read", "row"),
    [
        (nearest, ("first", LENGTH, 8, False)),
        (lambda y: y.sort(descending=True).values[:, :16], ("first", LENGTH, 16, True)),
        (lambda y: y.sort().values[:, -3:], ("last", LENGTH, 3, True)),
        (lambda y: y - y.sort(1)[0][:, LENGTH // 2, None], ("single", LENGTH, 1, False)),
        (lambda y: y.t().contiguous().sort(dim=0).values[:4], ("first", LENGTH, 4, False)),
        (lambda y: y.square().mean(1).repeat(4).sort().values[:12], ("first", 128, 12, False)),
    ],
)
def test_sorts_of_which_a_slice_is_read(read: Read, row: tuple[str, int, int, bool]) -> None:
    assert sorts(read) == [row]


@pytest.mark.parametrize(
    "read",
    [
        lambda y: y.sort().values.cumsum(1),
        lambda y: y.sort().values[:, : LENGTH // 2],
        lambda y: y.sort(stable=True).values[:, :4],
        lambda y: y.gather(1, y.argsort())[:, :4],
        lambda y: y[:, :32].sort().values[:, :4],
        lambda y: y.sort().values[:, :4] + float(y.sort().values.numpy(force=True).sum()),
        lambda y: y.sort().values.flatten()[: 2 * LENGTH],
        lambda y: torch.quantile(y, 0.5, dim=1),
    ],
    ids=["whole", "half", "stable", "gathered", "short", "numpy", "two rows", "quantile"],
)
def test_sorts_that_are_needed(read: Read) -> None:
    assert sorts(read) == []


def test_a_sort_that_is_kept_may_be_read_later() -> None:
    kept = []

    def read(y: torch.Tensor) -> torch.Tensor:
        values = y.sort().values
        kept.append(values.detach())
        return values[:, :4]

    assert sorts(read) == []


def test_an_order_that_the_next_step_takes() -> None:
    kept = [torch.zeros(ROWS, LENGTH, dtype=torch.long)]

    def read(y: torch.Tensor) -> torch.Tensor:
        before, kept[0] = kept[0], y.detach().argsort()
        return y.gather(1, before) + y[kept[0][:, 0] % ROWS]

    assert sorts(read) == []


SIDE = nn.Linear(LENGTH, 24)


def normal() -> torch.Tensor:
    jac = SIDE(X)
    return jac.t() @ jac + torch.eye(24)


@pytest.mark.parametrize(
    ("loss", "pseudo", "hermitian"),
    [
        (lambda a: (torch.linalg.inv(a) @ a.sum(1)).square().mean(), False, False),
        (lambda a: (torch.inverse(a).t() @ a[:, :3]).square().mean(), False, False),
        (lambda a: (torch.linalg.pinv(a, hermitian=True) @ a[0]).square().mean(), True, True),
        (lambda a: (torch.linalg.pinv(a) @ a[0]).square().mean(), True, False),
    ],
)
def test_inverses_that_are_multiplied(loss: Read, pseudo: bool, hermitian: bool) -> None:
    (row,) = followed(SIDE, lambda: loss(normal())).inverses
    assert (row.pseudo, row.hermitian, row.shape, row.calls) == (pseudo, hermitian, "24x24", 1)
    assert len(row.products) == 1


@pytest.mark.parametrize(
    "loss",
    [
        lambda a: torch.linalg.inv(a).diagonal().sum(),
        lambda a: torch.linalg.inv(a).square().mean(),
        lambda a: torch.linalg.solve(a, a[0]).sum(),
        lambda a: (torch.linalg.inv(a) @ a).square().mean(),
        lambda a: (a.repeat(2, 1) @ torch.linalg.pinv(a)).square().mean(),
        lambda a: torch.linalg.multi_dot([*[torch.linalg.inv(a)] * 3, a[0]]).square().mean(),
    ],
    ids=["part", "numbers", "solved", "many columns", "many rows", "many products"],
)
def test_inverses_that_are_needed(loss: Read) -> None:
    assert followed(SIDE, lambda: loss(normal())).inverses == ()


MEAN = nn.Linear(LENGTH, 16)


def divergence(diagonal: bool) -> Callable[[], torch.Tensor]:
    def loss() -> torch.Tensor:
        mean = MEAN(X)
        variance = mean.square() + 0.1
        covariance = torch.diag_embed(variance)  # built
        if not diagonal:
            covariance = covariance + 0.01
        q = MultivariateNormal(mean, covariance)  # factorised
        return -q.log_prob(q.rsample() + 1).mean()  # solved

    return loss


@pytest.mark.parametrize("modelled", [True, False])
def test_matrices_that_are_diagonal(modelled: bool) -> None:
    rows = followed(MEAN, divergence(True), modelled).diagonals
    assert {mark(row.where): (row.size, row.shape) for row in rows} == {
        "factorised": (16, f"{ROWS}x16x16"),
        "solved": (16, f"{ROWS}x16x16"),
    }
    (cholesky,) = [row for row in rows if "aten.linalg_cholesky_ex" in row.operators]
    assert mark(cholesky.built_where) == "built"


def test_full_matrices_and_independent_normals() -> None:
    assert followed(MEAN, divergence(False)).diagonals == ()

    def independent() -> torch.Tensor:
        mean = MEAN(X)
        q = Independent(Normal(mean, mean.square() + 0.1), 1)
        prior = Independent(Normal(torch.zeros_like(mean), torch.ones_like(mean)), 1)
        return kl_divergence(q, prior).mean()

    assert followed(MEAN, independent).diagonals == ()


@pytest.mark.parametrize("full", [True, False])
def test_a_divergence_from_a_standard_normal_of_a_full_one_needs_matrices(full: bool) -> None:
    factor = torch.full((16, 16), 0.1).tril(-1) if full else torch.zeros(16, 16)

    def loss() -> torch.Tensor:
        mean = MEAN(X)
        q = MultivariateNormal(mean, scale_tril=torch.eye(16) + factor * mean[0, 0])
        prior = MultivariateNormal(torch.zeros(16), torch.eye(16))
        return kl_divergence(q, prior).mean()  # diverges

    lines = {mark(row.where) for row in followed(MEAN, loss).diagonals}
    assert ("diverges" in lines) == (not full)


def test_a_queue_that_is_stacked_in_each_step() -> None:
    layer = nn.Linear(LENGTH, 8)
    queue = deque(torch.randn(600, 8), maxlen=600)

    def loss() -> torch.Tensor:
        keys = layer(X)
        negatives = torch.stack(list(queue))  # joined
        queue.extend(keys.detach())
        return (keys @ negatives.t()).square().mean()

    (row,) = followed(layer, loss).joins
    assert mark(row.where) == "joined"
    assert (row.tensors, row.older, row.shape, row.bytes) == (600, 600, "8", 600 * 8 * 4)


def test_lists_that_a_step_has_just_filled() -> None:
    layer = nn.Linear(8, 8)

    def states() -> torch.Tensor:
        state, all_states = torch.zeros(4, 8), []
        for _ in range(300):
            state = torch.tanh(layer(state))
            all_states.append(state)
        return torch.stack(all_states).square().mean()

    def from_arrays() -> torch.Tensor:
        arrays = torch.rand(300, 8).numpy()
        return layer(torch.stack([torch.from_numpy(row) for row in arrays])).square().mean()

    for loss in (states, from_arrays):
        assert followed(layer, loss).joins == (), loss.__name__


def test_rows_of_several_lengths_fit_no_single_tensor() -> None:
    layer = nn.Linear(8, 8)
    graphs = [torch.randn(2 + number % 3, 8) for number in range(300)]
    assert followed(layer, lambda: layer(torch.cat(graphs)).square().mean()).joins == ()


def test_weights_that_are_joined_are_no_list() -> None:
    model = nn.Sequential(*(nn.Linear(2, 2) for _ in range(150)))

    def loss() -> torch.Tensor:
        with torch.no_grad():
            flat = torch.cat([weight.reshape(-1) for weight in model.parameters()])
        return model(X[:, :2]).square().mean() + flat.norm()

    assert followed(model, loss).joins == ()


def test_of_the_weights_of_optimizers_alone_nothing_is_told_that_models_decide() -> None:
    seen = followed(MEAN, divergence(True), modelled=False)
    assert (seen.unread, seen.constants, seen.beside, seen.repeats) == ((), (), (), ())
    assert seen.gradients is None
