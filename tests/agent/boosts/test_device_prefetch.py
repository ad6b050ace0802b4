from __future__ import annotations

import pytest
import torch

from flatout_agent.boost import Declined
from flatout_agent.boosts import device_prefetch as boost
from flatout_agent.job import Job


def test_without_cuda_it_is_declined(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(torch.cuda, "is_available", lambda: False)
    with pytest.raises(Declined, match="no CUDA device"):
        boost.apply(Job(), torch.utils.data.DataLoader([1]), {})


@pytest.mark.gpu
def test_values_are_right_on_a_gpu() -> None:
    if not torch.cuda.is_available():
        pytest.skip("no CUDA device")
    data = torch.arange(1 << 22, dtype=torch.float32).view(64, -1)
    loader = torch.utils.data.DataLoader(
        torch.utils.data.TensorDataset(data), batch_size=4, pin_memory=True
    )
    job = Job()
    applied = boost.apply(job, loader, {})
    weights = torch.randn(data.shape[1], 512, device="cuda")
    for index, (x,) in enumerate(job.batches(loader, iter(loader))):
        on_device = x.cuda() if index % 2 else x.to("cuda")
        _ = on_device @ weights
        assert torch.equal(on_device.cpu(), data[4 * index : 4 * index + 4])
    assert applied.engaged() == (True, "15 copies started early")
    applied.undo()
    assert "to" not in vars(torch.Tensor)
