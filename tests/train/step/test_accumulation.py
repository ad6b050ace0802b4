from __future__ import annotations

import math
from typing import Any

import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st
from torch import Tensor, nn
from torch.nn import functional as F

import flatout
from flatout_train.errors import UsageError
from flatout_train.step.accumulation import Group, tokens

PLAIN: dict[str, Any] = {"precision": "fp32", "compile": False}
CPU = torch.device("cpu")


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3)).double()


def grouped(accumulate: int, loss_fn: Any = F.cross_entropy, **options: Any) -> Any:
    """A step that leaves the weights as they are."""
    model = network()
    optimizer = torch.optim.SGD(model.parameters(), lr=0.0)
    return flatout.train_step(model, loss_fn, optimizer, accumulate=accumulate, **PLAIN, **options)


def batch(rows: int, ignored: int = 0) -> tuple[Tensor, Tensor]:
    target = torch.randint(0, 3, (rows,))
    target[:ignored] = -100
    return torch.randn(rows, 4, dtype=torch.float64), target


def gradients(model: nn.Module) -> list[Tensor]:
    return [p.grad for p in model.parameters() if p.grad is not None]


def together(data: list[tuple[Tensor, Tensor]], reduction: str = "mean") -> list[Tensor]:
    """The gradient of all these batches as one."""
    model = network()
    input, target = (torch.cat(each) for each in zip(*data, strict=True))
    F.cross_entropy(model(input), target, reduction=reduction).backward()
    return gradients(model)


def close(found: list[Tensor], expected: list[Tensor]) -> None:
    assert len(found) == len(expected)
    for one, other in zip(found, expected, strict=True):
        torch.testing.assert_close(one, other, rtol=1e-12, atol=1e-14)


@given(rows=st.lists(st.integers(1, 9), min_size=1, max_size=5), clip=st.booleans())
@settings(max_examples=30, deadline=None)
def test_gradient_is_that_of_all_samples_at_once(rows: list[int], clip: bool) -> None:
    step = grouped(4, clip_norm=1e-3 if clip else None)
    data = [batch(count) for count in rows]
    for one in data:
        step(one)
    last = data[len(data) // 4 * 4 :] or data[-4:]
    step.flush()
    expected = together(last)
    if clip:
        parameters = list(network().parameters())
        for parameter, grad in zip(parameters, expected, strict=True):
            parameter.grad = grad
        torch.nn.utils.clip_grad_norm_(parameters, 1e-3)
    close(gradients(step.model), expected)
    assert step.metrics().steps == math.ceil(len(rows) / 4)


@given(counts=st.lists(st.tuples(st.integers(1, 6), st.integers(0, 6)), min_size=1, max_size=3))
@settings(max_examples=30, deadline=None)
def test_tokens_that_are_left_out_weigh_nothing(counts: list[tuple[int, int]]) -> None:
    data = [batch(rows, ignored=min(rows, ignored)) for rows, ignored in [*counts, (2, 0)]]
    step = grouped(len(data), weigh="tokens")
    losses = [step(one) for one in data]
    close(gradients(step.model), together(data))
    weights = [int((target != -100).sum()) for _, target in data]
    sums = [loss.item() * weight for loss, weight in zip(losses, weights, strict=True) if weight]
    assert step.metrics().losses[-1] == pytest.approx(sum(sums) / sum(weights), rel=1e-12)


def test_sums_add_up() -> None:
    data = [batch(3), batch(5)]
    step = grouped(2, nn.CrossEntropyLoss(reduction="sum"), weigh="sum")
    losses = [step(one) for one in data]
    close(gradients(step.model), together(data, "sum"))
    assert step.metrics().losses == (pytest.approx(sum(losses).item()),)


def test_a_function_weighs() -> None:
    data = [(*batch(3), 2.0), (*batch(3), torch.tensor(0.5)), (*batch(3), 0)]

    def loss_fn(model: nn.Module, batch: Any) -> Tensor:
        return F.cross_entropy(model(batch[0]), batch[1])

    step = grouped(3, loss_fn, weigh=lambda batch: batch[2])
    for one in data:
        step(one)
    expected = [
        (2.0 * a + 0.5 * b) / 2.5
        for a, b in zip(together([data[0][:2]]), together([data[1][:2]]), strict=True)
    ]
    close(gradients(step.model), expected)


def test_weights_on_the_device_are_never_read(monkeypatch: pytest.MonkeyPatch) -> None:
    """As on an accelerator, where a weight stays a tensor."""
    data = [batch(3), batch(7), batch(4, ignored=4), batch(1)]
    step = grouped(4, weigh="tokens")
    step._group.weigh = lambda batch: (batch[1] != -100).sum()
    step(data[0])  # the nominal weight is read once
    with monkeypatch.context() as patch:
        for name in ("__float__", "__bool__", "__int__", "tolist"):
            patch.setattr(Tensor, name, lambda *_: pytest.fail("read a tensor"))
        step(data[1])
    step(data[2])
    step(data[3])
    for one, other in zip(gradients(step.model), together(data), strict=True):
        torch.testing.assert_close(one, other, rtol=1e-6, atol=1e-8)


def test_weights_are_relative_so_that_a_scaled_loss_keeps_its_size() -> None:
    group = Group(4, "samples", None, CPU)
    assert group.factors(group.weights([batch(1000)])) == [0.25]
    assert group.factors(group.weights([batch(500)])) == [0.125]


def test_equal_weights_need_no_last_factor_and_nothing_weighed_is_no_gradient() -> None:
    group = Group(2, "samples", None, CPU)
    for _ in range(2):
        one = batch(8)
        weights = group.weights([one])
        group.factors(weights)
        group.add(one, 1, torch.tensor(1.0), weights)
    assert group.correction() is None
    group.clear()
    group.add(one, 1, torch.tensor(math.nan), [0])
    assert group.correction() == 0.0
    assert group.mean_loss().item() == 0.0


def test_a_step_of_no_tokens_leaves_the_weights_alone() -> None:
    step = grouped(2, weigh="tokens")
    step.optimizer.param_groups[0]["lr"] = 0.1
    before = [each.detach().clone() for each in step.model.parameters()]
    for _ in range(2):
        step(batch(3, ignored=3))
    assert all(map(torch.equal, before, step.model.parameters()))
    assert step.metrics().skipped == 0


def test_flush_steps_only_where_something_is_left() -> None:
    model = network()
    scheduler_calls = []
    optimizer = torch.optim.SGD(model.parameters(), lr=0.1)
    scheduler = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda epoch: scheduler_calls.append(epoch) or 1.0
    )
    step = flatout.train_step(
        model, F.cross_entropy, optimizer, accumulate=2, scheduler=scheduler, **PLAIN
    )
    assert not step.flush()
    step(batch(3))
    assert step.flush()
    assert not step.flush()
    assert scheduler_calls == [0, 1]
    assert step.metrics().steps == 1


def test_what_tokens_are_counted_in() -> None:
    target = torch.tensor([[1, -100], [2, 3]])
    assert tokens({"labels": target}) == tokens((torch.zeros(2), target)) == 3
    with pytest.raises(UsageError, match="neither"):
        tokens({"input": target})
    with pytest.raises(UsageError, match=r"shape \[2\]"):
        Group(2, lambda batch: torch.ones(2), None, CPU).weights([0])
    with pytest.raises(UsageError, match="a str"):
        Group(2, lambda batch: "many", None, CPU).weights([0])


@pytest.mark.parametrize("weight", [-1.0, math.nan, torch.tensor(-2)])
def test_a_weight_below_zero_is_refused(weight: Any) -> None:
    group = Group(2, lambda batch: weight, None, torch.device("cpu"))
    with pytest.raises(UsageError, match="0 or more"):
        group.weights([torch.zeros(2)])
