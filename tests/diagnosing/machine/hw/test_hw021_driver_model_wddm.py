from __future__ import annotations

import pytest

from diagnosing.machine.asking import findings, only
from flatout.nouns.finding import Severity
from machines.healthy import changed, windows

ID = "driver-model-wddm"
CARD = {"gpus__0__name": "NVIDIA RTX A6000", "gpus__0__display": False}


@pytest.mark.parametrize(
    "name",
    ["NVIDIA RTX A6000", "NVIDIA L40S", "Quadro RTX 8000", "NVIDIA RTX 6000 Ada Generation"],
)
def test_a_professional_card_without_screen(name: str) -> None:
    finding = only(ID, changed(windows(), **{**CARD, "gpus__0__name": name}))
    assert (finding.code, finding.severity) == ("HW021", Severity.NOTE)
    assert "WDDM" in finding.evidence
    assert finding.cure.commands[0] == "nvidia-smi -i 0 -dm 1"


def test_silent_for_geforce_a_screen_or_another_model() -> None:
    assert findings(ID, changed(windows(), gpus__0__display=False)) == ()
    assert findings(ID, changed(windows(), **{**CARD, "gpus__0__display": True})) == ()
    assert findings(ID, changed(windows(), **CARD, gpus__0__driver_model="TCC")) == ()
