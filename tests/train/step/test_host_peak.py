from __future__ import annotations

import statistics
import sys
from pathlib import Path

import pytest
import torch

from flatout_train.step import batch_size
from flatout_train.step.batch_size import HostPeak

MIB = 2**20


def held(mib: int) -> int:
    torch.ones(mib, MIB, dtype=torch.uint8)
    return mib


def peak_after(before_mib: int, within_mib: int) -> int:
    held(before_mib)
    with HostPeak() as peak:
        held(within_mib)
    return peak.bytes


@pytest.mark.slow
@pytest.mark.skipif(sys.platform != "linux", reason="only Linux sets the peak back")
def test_the_peak_within_and_not_the_one_before() -> None:
    # Resident bytes are the whole process's: another thread's memory, or a page of a library that
    # the system takes back meanwhile, falls into one of the measurements, not into most of them.
    assert 44 * MIB < statistics.median(peak_after(96, 48) for _ in range(5)) < 70 * MIB
    assert statistics.median(peak_after(96, 0) for _ in range(5)) < 10 * MIB


@pytest.mark.skipif(sys.platform != "linux", reason="an earlier test may have held more")
def test_where_the_peak_cannot_be_set_back_only_what_is_above_it_is_seen(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    with HostPeak():  # sets back what earlier tests have held
        pass
    monkeypatch.setattr(batch_size, "RESET_PEAK", tmp_path / "none" / "clear_refs")
    with HostPeak() as peak:
        held(200)
    first = peak.bytes
    with HostPeak() as peak:
        held(100)
    assert first > 100 * MIB
    assert peak.bytes < 20 * MIB


def test_an_unknown_system_counts_nothing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(batch_size, "RESET_PEAK", tmp_path / "none" / "clear_refs")
    monkeypatch.setattr(sys, "platform", "win32")
    with HostPeak() as peak:
        held(20)
    assert peak.bytes == 0
