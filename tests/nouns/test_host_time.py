from __future__ import annotations

from flatout.nouns.host_time import HostTime


def test_sampled_lines_together_never_exceed_an_undisturbed_step() -> None:
    # All of a sampled step but the time without a core is in its lines.
    host = HostTime(steps=10, step_ms=41.0, lines=(), queued_ms=2.0)
    assert host.scale(33.0) * (41.0 - 2.0) == 33.0


def test_nothing_measured_scales_nothing() -> None:
    assert HostTime(steps=1, step_ms=2.0, lines=(), queued_ms=2.0).scale(33.0) == 1.0
