"""How boosts have fared in the scripts and on the machines of the benchmarks."""

from __future__ import annotations

from flatout_agent.live.records import RECORDS, Record

USUAL = Record(0, 0.5, 0.05)
"""The record of a boost that was never tried on this kind of device."""


def record(boost: str, device: str) -> Record:
    """The record of this boost on this kind of device: cpu, cuda, xpu or mps."""
    return RECORDS.get(device, RECORDS["cuda"]).get(boost, USUAL)
