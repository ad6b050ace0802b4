"""Clipping inside the optimizer's fused kernel; the CPU's kernels stand in for those of CUDA."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn
from torch.nn import functional as F

import flatout
from flatout_train.step import train_step as step_file
from flatout_train.step import update
from flatout_train.step.graph.whole_step import WholeStep
from train.step.graph.fake import FakeRecorder

PLAIN: dict[str, Any] = {"precision": "fp32", "compile": False}
OPTIMIZERS: dict[str, Callable[..., torch.optim.Optimizer]] = {
    "adamw": lambda p: torch.optim.AdamW(p, lr=3e-4, fused=True),
    "adam": lambda p: torch.optim.Adam(p, lr=3e-4, weight_decay=0.1, amsgrad=True, fused=True),
    "sgd": lambda p: torch.optim.SGD(p, lr=0.1, fused=True),
    "momentum": lambda p: torch.optim.SGD(p, lr=0.1, momentum=0.9, nesterov=True, fused=True),
}
Clips = list[float]


@pytest.fixture(autouse=True)
def accelerator(monkeypatch: pytest.MonkeyPatch) -> None:
    """Steps as they are where the host may not read values, with tensors on the CPU."""
    monkeypatch.setattr(step_file, "HostUpdate", update.DeviceUpdate)
    monkeypatch.setattr(update, "DIVIDING", ("cpu",))


@pytest.fixture
def clips(monkeypatch: pytest.MonkeyPatch) -> Clips:
    """The norm of each separate pass over the gradients."""
    seen: Clips = []
    own: Any = torch.nn.utils.clip_grads_with_norm_

    def watched(parameters: Any, largest: float, norm: Tensor, *rest: Any) -> None:
        seen.append(float(norm))
        own(parameters, largest, norm, *rest)

    monkeypatch.setattr(torch.nn.utils, "clip_grads_with_norm_", watched)
    return seen


def network() -> nn.Sequential:
    torch.manual_seed(1)
    return nn.Sequential(nn.Linear(4, 6), nn.LayerNorm(6), nn.Tanh(), nn.Linear(6, 3))


def batches(*sizes: int) -> list[tuple[Tensor, Tensor]]:
    torch.manual_seed(2)
    return [(torch.randn(size, 4), torch.randint(0, 3, (size,))) for size in sizes]


def made(kind: str, rounds: bool = True, **options: Any) -> Any:
    model = network()
    optimizer = OPTIMIZERS[kind](model.parameters())
    if rounds:
        update.let_round(optimizer)
    return flatout.train_step(model, F.cross_entropy, optimizer, **PLAIN, **options)


def values(step: Any) -> list[Tensor]:
    """Weights, gradients and the optimizer's state."""
    state = [value for each in step.optimizer.state.values() for value in each.values()]
    parameters = list(step.model.parameters())
    return [*parameters, *(each.grad for each in parameters), *map(torch.as_tensor, state)]


def close(one: Any, other: Any) -> None:
    for found, expected in zip(values(one), values(other), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


@pytest.mark.parametrize("clip", [0.05, 1e3])
@pytest.mark.parametrize("kind", OPTIMIZERS)
def test_it_is_plain_clipping_without_a_pass_of_its_own(
    kind: str, clip: float, clips: Clips
) -> None:
    step, plain = made(kind, clip_norm=clip), made(kind, rounds=False, clip_norm=clip)
    for batch in batches(*[8] * 6):
        step(batch)
        # torch's fused SGD makes its momentum in the first step, which the host looks at
        assert len(clips) == (kind == "momentum")
    clips.clear()
    for batch in batches(*[8] * 6):
        plain(batch)
    assert len(clips) == 6
    close(step, plain)
    assert "grad_scale" not in vars(step.optimizer)
    assert step.metrics().grad_norms == pytest.approx(plain.metrics().grad_norms, rel=1e-5)


@pytest.mark.parametrize("clip", [None, 0.05, math.inf])
@pytest.mark.parametrize("weight", ["number", "tensor"])
def test_what_puts_unequal_batches_right_goes_the_same_way(
    clip: float | None, weight: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    options: dict[str, Any] = {"accumulate": 2, "clip_norm": clip}
    step, plain = made("adamw", **options), made("adamw", rounds=False, **options)
    if weight == "tensor":  # as on an accelerator, and in float64 as of several ranks
        for each in (step, plain):
            each._group.weigh = lambda batch: torch.tensor(float(len(batch[1])), dtype=torch.double)
    data = batches(8, 3, 8, 5, 2, 8)
    for batch in data:
        plain(batch)
    monkeypatch.setattr(step._gradients, "scale", lambda *_: pytest.fail("a pass of its own"))
    for batch in data:
        step(batch)
    close(step, plain)


def test_batches_that_weigh_nothing_leave_the_weights() -> None:
    step = made("sgd", accumulate=2, clip_norm=0.1, weigh="tokens")
    before = [each.detach().clone() for each in step.model.parameters()]
    input, target = batches(4)[0]
    for _ in range(2):
        step((input, torch.full_like(target, -100)))
    assert all(map(torch.equal, before, step.model.parameters()))


def test_bad_steps_are_left_out_as_ever(clips: Clips) -> None:
    step = made("adamw", clip_norm=0.1, nonfinite="skip")
    plain = made("adamw", rounds=False, clip_norm=0.1)
    data = batches(*[8] * 5)
    bad = data[2][0].clone()
    bad[1, 1] = math.nan
    for batch in [*data[:2], (bad, data[2][1]), *data[2:]]:
        step(batch)
    assert not clips
    for batch in data:
        plain(batch)
    close(step, plain)
    step.state_dict()
    assert step.metrics().skipped == 1


def test_an_infinite_norm_costs_no_pass(clips: Clips) -> None:
    step, plain = made("adamw", rounds=False, clip_norm=math.inf), made("adamw", rounds=False)
    for batch in batches(8, 8):
        step(batch)
        plain(batch)
    assert not clips
    assert all(map(torch.equal, values(step), values(plain)))
    assert len(step.metrics().grad_norms) == 2


def test_in_a_recording_the_divisor_is_made_anew_by_each_replay() -> None:
    step, plain = made("adamw", clip_norm=0.05), made("adamw", rounds=False, clip_norm=0.05)
    recorder = FakeRecorder(
        lambda: [
            *step.model.state_dict(keep_vars=True).values(),
            *(v for each in step.optimizer.state.values() for v in each.values()),
        ]
    )
    cpu = torch.device("cpu")
    step._graph_step = WholeStep(step._body, step.model, step.optimizer, cpu, recorder=recorder)
    for batch in batches(*[8] * 10):
        step(batch)
        plain(batch)
    assert step.notes["graph"] == "recorded"
    assert recorder.replays > 5
    for found, expected in zip(step.model.parameters(), plain.model.parameters(), strict=True):
        torch.testing.assert_close(found, expected, rtol=1e-6, atol=1e-7)


def test_a_hook_of_the_users_sees_gradients_that_are_clipped(clips: Clips) -> None:
    step = made("adamw", clip_norm=0.05)
    norms: list[float] = []
    step.optimizer.register_step_pre_hook(
        lambda optimizer, *_: norms.append(
            float(torch.nn.utils.get_total_norm([p.grad for p in step.model.parameters()]))
        )
    )
    for batch in batches(8, 8):
        step(batch)
    assert norms == pytest.approx([0.05, 0.05], rel=1e-3)
    assert len(clips) == 2


class Own(torch.optim.AdamW):
    """Its kernel may be another."""


@pytest.mark.parametrize(
    ("make", "double"),
    [
        (lambda p: Own(p, lr=1e-3, fused=True), False),
        (lambda p: torch.optim.Adagrad(p, lr=1e-2, fused=True), False),
        (lambda p: torch.optim.AdamW(p, lr=1e-3), False),
        (lambda p: torch.optim.AdamW(p, lr=1e-3, fused=True), True),
    ],
)
def test_other_kernels_and_float64_have_a_pass_of_their_own(
    make: Any, double: bool, clips: Clips
) -> None:
    model = network().double() if double else network()
    optimizer = make(model.parameters())
    update.let_round(optimizer)
    step = flatout.train_step(model, F.cross_entropy, optimizer, clip_norm=0.05, **PLAIN)
    input, target = batches(8)[0]
    step((input.double() if double else input, target))
    assert len(clips) == 1


def test_fp16_is_left_to_gradscaler(clips: Clips) -> None:
    model = network()
    optimizer = OPTIMIZERS["adamw"](model.parameters())
    step = flatout.train_step(
        model, F.cross_entropy, optimizer, precision="fp16", compile=False, clip_norm=0.05
    )
    assert step._update.may_divide
    step(batches(8)[0])
    assert len(clips) == 1
    step.close()
    assert update.MAY_ROUND not in vars(optimizer)
