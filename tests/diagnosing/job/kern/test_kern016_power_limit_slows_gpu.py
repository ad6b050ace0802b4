from __future__ import annotations

from diagnosing.job.made import changes, findings, only, profile
from machines.healthy import changed


def test_power_limit_slows_the_gpu() -> None:
    job = profile(
        devices__0__throttled=("sw_power_cap",),
        devices__0__clock_mhz=1128.0,
        devices__0__power_limit_w=300.0,
    )
    finding = only("power-limit-slows-gpu", job)
    assert finding.code == "KERN016"
    assert "the data sheet says 400 W" in finding.evidence
    assert "sudo nvidia-smi -i 0 -pl 400" in changes(finding)
    own = changed(job, devices__0__power_limit_w=400.0)
    assert findings("power-limit-slows-gpu", own) == (), "at its own limit a GPU is healthy"
    brake = changed(own, devices__0__throttled=("hw_power_brake_slowdown",))
    assert only("power-limit-slows-gpu", brake)
