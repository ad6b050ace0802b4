from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place, Profile
from flatout_agent import wire

LINE = Place("model.py", 32, "forward", "states = torch.cat([states, h.unsqueeze(1)], dim=1)")
ROW = wire.GrownSeen(str(LINE), calls=192, largest=1_179_648, spared=0.9, s=0.012)
ID = "tensor-grown-by-copies"


def job(made: Profile, ms: float = 14.0, **facts: Any) -> Profile:
    """ms: of the line's concatenations in the measured step; 0: none is recorded."""
    assert made.seen is not None
    row = dataclasses.replace(ROW, **facts)
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, growing=(row,))
    concatenating = Operator("aten::cat", Kind.CONVERSION, 192.0, ms, ms, where=LINE)
    elsewhere = dataclasses.replace(concatenating, where=dataclasses.replace(LINE, line=40))
    recorded = (concatenating, elsewhere) if ms else ()
    return dataclasses.replace(
        made,
        operators=(*recorded, *made.operators),
        seen=dataclasses.replace(made.seen, flow=flow),
    )


def test_a_sequence_that_is_gathered_by_copies() -> None:
    made = job(cpu_profile())
    finding = only(ID, made)
    assert (finding.code, finding.where) == ("LOOP019", "model.py:32")
    assert saved_ms(finding, made) == pytest.approx(0.9 * 14.0, rel=0.01)
    assert "192 times" in finding.title
    assert "1,179,648 numbers" in finding.evidence
    assert f"- {LINE.source}" in changes(finding)
    assert "torch.stack(parts, dim)" in changes(finding)


def test_without_recorded_lines_the_counted_step_tells() -> None:
    made = job(cpu_profile(), 0.0)
    assert saved_ms(only(ID, made), made) == pytest.approx(0.9 * 12.0, rel=0.01)
    assert findings(ID, job(profile(), 0.0)) == (), "there it is only what launches them"


def test_on_a_gpu_by_the_time_of_its_kernels() -> None:
    made = job(profile())
    assert saved_ms(only(ID, made), made) == pytest.approx(0.9 * 14.0, rel=0.06)


def test_what_grows_from_step_to_step() -> None:
    finding = only(ID, job(cpu_profile(), calls=1, across=True))
    assert "in each step" in finding.title
    assert "1 call a step" in finding.evidence
    assert "table[filled" in changes(finding)


def test_what_takes_little_is_not_told() -> None:
    assert findings(ID, job(cpu_profile(), 0.4)) == ()
    assert findings(ID, cpu_profile()) == ()
