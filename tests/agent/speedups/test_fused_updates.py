"""fused_updates: what a device without the kernel says."""

import torch

from flatout_agent.speedups import fused_updates


def test_a_device_without_the_kernel_declines_with_torchs_own_words(monkeypatch):
    def refuse(*args, **kwargs):
        raise RuntimeError("`fused=True` requires all the params to be on some device\nmore")

    monkeypatch.setattr(torch.optim.SGD, "__init__", refuse)
    kernel, reason = fused_updates._probe(torch.optim.SGD, torch.ones(1))
    assert kernel == ""
    assert reason.endswith("to be on some device")
