from __future__ import annotations

from diagnosing.ceilings.benched import benched, codes, findings, giving, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed, container

ID = "ecc-takes-bandwidth"


def test_gddr_with_ecc() -> None:
    machine = changed(container(), gpus__0__ecc=True)
    finding = only(ID, giving(benched(machine), "copy-device", 0.6), machine)
    assert (finding.code, finding.severity) == ("HW029", Severity.NOTE)
    assert "ECC is on" in finding.evidence
    assert "HW030" not in codes(giving(benched(machine), "copy-device", 0.6), machine)


def test_silent_without_ecc_with_hbm_and_where_it_is_fast() -> None:
    machine = changed(container(), gpus__0__ecc=False)
    assert findings(ID, giving(benched(machine), "copy-device", 0.6), machine) == ()
    assert findings(ID, giving(benched(a100()), "copy-device", 0.6), a100()) == ()
    machine = changed(container(), gpus__0__ecc=True)
    assert findings(ID, benched(machine), machine) == ()
