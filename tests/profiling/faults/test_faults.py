"""`flatout profile` on a real script on the CPU: each fault with its code and exact line."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import profiled

SCRIPT = "faults.py"
FAMILIES = ("DATA", "COPY", "SYNC", "HOST", "COMM", "LOOP016", "LOOP017")
CASES = {
    "no-workers": {"no-workers": "DATA001"},
    "opens,each-sample,gc": {"opens": "DATA005", "each-sample": "DATA009", "gc": "HOST003"},
    "restarts": {"restarts": "DATA004"},
    "threads,mask": {"threads": "HOST004", "mask": "LOOP017"},
    "optimizer,collate": {"optimizer": "HOST006", "collate": "DATA008"},
    "python": {"python": "HOST008"},
}
OFTEN = ("no-workers", "opens,each-sample,gc")
ALIKE = [
    faults if faults in OFTEN else pytest.param(faults, marks=pytest.mark.thorough)
    for faults in CASES
]
OF_THE_MACHINE = ("HOST005", "HOST014")
"""Said where the machine has more cores than the script has threads; where others take them."""
OF_THE_PROCESS = ("gc", "threads")
"""Faults of no single line."""


def of_these(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Findings of the families that are tested here, by code."""
    found = {item["code"]: item for item in document["findings"]}
    return {
        code: item
        for code, item in found.items()
        if code.startswith(FAMILIES) and code not in OF_THE_MACHINE
    }


@pytest.mark.slow
@pytest.mark.parametrize("faults", ALIKE)
def test_faults_are_named_with_their_lines(faults: str, tmp_path: Path) -> None:
    found = of_these(profiled.run(SCRIPT, tmp_path, "--fault", faults))
    for fault, code in CASES[faults].items():
        assert code in found, (fault, sorted(found))
        told = None if fault in OF_THE_PROCESS else profiled.line(SCRIPT, fault)
        assert found[code]["where"] == told, fault
        assert found[code]["gain"]["predicted"] > 1.01
        assert found[code]["gain"]["reason"]


@pytest.mark.slow
@pytest.mark.parametrize("harmless", [pytest.param("", marks=pytest.mark.thorough), "item"])
def test_a_sound_script_has_no_finding(harmless: str, tmp_path: Path) -> None:
    """Reading a value and printing it in each step stalls no CPU."""
    document = profiled.run(SCRIPT, tmp_path, "--fault", harmless)
    assert of_these(document) == {}
    assert sum(part["ms"] for part in document["anatomy"]) == pytest.approx(
        document["step_ms"], rel=0.01
    )
