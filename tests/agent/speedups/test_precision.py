"""What counts as native, and whether low precision really ran."""

from types import SimpleNamespace

import pytest
import torch

from flatout_agent.speedups import precision


def test_low_precision_is_seen_behind_a_float32_output():
    model = torch.nn.Linear(4, 4)
    with torch.autocast("cpu", torch.bfloat16):
        hidden = model(torch.ones(2, 4))
    assert precision.ran_in({"loss": hidden.float().sum()}, torch.bfloat16) is True
    assert precision.ran_in(model(torch.ones(2, 4)), torch.bfloat16) is False
    assert precision.ran_in(torch.ones(2), torch.bfloat16) is None


@pytest.mark.parametrize(
    ("dtype", "word"),
    [
        (torch.float64, "float64"),
        (torch.bfloat16, "half precision"),
        (torch.complex64, "complex"),
        (torch.float32, None),
    ],
)
def test_models_that_are_not_float32_are_told_apart(dtype, word):
    model = torch.nn.Module()
    model.weight = torch.nn.Parameter(torch.ones(2, dtype=dtype))
    reason = precision.why_not_float32(model)
    assert reason is None if word is None else word in reason


def test_partly_half_models_are_told_apart():
    model = torch.nn.Sequential(torch.nn.Linear(2, 2), torch.nn.Linear(2, 2).bfloat16())
    assert "parts" in precision.why_not_float32(model)


@pytest.fixture
def x86(monkeypatch):
    """torch as `native_bf16` sees it on an x86 CPU with AVX512 and nothing newer."""
    monkeypatch.setattr(precision.platform, "machine", lambda: "x86_64")
    cpu = SimpleNamespace(
        _is_amx_tile_supported=lambda: False, _is_avx512_bf16_supported=lambda: False
    )
    onednn = SimpleNamespace(is_available=lambda: True, _is_mkldnn_bf16_supported=lambda: True)
    monkeypatch.setattr(torch.backends, "mkldnn", onednn)
    monkeypatch.setattr(torch.ops, "mkldnn", onednn)
    monkeypatch.setattr(torch, "cpu", cpu)
    return cpu


def test_avx512_without_bf16_is_emulated_though_onednn_accepts_it(x86):
    native, reason, _ = precision.native_bf16("cpu")
    assert not native
    assert "emulate" in reason
    x86._is_amx_tile_supported = lambda: True
    assert precision.native_bf16("cpu") == (True, "native (AMX)", "AMX")


def test_releases_that_do_not_tell_are_read_from_the_cpu_flags(x86, monkeypatch):
    monkeypatch.setattr(torch, "cpu", SimpleNamespace())
    monkeypatch.setattr(precision, "_cpu_flags", lambda: frozenset({"avx512_bf16"}))
    assert precision.native_bf16("cpu") == (True, "native (AVX512_BF16)", "AVX512_BF16")


@pytest.mark.parametrize(
    ("device", "native"),
    [("cuda", False), (torch.device("cuda", 0), False), (torch.device("cuda", 1), True)],
)
def test_cuda_is_native_from_ampere_on(monkeypatch, device, native):
    """The current device is an older one."""
    capabilities = {
        "cuda": (7, 5),
        torch.device("cuda", 0): (7, 5),
        torch.device("cuda", 1): (8, 0),
    }
    monkeypatch.setattr(torch.version, "hip", None)
    monkeypatch.setattr(torch.cuda, "is_available", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", capabilities.__getitem__)
    is_native, reason, _ = precision.native_bf16(device)
    assert is_native is native
    assert ("8.0" if native else "7.5") in reason


def test_an_xpu_is_asked_by_its_own_number(monkeypatch):
    asked = []

    def properties(device):
        asked.append(device)
        return SimpleNamespace(has_bfloat16_conversions=True)

    monkeypatch.setattr(torch.xpu, "get_device_properties", properties)
    assert precision.native_bf16(torch.device("xpu", 3)).native
    assert asked == [torch.device("xpu", 3)]
