from __future__ import annotations

import pytest

from diagnosing.job.made import GIB, MIB, cpu_profile, findings, only, profile


def test_memory_growing() -> None:
    grows = tuple(9 * GIB + step * 100 * MIB for step in range(12))
    finding = only("memory-growing", profile(seen__memory_bytes=grows))
    assert finding.code == "MEM006"
    assert "100 MiB a step" in finding.title
    assert "full after 716 more steps" in finding.evidence


@pytest.mark.parametrize(
    "memory",
    [
        (),
        (9 * GIB, 10 * GIB, 11 * GIB),
        (9 * GIB, *(10 * GIB,) * 11),
        tuple(9 * GIB + step % 4 * GIB for step in range(12)),
        tuple(9 * GIB + step * 4096 for step in range(12)),
    ],
)
def test_memory_that_settles_or_swings_does_not_grow(memory: tuple[int, ...]) -> None:
    assert findings("memory-growing", profile(seen__memory_bytes=memory)) == ()


def test_a_process_on_a_cpu_grows_a_little_by_itself() -> None:
    little = tuple(2 * GIB + step * MIB for step in range(12))
    assert findings("memory-growing", cpu_profile(seen__memory_bytes=little)) == ()
    much = tuple(2 * GIB + step * 20 * MIB for step in range(12))
    assert only("memory-growing", cpu_profile(seen__memory_bytes=much))
