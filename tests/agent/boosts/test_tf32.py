"""tf32: the decision and the settings; the kernels themselves on a GPU."""

from types import SimpleNamespace

import pytest
import torch
from torch import nn

from flatout_agent.boost import Declined
from flatout_agent.boosts import tf32
from flatout_agent.job import Job


def settings():
    parts = (torch.backends.mkldnn.matmul, torch.backends.cuda.matmul)
    return [torch.get_float32_matmul_precision(), *(part.fp32_precision for part in parts)]


@pytest.fixture
def applied(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    applied = tf32.apply(Job(), torch, {})
    yield applied
    applied.undo()


def test_undo_restores_every_setting(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    before = settings()
    applied = tf32.apply(Job(), torch, {})
    assert torch.backends.cuda.matmul.allow_tf32
    assert torch.get_float32_matmul_precision() == "high", "and it can still be read"
    applied.undo()
    assert settings() == before


def test_engaged_asks_the_gpu_that_was_used(applied, monkeypatch):
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: False)
    assert applied.engaged() == (False, "the program did not use CUDA")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (7, 5))
    assert "7.5" in applied.engaged()[1]
    monkeypatch.setattr(torch.cuda, "get_device_capability", lambda device: (9, 0))
    assert applied.engaged() == (True, "compute capability 9.0")
    torch.set_float32_matmul_precision("highest")
    assert applied.engaged() == (False, "the script set the matmul precision itself")


def test_of_several_gpus_the_models_own_is_asked(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.cuda, "is_initialized", lambda: True)
    monkeypatch.setattr(torch.cuda, "get_device_capability", {"second": (9, 0)}.__getitem__)
    job = Job()
    weight = SimpleNamespace(device="second", is_cuda=True)
    model = nn.Linear(1, 1)
    model.parameters = lambda: iter([weight])
    job.models.append(model)
    applied = tf32.apply(job, torch, {})
    assert applied.engaged() == (True, "compute capability 9.0")
    applied.undo()


def test_declined_without_cuda_or_when_set_already(applied, monkeypatch):
    with pytest.raises(Declined, match="already"):
        tf32.apply(Job(), torch, {})
    monkeypatch.setattr(torch.version, "cuda", None)
    with pytest.raises(Declined, match="without CUDA"):
        tf32.apply(Job(), torch, {})


def test_a_script_that_turned_tf32_off_keeps_float32(monkeypatch):
    monkeypatch.setattr(torch.version, "cuda", "13.0")
    monkeypatch.setattr(torch.backends.cudnn, "allow_tf32", False)
    before = settings()
    with pytest.raises(Declined, match="turned TF32 off"):
        tf32.apply(Job(), torch, {})
    assert settings() == before


@pytest.mark.gpu
def test_products_are_rounded_on_the_gpu():
    x = torch.randn(512, 512, device="cuda")
    exact = x.double() @ x.double()
    applied = tf32.apply(Job(), torch, {})
    error = ((x @ x).double() - exact).norm() / exact.norm()
    applied.undo()
    assert 1e-5 < error < 1e-2
