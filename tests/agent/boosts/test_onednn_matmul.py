"""onednn-matmul: exact or not at all, set and taken back; whether it is faster, `tune` measures."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest
import torch
from torch import nn

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import onednn_matmul as boost
from flatout_agent.job import Job
from flatout_agent.speedups import float_math
from flatout_agent.speedups.precision import Bf16Support
from flatout_agent.wire import JobFacts, ModelFacts

MODEL = ModelFacts("Net", 1_000_000, "float32", "cpu", matmul=3)
FACTS = JobFacts("2.13.0", "3.11", "linux", "cpu", models=(MODEL,))


def settings() -> list[str]:
    parts: list[Any] = [torch.backends.mkldnn, torch.backends.cuda]
    found = [part.matmul.fp32_precision for part in parts]
    return [torch.get_float32_matmul_precision(), *found]


@pytest.fixture(autouse=True)
def settings_as_found() -> Iterator[None]:
    before = settings()
    float_math._settings.clear()
    yield
    float_math._settings.clear()
    assert settings() == before


@pytest.fixture
def here(monkeypatch: pytest.MonkeyPatch) -> None:
    """A CPU on which the setting changes the kernels and not the precision."""
    monkeypatch.setattr(boost, "_why_not_here", lambda: None)
    monkeypatch.setattr(float_math, "_why_not_kept", lambda usual, now: None)


def boosted(model: nn.Module) -> Applied:
    job = Job()
    job.models.append(model)
    return boost.apply(job, model, {})


def net() -> nn.Module:
    return nn.Sequential(nn.Linear(300, 400), nn.Tanh(), nn.Linear(400, 50))


def test_undo_restores_every_setting(here: None) -> None:
    before = settings()
    applied = boosted(net())
    assert settings()[0] == "medium"
    assert applied.engaged() == (True, "float32 products by oneDNN")
    applied.undo()
    assert settings() == before


def test_two_models_share_the_setting(here: None) -> None:
    before = settings()
    first, second = boosted(net()), boosted(net())
    first.undo()
    assert settings()[0] == "medium"
    second.undo()
    assert settings() == before


def test_products_are_compared_once(here: None, monkeypatch: pytest.MonkeyPatch) -> None:
    boosted(net()).undo()
    monkeypatch.setattr(float_math, "_why_not_kept", lambda usual, now: "asked again")
    boosted(net()).undo()


def test_outputs_and_gradients_stay_float32s_own() -> None:
    """On this very machine: where the boost takes hold, products are as exact as without it."""
    try:
        applied = boosted(net())
    except Declined as reason:
        pytest.skip(str(reason))
    torch.manual_seed(0)
    model, x = net(), torch.randn(64, 300)
    wide = net().double()
    wide.load_state_dict(model.state_dict())
    try:
        model(x).square().sum().backward()
        for rows, terms, columns in ((1, 4096, 7), (33, 129, 65), (3, 16, 5), (200, 4096, 300)):
            left, right = torch.randn(2, rows, terms), torch.randn(2, columns, terms)
            exact = left.double() @ right.double().mT
            assert (left @ right.mT - exact).norm() / exact.norm() < float_math.EXACT
    finally:
        applied.undo()
    wide(x.double()).square().sum().backward()
    for one, exact in zip(model.parameters(), wide.parameters(), strict=True):
        assert one.grad is not None
        assert exact.grad is not None
        assert (one.grad - exact.grad).norm() / exact.grad.norm() < 1e-5


def test_declined_where_the_results_speak_against_it(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost, "_why_not_here", lambda: None)
    monkeypatch.setattr(float_math, "_why_not_kept", lambda usual, now: "rounds")
    before = settings()
    with pytest.raises(Declined, match="rounds"):
        boosted(net())
    assert settings() == before


@pytest.mark.parametrize("machine", ["aarch64", "arm64"])
def test_declined_on_arm(monkeypatch: pytest.MonkeyPatch, machine: str) -> None:
    monkeypatch.setattr(boost.platform, "machine", lambda: machine)
    with pytest.raises(Declined, match="not x86"):
        boosted(net())


def test_declined_with_amx(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(boost.platform, "machine", lambda: "x86_64")
    native = Bf16Support(True, "native (AMX)", "AMX")
    monkeypatch.setattr(boost, "native_bf16", lambda device: native)
    with pytest.raises(Declined, match="has AMX"):
        boosted(net())


def test_declined_for_models_that_are_not_float32_on_the_cpu(here: None) -> None:
    with pytest.raises(Declined, match="float64"):
        boosted(net().double())
    with pytest.raises(Declined, match="on meta"):
        boosted(nn.Linear(2, 2, device="meta"))


def test_the_scripts_own_precision_stays(here: None) -> None:
    before = settings()
    torch.set_float32_matmul_precision("high")
    try:
        with pytest.raises(Declined, match="itself"):
            boosted(net())
        assert torch.get_float32_matmul_precision() == "high"
        torch.set_float32_matmul_precision("highest")
        applied = boosted(net())
        torch.set_float32_matmul_precision("high")
        assert applied.engaged() == (False, "the script set the matmul precision itself")
        applied.undo()
        assert torch.get_float32_matmul_precision() == "high"
    finally:
        restore(before)


def test_a_precision_set_for_one_backend_stays(here: None) -> None:
    before = settings()
    part: Any = torch.backends.mkldnn.matmul
    part.fp32_precision = "bf16"
    try:
        with pytest.raises(Declined, match="for one backend"):
            boosted(net())
        assert part.fp32_precision == "bf16"
    finally:
        restore(before)


def restore(before: list[str]) -> None:
    torch.set_float32_matmul_precision(before[0])
    parts: list[Any] = [torch.backends.mkldnn, torch.backends.cuda]
    for part, value in zip(parts, before[1:], strict=True):
        part.matmul.fp32_precision = value


def test_by_hand_does_the_same(here: None) -> None:
    before = settings()
    applied = boosted(net())
    ours = settings()
    applied.undo()
    try:
        exec(boost.by_hand(FACTS, {}), {"torch": torch})
        assert settings() == ours
    finally:
        restore(before)
