from __future__ import annotations

import pytest

from diagnosing.job.made import findings, only, profile, saved_ms
from machines.healthy import changed


def test_clocks_held_low() -> None:
    job = profile(devices__0__clock_mhz=705.0)
    finding = only("clocks-held-low", job)
    assert finding.code == "KERN017"
    assert saved_ms(finding, job) == pytest.approx(94.0 / 2, rel=0.01)
    for facts in ({"throttled": ("thermal",)}, {"utilisation": 0.2}, {"clock_max_mhz": None}):
        named = {f"devices__0__{key}": value for key, value in facts.items()}
        assert findings("clocks-held-low", changed(job, **named)) == ()
