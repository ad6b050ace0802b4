"""`flatout profile` on real scripts on the CPU: each fault with its code and exact line, and
nothing of a sound script. benchmarks/planted_faults.py does so with many more of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

import profiled

pytestmark = pytest.mark.slow
SCRIPT, LOOP = "faults.py", "loop_faults.py"
FAMILIES = ("DATA", "COPY", "SYNC", "HOST", "COMM", "LOOP016", "LOOP017")
OF_THE_MACHINE = ("HOST005", "HOST014")
"""Said where the machine has more cores than the script has threads; where others take them."""
OF_THE_PROCESS = ("gc", "threads", "deterministic")
"""Faults of no single line."""
CASES = {
    "no-workers": {"no-workers": "DATA001"},
    "each-sample,gc": {"each-sample": "DATA009", "gc": "HOST003"},
    "restarts": {"restarts": "DATA004"},
    "threads,mask": {"threads": "HOST004", "mask": "LOOP017"},
    "optimizer": {"optimizer": "HOST006"},
    "python": {"python": "HOST008"},
}
LOOP_FAULTS = {
    "anomaly": "LOOP001",
    "attention": "KERN008",
    "norm": "KERN009",
    "copies": "KERN019",
    "math-attention": "KERN020",
    "unfused": "KERN010",
    "eval-grad": "LOOP006",
    "eval-often": "LOOP007",
    "logging": "LOOP008",
    "model-rebuilt": "LOOP010",
    "optimizer-rebuilt": "LOOP010",
    "never-zeroed": "LOOP013",
    "shapes": "LOOP004",
    "recompiles": "LOOP004",
    "graph-break": "LOOP004",
    "deterministic": "KERN011",
}


def native_bf16() -> bool:
    pytest.importorskip("torch")
    from flatout_agent.speedups.precision import native_bf16

    return native_bf16("cpu").native


def looped(folder: Path, *faults: str, half: bool = True) -> dict[str, dict[str, Any]]:
    """Findings of the loop's script by code; in bfloat16 where that is native, unless said."""
    options = [word for fault in faults for word in ("--fault", fault)]
    given = ["--half"] if half and native_bf16() else []
    document = profiled.run(LOOP, folder, *given, *options)
    found = {item["code"]: item for item in document["findings"]}
    return {code: found[code] for code in found if code.startswith(("KERN", "MEM", "LOOP"))}


def of_these(document: dict[str, Any]) -> dict[str, dict[str, Any]]:
    """Findings of the families that are tested here, by code."""
    found = {item["code"]: item for item in document["findings"]}
    return {
        code: item
        for code, item in found.items()
        if code.startswith(FAMILIES) and code not in OF_THE_MACHINE
    }


@pytest.mark.thorough
@pytest.mark.parametrize("faults", CASES)
def test_faults_are_named_with_their_lines(faults: str, tmp_path: Path) -> None:
    found = of_these(profiled.run(SCRIPT, tmp_path, "--fault", faults))
    for fault, code in CASES[faults].items():
        assert code in found, (fault, sorted(found))
        told = None if fault in OF_THE_PROCESS else profiled.line(SCRIPT, fault)
        assert found[code]["where"] == told, fault
        assert found[code]["gain"]["predicted"] > 1.01
        assert found[code]["gain"]["reason"]


@pytest.mark.thorough
def test_faults_of_the_loop(tmp_path: Path) -> None:
    faults = {
        "forward-unused": "LOOP016",
        "retain-graph": "LOOP014",
        "checkpoint": "LOOP008",
        "zeros": "MEM008",
    }
    found = looped(tmp_path, *faults, "losses-kept")
    assert "MEM005" in found
    for fault, code in faults.items():
        assert found[code]["where"] == profiled.line(LOOP, fault), fault
    assert "LOOP013" not in found


@pytest.mark.thorough
@pytest.mark.parametrize(("fault", "code"), LOOP_FAULTS.items())
def test_a_fault_of_the_loop_with_its_line(fault: str, code: str, tmp_path: Path) -> None:
    found = looped(tmp_path, fault)
    told = None if fault in OF_THE_PROCESS else profiled.line(LOOP, fault)
    assert found[code]["where"] == told
    assert not set(found) & {"LOOP014", "MEM005", "MEM008", "LOOP008"} - {code}


@pytest.mark.thorough
def test_what_is_gained(tmp_path: Path) -> None:
    twice = looped(tmp_path, "retain-graph", "twice")
    assert twice["LOOP014"]["gain"]["predicted"] > 1.15
    wide = looped(tmp_path, "float64", half=False)
    assert wide["KERN001"]["gain"]["predicted"] > 1.3


@pytest.mark.thorough
def test_convolutions(tmp_path: Path) -> None:
    found = looped(tmp_path, "channels-first", half=False)
    assert found["KERN006"]["where"] == profiled.line(LOOP, "channels-first")


@pytest.mark.thorough
def test_sound_scripts_have_no_finding(tmp_path: Path) -> None:
    """Reading a value and printing it in each step stalls no CPU."""
    for harmless in ("", "item"):
        document = profiled.run(SCRIPT, tmp_path, "--fault", harmless)
        assert of_these(document) == {}
        parts = sum(part["ms"] for part in document["anatomy"])
        assert parts == pytest.approx(document["step_ms"], rel=0.01)
    if native_bf16():
        assert looped(tmp_path) == {}
        float32 = looped(tmp_path, half=False)["KERN004"]["where"]
        assert float32 == profiled.line(LOOP, "float32")
