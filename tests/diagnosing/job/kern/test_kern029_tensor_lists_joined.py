from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.kern.jobs import of, operator
from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.host_time import HostKind, HostLine, HostTime
from flatout.nouns.profile import Place, Profile
from flatout_agent import wire

LINE = Place("moco.py", 36, "matrix", "return torch.stack(list(self.items))")
ROW = wire.JoinSeen(str(LINE), 8192, 8128, "64", 1, 2_097_152, 0.02)
ID = "tensor-lists-joined"
COPY_MS = 2_097_152 * 0.1e-6


def job(base: Profile, ms: float = 40.0, **facts: Any) -> Profile:
    assert base.seen is not None
    row = dataclasses.replace(ROW, **facts)
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, joins=(row,))
    made = of(base, operator("aten::cat", Kind.CONVERSION, ms, where=LINE, shapes=()))
    return dataclasses.replace(made, seen=dataclasses.replace(base.seen, flow=flow))


def test_a_queue_of_rows_that_is_stacked() -> None:
    made = job(cpu_profile())
    finding = only(ID, made)
    assert (finding.code, finding.where) == ("KERN029", str(LINE))
    assert saved_ms(finding, made) == pytest.approx(0.9 * (40.0 - COPY_MS), rel=0.01)
    assert "8,192 tensors of a list" in finding.title
    assert "8,128 of them from before the step" in finding.evidence
    assert "buffer = torch.empty(8192, *shape)" in changes(finding)


def test_with_the_python_that_walks_the_list() -> None:
    made = job(cpu_profile())
    line = HostLine(LINE, HostKind.TORCH, 60.0, samples=80)
    host = HostTime(steps=10, step_ms=made.anatomy.step_ms, lines=(line,))
    made = dataclasses.replace(made, host=host)
    expected = 0.9 * (60.0 * host.scale(made.anatomy.step_ms) - COPY_MS)
    assert saved_ms(only(ID, made), made) == pytest.approx(expected, rel=0.01)


def test_on_a_gpu_at_most_what_it_waits_for_the_host() -> None:
    made = job(profile())
    waits = made.anatomy.part(Kind.WAIT_HOST, Kind.WAIT_SYNC, Kind.WAIT_OTHER)
    assert saved_ms(only(ID, made), made) <= waits


def test_what_takes_little_is_not_told() -> None:
    assert findings(ID, job(cpu_profile(), ms=8.0)) == ()
    assert findings(ID, cpu_profile()) == ()
