from __future__ import annotations

import pytest

from diagnosing.machine.asking import commands, findings, only
from flatout.nouns.finding import Severity
from machines.healthy import changed, workstation

ID = "cpu-governor-slow"


def test_powersave_taken_literally() -> None:
    finding = only(ID, changed(workstation(), cpu__governor="powersave"))
    assert (finding.code, finding.severity) == ("HW014", Severity.WARNING)
    assert "governor powersave under acpi-cpufreq" in finding.evidence
    assert commands(finding).startswith("echo performance | sudo tee /sys/devices/system/cpu/")


@pytest.mark.parametrize("driver", ["intel_pstate", "amd-pstate-epp", None])
def test_drivers_with_a_mind_of_their_own(driver: str | None) -> None:
    facts = {"cpu__governor": "powersave", "cpu__scaling_driver": driver}
    assert findings(ID, changed(workstation(), **facts)) == ()


def test_schedutil_is_fine() -> None:
    assert findings(ID, changed(workstation(), cpu__governor="schedutil")) == ()
