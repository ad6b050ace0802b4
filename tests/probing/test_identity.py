"""The Identity here."""

from __future__ import annotations

import platform

import pytest

from flatout.nouns.identity import GpuIdentity, Identity
from flatout.probing import cpu, memory, nvml
from flatout.probing.identity import identity


def test_from_all_sources(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu, "name", lambda: "AMD EPYC 9B45")
    monkeypatch.setattr(cpu, "cores", lambda: 8)
    monkeypatch.setattr(memory, "usable_bytes", lambda: 2**34)
    monkeypatch.setattr(nvml, "gpus", lambda: (GpuIdentity("NVIDIA L4"),))
    assert identity("2.13.0", "3.12.1") == Identity(
        system=platform.system(),
        cpu="AMD EPYC 9B45",
        cores=8,
        memory_bytes=2**34,
        gpus=(GpuIdentity("NVIDIA L4"),),
        python="3.12.1",
        torch="2.13.0",
    )
