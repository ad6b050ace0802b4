"""What the library tells the pulse of a program that trains under `flatout run`."""

from __future__ import annotations

from pathlib import Path
from types import SimpleNamespace

import pytest
import torch

import flatout
from flatout_agent.watch import beat, library_pulse
from flatout_agent.wire import pulse as layout


def test_a_checkpoint_and_a_replay_are_told(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    losses: list[torch.Tensor] = []
    sizes: list[int] = []
    pulse = SimpleNamespace(flags=0, has_saved=sizes.append)
    fake = SimpleNamespace(pulse=pulse, loss_seen=losses.append)
    monkeypatch.setattr(beat, "of_process", fake)
    model = torch.nn.Linear(2, 1)
    with flatout.Checkpoint(tmp_path / "saved", every=1, model=model) as checkpoint:
        checkpoint.after_step()
        checkpoint.wait()
    assert pulse.flags & layout.SAVED
    assert sizes == [sum(file.stat().st_size for file in (tmp_path / "saved").rglob("*.pt"))]
    loss = torch.ones(())
    library_pulse.replayed(loss)
    assert losses == [loss]


def test_without_a_pulse_nothing_is_told(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(beat, "of_process", None)
    library_pulse.saving()
    library_pulse.saved(1)
    library_pulse.replayed(torch.ones(()))
