from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.made import changes, findings, only, profile, saved_ms
from machines.healthy import changed

CHECK = "clocks-lowered"


def test_heat_slows_the_gpu() -> None:
    job = profile(
        devices__0__throttled=("sw_thermal_slowdown",),
        devices__0__clock_mhz=987.0,
        devices__0__temperature_c=93.0,
    )
    finding = only(CHECK, job)
    assert finding.code == "KERN015"
    assert finding.title.endswith("slowed down by heat")
    assert "sw_thermal_slowdown, 93 C, 352 of 400 W, 987 of 1410 MHz" in finding.evidence
    assert saved_ms(finding, job) == pytest.approx(94.0 * 0.3, rel=0.01)
    assert findings(CHECK, changed(job, devices__0__throttled=("sw_power_cap",))) == ()
    unsaid = only(CHECK, changed(job, devices__0__throttled=()))
    assert unsaid.title.endswith("busy at a low clock")


def test_power_limit_slows_the_gpu() -> None:
    job = profile(
        devices__0__throttled=("sw_power_cap",),
        devices__0__clock_mhz=1128.0,
        devices__0__power_limit_w=300.0,
    )
    finding = only(CHECK, job)
    assert finding.title.endswith("slowed down by its power limit")
    assert "the data sheet says 400 W" in finding.evidence
    assert "sudo nvidia-smi -i 0 -pl 400" in changes(finding)
    own = changed(job, devices__0__power_limit_w=400.0)
    assert findings(CHECK, own) == (), "at its own limit a GPU is healthy"
    brake = only(CHECK, changed(own, devices__0__throttled=("hw_power_brake_slowdown",)))
    assert brake.title.endswith("slowed down by its power limit")


def test_clocks_held_low() -> None:
    job = profile(devices__0__clock_mhz=705.0)
    finding = only(CHECK, job)
    assert finding.title.endswith("busy at a low clock")
    assert saved_ms(finding, job) == pytest.approx(94.0 / 2, rel=0.01)
    assert "sudo nvidia-smi -i 0 -rgc" in changes(finding)
    for facts in ({"utilisation": 0.2}, {"clock_max_mhz": None}):
        named = {f"devices__0__{key}": value for key, value in facts.items()}
        assert findings(CHECK, changed(job, **named)) == ()
    hot = only(CHECK, changed(job, devices__0__throttled=("thermal",)))
    assert hot.title.endswith("slowed down by heat")


def test_where_heat_or_power_slows_one_gpu_the_others_are_not_said_to_be_held() -> None:
    held = profile(devices__0__clock_mhz=705.0)
    (sample,) = held.devices
    hot = dataclasses.replace(sample, index=1, throttled=("thermal",))
    finding = only(CHECK, changed(held, devices=(sample, hot)))
    assert finding.title == "GPU 1 (NVIDIA A100-SXM4-80GB): slowed down by heat"
