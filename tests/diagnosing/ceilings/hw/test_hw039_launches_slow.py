from __future__ import annotations

from diagnosing.ceilings.benched import benched, findings, giving, only
from machines.healthy import a100, changed

ID = "launches-slow"


def test_a_slow_governor() -> None:
    machine = changed(a100(), cpu__governor="powersave", cpu__scaling_driver="acpi-cpufreq")
    finding = only(ID, giving(benched(machine), "launch-rate", 40_000.0), machine)
    assert finding.code == "HW039"
    assert "25 us for each" in finding.title
    assert finding.cure.commands == ("sudo cpupower frequency-set -g performance",)


def test_without_a_cause_there_is_no_command() -> None:
    machine = changed(a100(), cpu__governor="powersave", cpu__scaling_driver="intel_pstate")
    finding = only(ID, giving(benched(machine), "launch-rate", 40_000.0), machine)
    assert finding.cure.commands == ()


def test_silent_where_one_device_shows_that_the_host_is_fast() -> None:
    assert findings(ID, giving(benched(a100()), "launch-rate", 40_000.0, ["cuda:1"]), a100()) == ()
