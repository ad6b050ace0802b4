from __future__ import annotations

import pytest

from diagnosing.job.made import findings, only, profile, saved_ms
from machines.healthy import changed


def test_heat_slows_the_gpu() -> None:
    job = profile(
        devices__0__throttled=("sw_thermal_slowdown",),
        devices__0__clock_mhz=987.0,
        devices__0__temperature_c=93.0,
    )
    finding = only("heat-slows-gpu", job)
    assert finding.code == "KERN015"
    assert "sw_thermal_slowdown, 93 C, 352 of 400 W, 987 of 1410 MHz" in finding.evidence
    assert saved_ms(finding, job) == pytest.approx(94.0 * 0.3, rel=0.01)
    for reasons in ((), ("sw_power_cap",)):
        assert findings("heat-slows-gpu", changed(job, devices__0__throttled=reasons)) == ()
