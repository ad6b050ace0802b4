"""The guard's judgement: planted faults are found, and what only rounds or reorders passes."""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.live import calls, guard
from flatout_agent.live.guard import GuardVerdict
from guarded import (
    NETS,
    conv,
    cross_entropy,
    differences,
    everything,
    images,
    record,
    train_call,
    vectors,
)

Forward = Callable[..., Any]
RISKS = ("exact", "rounding")


pytestmark = pytest.mark.usefixtures("one_thread")


@contextlib.contextmanager
def boosted_by(model: nn.Module, boost: Callable[[Forward], Forward]) -> Iterator[None]:
    model.forward = boost(model.forward)
    try:
        yield
    finally:
        del model.forward


@dataclass
class Case:
    """A recorded call, what came of it as written, and the program's noise floor."""

    model: nn.Module
    recorded: calls.RecordedCall
    other: calls.RecordedCall | None
    redraws: bool = False

    def __post_init__(self) -> None:
        before = everything(self.model)
        written = guard.reference(self.recorded)
        assert written is not None
        self.written, self.recorded.other_batch = written, self.other
        self.noise_floors = {
            risk: guard.noise_floor(self.recorded, written, self.redraws, risk != "exact")
            for risk in RISKS
        }
        assert differences(before, everything(self.model)) == []

    def verdict(self, boost: Callable[[Forward], Forward], risk: str) -> GuardVerdict:
        """As the checks take it."""
        with boosted_by(self.model, boost):
            boosted = calls.again(self.recorded)
        own, compared = self.noise_floors[risk], (self.written, boosted)
        return guard.verdict(self.recorded, self.written, compared, own, risk, self.redraws)


@functools.cache
def case(net: str, seed: int = 0) -> Case:
    return Case(*train_call(net, seed))


class Backward(torch.autograd.Function):
    """Changes the gradient alone."""

    @staticmethod
    def forward(ctx: Any, x: torch.Tensor, change: Any) -> torch.Tensor:
        ctx.change = change
        return x.view_as(x)

    @staticmethod
    def backward(ctx: Any, gradient: torch.Tensor) -> Any:
        return ctx.change(gradient), None


def outputs(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Forward], Forward]:
    return lambda forward: lambda *args: change(forward(*args))


def gradients(change: Callable[[torch.Tensor], torch.Tensor]) -> Callable[[Forward], Forward]:
    return outputs(lambda output: Backward.apply(output, change))


def last_dropped(x: torch.Tensor) -> torch.Tensor:
    return torch.cat([x[:-1], torch.zeros_like(x[-1:])])


def flipped(gradient: torch.Tensor) -> torch.Tensor:
    """The sign of each hundredth entry."""
    signs = torch.ones_like(gradient)
    signs.view(-1)[::100] = -1
    return gradient * signs


def smoothed(output: torch.Tensor) -> torch.Tensor:
    """The gradient of another loss: labels smoothed by 0.3."""

    def change(gradient: torch.Tensor) -> torch.Tensor:
        uniform = torch.full_like(output, 1 / output.shape[-1])
        wanted = output.softmax(-1) - gradient * output[..., 0].numel()
        rows = output[..., 0].numel()
        return (output.softmax(-1) - 0.7 * wanted - 0.3 * uniform).detach() / rows

    return Backward.apply(output, change)


FAULTS = {
    "outputs 1 % too large": outputs(lambda x: x * 1.01),
    "outputs 1 % too small": outputs(lambda x: x * 0.99),
    "gradients 1 % too long": gradients(lambda g: g * 1.01),
    "gradients 1 % too short": gradients(lambda g: g * 0.99),
    "last example left out": outputs(last_dropped),
    "last example left out in backward": gradients(last_dropped),
    "signs flipped in backward": gradients(lambda g: flipped(g) if g.numel() < 1e6 else g),
    "labels smoothed": outputs(smoothed),
    "half of the batch in backward": gradients(
        lambda g: torch.cat([2 * g[: len(g) // 2], 0 * g[len(g) // 2 :]])
    ),
    "noise in backward": gradients(
        lambda g: g + 0.5 * g.norm() / g.numel() ** 0.5 * torch.randn(g.shape)
    ),
}


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault, net, risk):
    found = case(net).verdict(FAULTS[fault], risk)
    assert not found.passed, found.reason


def zeroed(weight: nn.Parameter) -> Callable[[Forward], Forward]:
    """Nothing comes back at one parameter."""

    def boost(forward: Forward) -> Forward:
        def call(*args: Any) -> Any:
            hook = weight.register_hook(torch.zeros_like)
            HOOKS.append(hook)
            return forward(*args)

        return call

    return boost


HOOKS: list[Any] = []


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("net", NETS)
def test_one_parameter_without_gradient_is_found(net, risk):
    found = case(net)
    norms = [float(gradient.norm()) for gradient in found.written.gradients]
    asked = 0
    for name, norm in zip(found.written.names, norms, strict=True):
        if norm < 0.01 * max(norms):
            continue
        try:
            verdict = found.verdict(zeroed(found.model.get_parameter(name)), risk)
        finally:
            while HOOKS:
                HOOKS.pop().remove()
        assert not verdict.passed, name
        asked += 1
    assert asked >= 4


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("net", NETS)
@pytest.mark.parametrize(("place", "value"), [(outputs, float("nan")), (gradients, float("inf"))])
def test_one_number_that_is_not_finite_is_found(place, value, net, risk):
    rare = place(lambda x: torch.where(x == x.max(), value, x))
    found = case(net).verdict(rare, risk)
    assert not found.passed
    assert found.reason.startswith("NaN or Inf")


@pytest.mark.parametrize("risk", RISKS)
@pytest.mark.parametrize("net", NETS)
def test_the_program_itself_passes(net, risk):
    found = case(net).verdict(lambda forward: forward, risk)
    assert found.passed, found.reason
    assert found.error == 0.0


def bf16(forward: Forward) -> Forward:
    def call(*args: Any) -> Any:
        with torch.autocast("cpu", torch.bfloat16):
            return forward(*args).float()

    return call


@pytest.mark.parametrize("seed", range(3))
@pytest.mark.parametrize("net", NETS)
def test_bfloat16_passes(net, seed):
    found = case(net, seed).verdict(bf16, "rounding")
    assert found.passed, found.reason


@pytest.mark.parametrize("net", NETS)
def test_bfloat16_is_not_exact(net):
    found = case(net).verdict(bf16, "exact")
    assert not found.passed, found.reason


def channels_last(forward: Forward) -> Forward:
    return lambda x: forward(x.to(memory_format=torch.channels_last))


def calls_of(
    model: nn.Module, data: Callable[[], Any] = images
) -> tuple[nn.Module, calls.RecordedCall, calls.RecordedCall]:
    """The model, a call of it, and a call on another batch."""
    found = []
    for _ in range(2):
        x, y = data()
        found.append(record(model, lambda output, y=y: cross_entropy(output, y), x))
    return model, found[1], found[0]


def on_the_edge() -> Case:
    """A net of which rounding wakes one neuron, but only where its weights fall in one way."""
    model = nn.Sequential(nn.Linear(2, 2, bias=False), nn.ReLU(), nn.Linear(2, 1, bias=False))
    model[0].weight.data = torch.tensor([[1.0042, -1.3395], [1.0, 1.0]])
    model[2].weight.data = torch.tensor([[0.08, 1.0]])
    x = torch.tensor([[1.0, 0.75], [2.0, 1.5]])
    other = record(model, lambda output: -output.sum(), x)
    return Case(model, record(model, torch.sum, x), other)


def test_bfloat16_passes_where_one_way_of_rounding_misses_what_it_does(monkeypatch):
    case = on_the_edge()
    found = case.verdict(bf16, "rounding")
    assert found.passed, found.reason
    for name in ("outputs 1 % too large", "last example left out", "labels smoothed"):
        wrong = FAULTS[name]
        found = case.verdict(lambda forward, wrong=wrong: wrong(bf16(forward)), "rounding")
        assert not found.passed, name
    monkeypatch.setattr(guard, "WAYS", 1)
    assert "more than" in on_the_edge().verdict(bf16, "rounding").reason


@pytest.mark.parametrize("layers", [2, pytest.param(20, marks=pytest.mark.slow)])
@pytest.mark.parametrize("seed", [0, pytest.param(1, marks=pytest.mark.thorough)])
def test_channels_last_passes_also_where_the_net_amplifies_reordering(layers, seed):
    torch.manual_seed(seed)
    model = conv(layers)
    found = Case(*calls_of(model)).verdict(channels_last, "exact")
    assert found.passed, found.reason


def test_bfloat16_passes_on_a_deep_net_at_its_first_weights_or_is_near():
    torch.manual_seed(0)
    model = conv(12)
    found = Case(*calls_of(model)).verdict(bf16, "rounding")
    assert found.passed or found.near, found.reason


@pytest.mark.parametrize("layers", [2, pytest.param(8, marks=pytest.mark.slow)])
def test_channels_last_passes_where_the_program_itself_rounds(layers):
    torch.manual_seed(0)
    model = conv(layers)
    found = []
    for _ in range(2):
        x, y = images()
        with torch.autocast("cpu", torch.bfloat16):
            recorded = calls.begin(model, (x,), {})
            output = model(x)
            calls.finish(recorded, output)
        cross_entropy(output.float(), y).backward()
        found.append(recorded)
    rounding = Case(model, found[1], found[0])
    told = rounding.verdict(channels_last, "exact")
    assert told.passed, told.reason
    assert not rounding.verdict(outputs(lambda x: x * 1.02), "exact").passed


@pytest.mark.parametrize("net", NETS)
def test_another_number_of_threads_passes(net):
    def threads(forward: Forward) -> Forward:
        def call(*args: Any) -> Any:
            torch.set_num_threads(2)
            try:
                return forward(*args)
            finally:
                torch.set_num_threads(1)

        return call

    found = case(net).verdict(threads, "exact")
    assert found.passed, found.reason


@pytest.mark.slow
@pytest.mark.filterwarnings("ignore")
@pytest.mark.few(1)
@pytest.mark.parametrize(
    "net",
    ["mlp", "conv", "transformer"],
)
def test_compile_passes(net):
    found = case(net).verdict(torch.compile, "rounding")
    assert found.passed, found.reason


def dropping() -> tuple[nn.Module, calls.RecordedCall, calls.RecordedCall]:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(20, 64), nn.ReLU(), nn.Dropout(0.3), nn.Linear(64, 10))
    return calls_of(model, vectors)


def test_other_masks_pass_where_the_boost_draws_others():
    def redrawn(forward: Forward) -> Forward:
        def call(x: Any) -> Any:
            torch.rand(7)
            return forward(x)

        return call

    assert Case(*dropping(), redraws=True).verdict(redrawn, "exact").passed
    assert not Case(*dropping()).verdict(redrawn, "exact").passed


def test_where_masks_differ_a_fault_is_told_by_its_size():
    found = Case(*dropping(), redraws=True).verdict(outputs(lambda x: 3 * x), "exact")
    assert not found.passed, found.reason


def test_one_gradient_may_err_by_four_times_what_rounding_the_weights_does_to_it():
    rounding = guard.Rounding(0.1, 0.0, (0.2, 0.01, 0.5), ())
    floor = guard.NoiseFloor(1e-6, 1.4, None, (1.4, 1.2, 1.6), rounding)
    assert floor.tensor_noise == pytest.approx((0.8, guard.LEAST_TENSOR, 1.6)), "or batch noise"


def noisy_bias(fault: str = "") -> list[tuple[calls.RepeatedCall, calls.RepeatedCall]]:
    """Two batches as written and in 16 bits. Examples nearly cancel in the gradient of a bias,
    so rounding each is five times what is left of it.
    """
    torch.manual_seed(0)
    weight, bias, pairs = torch.randn(20_000), 6e-2 * torch.randn(256), []
    for _ in range(2):
        written = [weight + 1.4 * torch.randn_like(weight), bias + 0.5 * bias.roll(1)]
        if fault != "the same in both batches" or not pairs:
            noise = torch.randn_like(bias) * 5 * written[1].std()
        of_bias = {
            "lost": torch.zeros_like(bias),
            "doubled": 2 * written[1],
            "halved": 0.5 * written[1],
            "turned": -written[1],
            "shuffled": written[1].roll(7),
            "lost in noise": noise * 0.3,
        }.get(fault, written[1] + noise)
        rounded = [written[0] * (1 + 0.01 * torch.randn_like(weight)), of_bias]
        few = 60 if fault == "too few entries" else len(bias)
        batch = [[weight, bias[:few]] for weight, bias in (written, rounded)]
        pairs.append(tuple(calls.RepeatedCall([], each, ["weight", "bias"]) for each in batch))
    return pairs


FAULTS_OF_A_BIAS = ("lost", "doubled", "halved", "turned", "shuffled", "lost in noise",
                    "too few entries", "the same in both batches")  # fmt: skip


@pytest.mark.parametrize("fault", ["", *FAULTS_OF_A_BIAS])
def test_noise_on_a_gradient_that_nearly_cancels_passes_unless_it_hides_a_fault(fault):
    first, second = noisy_bias(fault)
    floor = guard.NoiseFloor(
        1e-6, 1.4, None, (1.4, 0.8), guard.Rounding(0.02, 0.0, (0.02, 0.1), ())
    )
    found = guard.judge(guard.compare(*first, floor.tensor_noise), floor, "rounding", False)
    assert not found.passed
    assert "for bias" in found.reason
    assert guard.averages_out(found, first, second).passed is (not fault)


def test_an_overflow_as_written_hides_nothing():
    """Squares of gradients that overflow make every distance NaN: that is no pass."""
    model, recorded, other = train_call("mlp")
    recorded.output_gradients = [gradient * 1e30 for gradient in recorded.output_gradients]
    found = Case(model, recorded, other)
    assert not any(found.verdict(FAULTS["labels smoothed"], risk).passed for risk in RISKS)


def test_a_second_batch_is_not_needed():
    model, recorded, _ = train_call("mlp")
    found = Case(model, recorded, None)
    assert found.verdict(bf16, "rounding").passed
    assert not found.verdict(FAULTS["outputs 1 % too large"], "rounding").passed


@pytest.mark.parametrize(
    ("ratio", "shown"),
    [(float("inf"), "over 100000%"), (float("nan"), "over 100000%"), (1.004, "100.4%"),
     (0.0123, "1.2%"), (0.25, "25%"), (12.0, "1200%")],
)  # fmt: skip
def test_percent(ratio, shown):
    assert guard.percent(ratio) == shown


class Residual(nn.Module):
    def __init__(self, width: int) -> None:
        super().__init__()
        self.layers = nn.Sequential(
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width), nn.ReLU(),
            nn.Conv2d(width, width, 3, padding=1, bias=False), nn.BatchNorm2d(width),
        )  # fmt: skip

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        return (x + self.layers(x)).relu()


def deep(seed: int) -> tuple[nn.Module, calls.RecordedCall]:
    """A deep network with batch normalisation amplifies each rounding."""
    torch.manual_seed(seed)
    model = nn.Sequential(
        nn.Conv2d(3, 16, 3, padding=1), *[Residual(16) for _ in range(8)],
        nn.AdaptiveAvgPool2d(1), nn.Flatten(), nn.Linear(16, 10),
    )  # fmt: skip
    loss = functools.partial(cross_entropy, labels=torch.randint(0, 10, (16,)))
    with boosted_by(model, bf16):
        return model, record(model, loss, torch.randn(16, 3, 24, 24))


@pytest.mark.parametrize("seed", range(3))
def test_an_exact_boost_on_top_of_bf16_reorders_what_is_rounded(seed: int) -> None:
    model, recorded = deep(seed)
    with boosted_by(model, bf16):
        written = calls.again(recorded)
        of_float32, own = (
            guard.noise_floor(recorded, written, False, False, rounded_by)
            for rounded_by in (0.0, 2.0**-9)
        )
        model.to(memory_format=torch.channels_last)
        reordered = guard.compare(written, calls.again(recorded))
        model.to(memory_format=torch.contiguous_format)
    assert guard.judge(reordered, own, "exact", False).passed
    # What float32's order does is a matter of luck here: some pass by it, some do not.
    assert own.reordered > of_float32.reordered
    longer = [None if g is None else g * 1.01 for g in written.gradients]
    biased = calls.RepeatedCall(written.outputs, longer, written.names)
    assert not guard.judge(guard.compare(written, biased), own, "exact", False).passed


def test_on_cuda_float32_may_be_tf32(monkeypatch: pytest.MonkeyPatch) -> None:
    weight = torch.nn.Parameter(torch.ones(2, 2))
    on_cuda = SimpleNamespace(
        device=torch.device("cuda"), dtype=torch.float32, is_floating_point=lambda: True
    )
    for weights, tf32, expected in (
        ([on_cuda], True, 2.0**-12), ([on_cuda], False, 0.0), ([weight], True, 0.0),
    ):  # fmt: skip
        recorded = SimpleNamespace(
            model=SimpleNamespace(parameters=lambda weights=weights: weights), autocast={}
        )
        monkeypatch.setattr(guard, "rounds_to_tf32", lambda tf32=tf32: tf32)
        assert guard._rounded_by(recorded) == expected  # type: ignore[arg-type]
    recorded = SimpleNamespace(model=nn.Linear(2, 2), autocast={"cpu": torch.bfloat16})
    assert guard._rounded_by(recorded) == guard.HALF  # type: ignore[arg-type]
