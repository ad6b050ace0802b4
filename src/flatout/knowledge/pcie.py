"""PCIe bandwidth, by generation and lanes."""

from __future__ import annotations

LANE_GB_PER_S = {1: 0.25, 2: 0.5, 3: 0.985, 4: 1.969, 5: 3.938, 6: 7.563}
"""One lane in one direction, by generation, before the overhead of packets; 10^9 bytes."""


def gb_per_s(generation: int | None, lanes: int | None) -> float | None:
    """Bandwidth of these lanes in one direction, or None if either argument is unknown."""
    lane = LANE_GB_PER_S.get(generation or 0)
    return None if lane is None or lanes is None else lanes * lane
