from __future__ import annotations

from diagnosing.machine.asking import findings, only
from flatout.nouns.finding import Severity
from machines.healthy import a100, changed, workstation

ID = "ecc-off"


def test_a_server_without_correction() -> None:
    finding = only(ID, changed(a100(), gpus__1__ecc=False))
    assert (finding.code, finding.severity) == ("HW022", Severity.NOTE)
    assert "A100-SXM4-80GB (GPU 1): ECC off" in finding.evidence
    assert finding.cure.commands == ("sudo nvidia-smi -i 1 -e 1", "sudo reboot")


def test_silent_for_cards_that_ship_without() -> None:
    assert findings(ID, changed(workstation(), gpus__0__ecc=False)) == ()
    card = {"gpus__0__ecc": False, "gpus__0__name": "NVIDIA RTX A6000"}
    assert findings(ID, changed(workstation(), **card)) == ()
