from __future__ import annotations

import pytest

from diagnosing.job import made


def test_threads_oversubscribed() -> None:
    profile = made.cpu_profile(job__threads=32)
    finding = made.only("threads-oversubscribed", profile)
    assert (finding.code, finding.boost) == ("HOST004", "cpu-threads")
    assert "32 threads and 0.7 busy loader workers; 8 cores" in finding.evidence
    assert "torch.set_num_threads(7)" in made.changes(finding)
    # 288 ms in operators, a quarter of what 24.7 of 32.7 threads have no core for
    assert made.saved_ms(finding, profile) == pytest.approx(288 * 0.25 * (1 - 8 / 32.67), abs=1)
    for silent in (
        made.cpu_profile(job__threads=9),
        made.cpu_profile(job__threads=1, job__cores=1),
        made.profile(job__threads=128),
    ):
        assert made.findings("threads-oversubscribed", silent) == ()


def test_two_processes_share_the_cores() -> None:
    profile = made.cpu_profile(job__threads=8, job__world_size=2)
    assert "on 4 cores" in made.only("threads-oversubscribed", profile).title
