from __future__ import annotations

import pytest

from diagnosing.job import made


def test_threads_too_few() -> None:
    profile = made.cpu_profile(job__threads=1, seen__main_cpu_s=0.33, job__cores=16)
    finding = made.only("threads-too-few", profile)
    assert finding.code == "HOST005"
    assert "torch.set_num_threads(8)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(7 / 8 * (0.7 * 205 + 0.35 * 80), abs=1)
    for changes in (
        {"job__threads": 8},
        {"seen__main_cpu_s": 3.6},
        {"seen__main_cpu_s": None, "anatomy__cores_busy": None},
        {"anatomy__parts__all__launches": 0.0},
    ):
        assert made.findings("threads-too-few", made.changed(profile, **changes)) == ()
