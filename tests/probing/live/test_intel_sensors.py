"""Sensors of Intel's cards: each driver's files, rates, and limits that are switched off."""

from __future__ import annotations

from pathlib import Path

import pytest

from flatout.nouns import throttles
from flatout.probing.live.intel import REASONS, IntelSensors
from probing.live.intel_machine import ARC, IntelMachine

MONITOR = "device/hwmon/hwmon4"


def test_xe(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    card = machine.battlemage()
    sensors = IntelSensors(card)
    first = sensors.read(100.0)
    assert first == {
        "clock_mhz": 2400.0,
        "clock_max_mhz": 2850.0,
        "throttles": ("sw_power_cap", "hw_thermal_slowdown"),
        "power_w": None,
        "power_limit_w": 190.0,
        "power_limit_default_w": 200.0,
        "temperature_c": 61.0,
    }
    assert sensors.idle is None
    machine.write(card, {f"{MONITOR}/energy1_input": f"{1_000_000_000 + 300_000_000}"})
    machine.write(card, {"device/tile0/gt0/gtidle/idle_residency_ms": "6500"})
    assert sensors.read(102.0)["power_w"] == pytest.approx(150.0)
    assert sensors.idle == pytest.approx(0.75)


def test_the_chips_energy_where_the_cards_is_not_told(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    card = machine.battlemage()
    sensors = IntelSensors(card)
    sensors.read(0.0)
    machine.write(card, {f"{MONITOR}/energy2_input": "40000007", f"{MONITOR}/power1_max": "0"})
    machine.write(card, {f"{MONITOR}/power2_max": "120000000"})
    found = sensors.read(2.0)
    assert found["power_w"] == pytest.approx(20.0)
    assert found["power_limit_w"] == 120.0
    machine.write(card, {f"{MONITOR}/energy2_input": "5"})  # it began again
    assert sensors.read(3.0)["power_w"] is None


def test_two_tiles(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    card = machine.card(
        0,
        ARC,
        "xe",
        **{
            "device/tile0/gt0/freq0/act_freq": "0",
            "device/tile1/gt1/freq0/act_freq": "1600",
            "device/tile0/gt0/freq0/throttle/status": "0",
            "device/tile1/gt1/freq0/throttle/status": "1",
            "device/tile1/gt1/freq0/throttle/reason_prochot": "1",
        },
    )
    found = IntelSensors(card).read(0.0)
    assert found["clock_mhz"] == 1600.0
    assert found["clock_max_mhz"] is None
    assert found["throttles"] == ("hw_slowdown",)


def test_i915(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    card = machine.laptop()
    machine.write(
        card, {"device/hwmon/hwmon1/name": "i915_gt0", "device/hwmon/hwmon2/name": "i915"}
    )
    machine.write(card, {"device/hwmon/hwmon1/temp1_input": "99000"})
    machine.write(card, {"device/hwmon/hwmon2/temp1_input": "55000"})
    found = IntelSensors(card).read(0.0)
    assert (found["clock_mhz"], found["clock_max_mhz"]) == (1100.0, 1400.0)
    assert found["throttles"] == ()
    assert found["temperature_c"] == 55.0
    machine.write(card, {"gt/gt0/throttle_reason_status": "1", "gt/gt0/throttle_reason_pl1": "1"})
    assert IntelSensors(card).read(0.0)["throttles"] == ("sw_power_cap",)


def test_i915_of_old_kernels(tmp_path: Path) -> None:
    machine = IntelMachine(tmp_path)
    files = {"gt_cur_freq_mhz": "900", "gt_max_freq_mhz": "1300", "power/rc6_residency_ms": "10"}
    card = machine.card(0, ARC, "i915", **files)
    sensors = IntelSensors(card)
    found = sensors.read(0.0)
    assert (found["clock_mhz"], found["clock_max_mhz"]) == (900.0, 1300.0)
    assert found["throttles"] is None
    assert (found["power_w"], found["temperature_c"]) == (None, None)
    machine.write(card, {"power/rc6_residency_ms": "1010", "gt_act_freq_mhz": "0"})
    assert sensors.read(1.0)["clock_mhz"] == 0.0
    assert sensors.idle == 1.0
    sensors.read(1.01)
    assert sensors.idle is None  # too soon


def test_the_reasons_are_nvmls_names() -> None:
    assert set(REASONS.values()) <= set(throttles.UNDER_LOAD)
    assert set(REASONS.values()).isdisjoint(throttles.POWER_BRAKE)
