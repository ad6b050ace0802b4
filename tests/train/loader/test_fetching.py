"""What is pinned on its way, and what is not."""

from __future__ import annotations

from typing import Any

import pytest
import torch
from torch.nn.utils.rnn import pack_sequence

from flatout_train.loader.fetching import Parcel, pinned


def test_what_is_on_a_device_already_is_not_pinned(monkeypatch: pytest.MonkeyPatch) -> None:
    def pin_memory(tensor: torch.Tensor) -> torch.Tensor:
        if tensor.device.type != "cpu":
            raise RuntimeError("cannot pin: only dense CPU tensors can be pinned")
        return tensor + 1

    monkeypatch.setattr(torch.Tensor, "pin_memory", pin_memory)
    there, here = torch.empty(2, device="meta"), torch.zeros(2)
    packed = pack_sequence([torch.ones(3)]).to("meta")
    batch: dict[str, Any] = {"there": there, "here": here, "packed": packed, "name": "a"}
    found = Parcel(batch).pin_memory().batch
    assert found["there"] is there
    assert found["packed"] is packed
    assert found["here"].tolist() == [1, 1]
    assert pinned("a") == "a"
