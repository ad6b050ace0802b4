from __future__ import annotations

import dataclasses

from diagnosing.ceilings.benched import benched, findings, giving, only
from flatout.nouns.finding import Severity
from flatout.nouns.machine import Machine
from machines.healthy import a100

ID = "compute-below-data-sheet"


def test_without_a_cause() -> None:
    found = giving(benched(a100()), "matmul-bf16", 0.31, ["cuda:4"])
    finding = only(ID, found, a100())
    assert (finding.code, finding.severity) == ("HW028", Severity.WARNING)
    assert "GPU 4" in finding.title
    assert "96.72 of 312 TFLOP/s (31%)" in finding.evidence
    assert "torch 2.9.1+cu128" in finding.evidence


def test_without_a_driver_to_ask_it_is_told_by_name() -> None:
    found = giving(benched(a100()), "matmul-bf16", 0.31, ["cuda:4"])
    assert "A100" in only(ID, found, Machine()).title


def test_one_good_format_is_enough() -> None:
    found = benched(a100())
    slow = dataclasses.replace(found.ceilings[0], id="matmul-fp8", value=10.0, datasheet=624.0)
    assert findings(ID, dataclasses.replace(found, ceilings=(*found.ceilings, slow)), a100()) == ()


def test_silent_without_a_data_sheet_or_a_value() -> None:
    found = giving(benched(a100()), "matmul-bf16", 0.1)
    for facts in ({"datasheet": None}, {"value": None}):
        rows = tuple(dataclasses.replace(one, **facts) for one in found.ceilings)
        assert findings(ID, dataclasses.replace(found, ceilings=rows), a100()) == ()
