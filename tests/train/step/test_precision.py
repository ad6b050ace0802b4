"""precision: what is chosen where, and what a product's error says of what really ran."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import torch
from torch import Tensor, nn

from flatout_agent.speedups.precision import Bf16Support
from flatout_train.errors import UsageError
from flatout_train.step import precision

CPU, CUDA = torch.device("cpu"), torch.device("cuda")


def network(dtype: torch.dtype = torch.float32) -> nn.Module:
    torch.manual_seed(0)
    return nn.Sequential(nn.Linear(64, 64), nn.ReLU(), nn.Linear(64, 8)).to(dtype)


@pytest.fixture
def gpu(monkeypatch: pytest.MonkeyPatch) -> Callable[[int, int], None]:
    """Stand in for a GPU of that compute capability."""

    def stand_in(major: int, minor: int) -> None:
        monkeypatch.setattr(torch.version, "hip", None)
        monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
        monkeypatch.setattr(torch.cuda, "get_device_capability", lambda *_: (major, minor))
        monkeypatch.setattr(torch.cuda, "is_bf16_supported", lambda **_: major >= 8)
        monkeypatch.setattr(torch.cuda.amp.common, "amp_definitely_not_available", lambda: False)

    return stand_in


def bf16_is(monkeypatch: pytest.MonkeyPatch, native: bool) -> None:
    monkeypatch.setattr(precision, "native_bf16", lambda *_: Bf16Support(native, "told"))


@pytest.mark.parametrize(
    ("capability", "name", "dtype", "scaled"),
    [
        ((9, 0), "bf16", torch.bfloat16, False),
        ((8, 0), "bf16", torch.bfloat16, False),
        ((7, 5), "fp16", torch.float16, True),
        ((7, 0), "fp16", torch.float16, True),
        ((6, 1), "fp32", None, False),
    ],
)
def test_auto_on_gpus(
    gpu: Any, capability: tuple[int, int], name: str, dtype: torch.dtype | None, scaled: bool
) -> None:
    gpu(*capability)
    chosen = precision.choose("auto", network(), CUDA)
    assert (chosen.name, chosen.autocast) == (name, dtype)
    assert (chosen.scaler is not None) == scaled
    assert "capability" in chosen.reason


@pytest.mark.parametrize("native", [True, False])
def test_auto_on_the_cpu(native: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    bf16_is(monkeypatch, native)
    chosen = precision.choose("auto", network(), CPU)
    assert chosen.name == ("bf16" if native else "fp32")
    assert chosen.scaler is None
    assert "told" in chosen.reason


@pytest.mark.parametrize(
    ("dtype", "name"),
    [
        (torch.bfloat16, "bf16"),
        (torch.float16, "fp16"),
        (torch.float64, "fp64"),
        (torch.complex64, "complex"),
    ],
)
def test_auto_leaves_a_model_its_own_precision(dtype: torch.dtype, name: str) -> None:
    chosen = precision.choose("auto", nn.Linear(2, 2, dtype=dtype), CPU)
    assert (chosen.name, chosen.autocast, chosen.scaler) == (name, None, None)
    assert chosen.reason


def test_auto_leaves_a_model_that_is_partly_low() -> None:
    model = nn.Sequential(nn.Linear(2, 2), nn.Linear(2, 2).bfloat16())
    chosen = precision.choose("auto", model, CPU)
    assert (chosen.name, chosen.autocast) == ("mixed", None)


def error(output: Tensor, model: nn.Module, x: Tensor) -> float:
    output, exact = output.detach(), model.double()(x.double()).detach()
    return float((output.double() - exact).norm() / exact.norm())


@pytest.mark.parametrize(
    ("asked", "low", "high"), [("bf16", 1e-3, 2e-2), ("fp16", 1e-4, 2e-3), ("fp32", 0, 1e-6)]
)
def test_the_region_computes_in_that_precision(asked: str, low: float, high: float) -> None:
    model, x = network(), torch.randn(32, 64, generator=torch.Generator().manual_seed(0))
    chosen = precision.choose(asked, model, CPU)
    for _ in range(2):
        with chosen.context():
            output = model(x)
        assert not torch.is_autocast_enabled("cpu")
    assert low <= error(output, model, x) <= high
    assert all(p.dtype == torch.float64 for p in model.parameters()), "weights are cast as copies"
    assert (chosen.scaler is not None) == (asked == "fp16")


def test_a_region_inside_a_region_leaves_no_autocast_behind() -> None:
    chosen = precision.choose("bf16", network(), CPU)
    with chosen.context(), chosen.context():
        pass
    assert not torch.is_autocast_enabled("cpu")


def test_the_callers_own_autocast_holds() -> None:
    model, x = network(), torch.randn(2, 64)
    with torch.autocast("cpu", torch.float16), precision.choose("bf16", model, CPU).context():
        assert model(x).dtype == torch.float16
    with precision.choose("bf16", model, CPU).context(), torch.autocast("cpu", enabled=False):
        assert model(x).dtype == torch.float32


@pytest.mark.parametrize(
    ("asked", "model", "words"),
    [
        ("bf16", network(torch.float64), r"in fp64. Keep them in float32 \(model.float\(\)\)"),
        ("bf16", network(torch.float16), "in fp16"),
        ("fp16", network(torch.float16), "in fp16"),
        ("fp16", network(torch.bfloat16), "in bf16"),
        ("bf16", nn.Linear(2, 2, dtype=torch.complex64), "weights are complex"),
        ("tf32", network(), "NVIDIA GPU of compute capability 8.0 or newer is needed, .* cpu"),
    ],
)
def test_what_cannot_be_is_refused_by_name(asked: str, model: nn.Module, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        precision.choose(asked, model, CPU)


def test_older_gpus_are_told_what_they_lack(gpu: Any) -> None:
    gpu(7, 5)
    with pytest.raises(UsageError, match=r"8.0 or newer is needed, this one has 7.5"):
        precision.choose("tf32", network(), CUDA)


def test_tf32_is_put_back(gpu: Any) -> None:
    gpu(8, 0)
    before = torch.get_float32_matmul_precision(), torch.backends.cuda.matmul.allow_tf32
    chosen = precision.choose("tf32", network(), CUDA)
    try:
        assert torch.backends.cuda.matmul.allow_tf32
        again = precision.choose("tf32", network(), CUDA)
        assert "already 'high'" in again.reason
        again.undo()
        assert torch.backends.cuda.matmul.allow_tf32, "the first one's"
    finally:
        chosen.undo()
    assert before == (
        torch.get_float32_matmul_precision(),
        torch.backends.cuda.matmul.allow_tf32,
    )


def test_a_plans_oneDNN_mode_holds_or_says_why_not() -> None:  # noqa: N802
    before = torch.get_float32_matmul_precision()
    chosen = precision.choose(precision.PLANNED, network(), CPU)
    assert chosen.autocast is None
    if chosen.name == "fp32":
        assert chosen.reason.startswith("cpu-bf16: ")
    else:
        assert torch.get_float32_matmul_precision() == "medium"
    chosen.undo()
    assert torch.get_float32_matmul_precision() == before
    assert "cuda" in precision.choose(precision.PLANNED, network(), CUDA).reason


@pytest.mark.gpu
@pytest.mark.parametrize(
    ("asked", "low", "high"), [("auto", 1e-4, 2e-2), ("fp16", 1e-5, 2e-3), ("tf32", 1e-5, 2e-3)]
)
def test_products_on_the_gpu(asked: str, low: float, high: float) -> None:
    model, x = network().cuda(), torch.randn(32, 64, device="cuda")
    chosen = precision.choose(asked, model, torch.device("cuda"))
    try:
        with chosen.context():
            output = model(x)
        if chosen.scaler is not None:
            chosen.scaler.scale(output.sum()).backward()
        assert low <= error(output, model, x) <= high
    finally:
        chosen.undo()


def test_an_example_that_the_model_is_sure_of_keeps_its_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    bf16_is(monkeypatch, True)
    chosen = precision.choose("bf16", network(), CPU)
    scores = torch.tensor([[9.5, 0.0]], requires_grad=True)
    with chosen.context():
        loss = -nn.functional.log_softmax(scores.bfloat16(), 1)[0, 0]
    loss.backward()
    assert scores.grad is not None
    assert float(scores.grad[0, 0]) == pytest.approx(-7.5e-5, rel=0.01)
