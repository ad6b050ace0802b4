"""How boosts have fared where they were tried: in the scripts and machines of the benchmarks."""

from __future__ import annotations

from flatout_agent.live.records import RECORDS, Record

USUAL = Record(0, 0.5, 0.05)
"""Of a boost that was never tried on such a device."""


def record(boost: str, device: str) -> Record:
    """What is known of this boost on this kind of device: cpu, cuda, xpu or mps."""
    return RECORDS.get(device, RECORDS["cuda"]).get(boost, USUAL)
