"""cudnn-attention: the decision and the order of the kernels."""

from __future__ import annotations

from collections.abc import Iterator

import pytest
import torch
from torch.nn.attention import SDPBackend

from flatout_agent.boost import Applied, Declined
from flatout_agent.boosts import cudnn_attention
from flatout_agent.job import Job

CUDNN = int(SDPBackend.CUDNN_ATTENTION)


def order() -> list[int]:
    return [int(kernel) for kernel in torch._C._get_sdp_priority_order()]


@pytest.fixture
def applied(monkeypatch: pytest.MonkeyPatch) -> Iterator[Applied]:
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    before = order()
    found = cudnn_attention.apply(Job(), torch, {})
    yield found
    found.undo()
    assert order() == before


def test_cudnn_comes_first_and_the_others_as_before(applied: Applied) -> None:
    assert order()[0] == CUDNN
    assert sorted(order()) == sorted(set(order()))
    with pytest.raises(Declined, match="already"):
        cudnn_attention.apply(Job(), torch, {})


def test_engaged_sees_what_the_script_did(
    applied: Applied, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert applied.engaged() == (False, "the program did not use CUDA")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (8, 0))
    assert applied.engaged() == (False, "the GPU is older than Hopper")
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda: (9, 0))
    assert applied.engaged() == (True, "")
    torch._C._set_sdp_priority_order([int(SDPBackend.MATH)])
    assert applied.engaged() == (False, "the script set the order itself")


def test_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    with monkeypatch.context() as patch, pytest.raises(Declined, match="without CUDA"):
        patch.setattr(torch.version, "cuda", None)
        cudnn_attention.apply(Job(), torch, {})
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    with monkeypatch.context() as patch, pytest.raises(Declined, match="turned"):
        patch.setattr(torch.backends.cuda, "cudnn_sdp_enabled", lambda: False)
        cudnn_attention.apply(Job(), torch, {})
    monkeypatch.delattr(torch._C, "_set_sdp_priority_order")
    with pytest.raises(Declined, match=r"2\.6 or newer"):
        cudnn_attention.apply(Job(), torch, {})


@pytest.mark.gpu
def test_cudnns_kernel_runs_on_hopper() -> None:
    if torch.cuda.get_device_capability() < (9, 0):
        pytest.skip("older than Hopper")
    q = torch.randn(2, 4, 512, 64, device="cuda", dtype=torch.bfloat16)
    found = cudnn_attention.apply(Job(), torch, {})
    try:
        with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CPU]) as profiler:
            torch.nn.functional.scaled_dot_product_attention(q, q, q, is_causal=True)
    finally:
        found.undo()
    names = {event.key for event in profiler.key_averages()}
    assert "aten::_scaled_dot_product_cudnn_attention" in names
