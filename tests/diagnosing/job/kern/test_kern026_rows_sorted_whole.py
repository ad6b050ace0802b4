from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.kern.jobs import of, operator
from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Place, Profile
from flatout_agent import wire

LINE = Place("model.py", 55, "neighbours", "order = torch.argsort(dist, dim=-1)")
ROW = wire.SortSeen(str(LINE), "first", 256, 8, False, 2, "8x256x256", 0.03)
ID = "rows-sorted-whole"


def job(base: Profile, ms: float = 40.0, **facts: Any) -> Profile:
    assert base.seen is not None
    row = dataclasses.replace(ROW, **facts)
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, sorts=(row,))
    made = of(base, operator("aten::sort", Kind.REDUCTION, ms, where=LINE, shapes=("8x256x256",)))
    return dataclasses.replace(made, seen=dataclasses.replace(base.seen, flow=flow))


@pytest.mark.parametrize("base", [cpu_profile(), profile()], ids=["cpu", "gpu"])
def test_nearest_neighbours_by_sorting(base: Profile) -> None:
    made = job(base)
    finding = only(ID, made)
    assert (finding.code, finding.where) == ("KERN026", str(LINE))
    assert saved_ms(finding, made) == pytest.approx(0.75 * 40.0, rel=0.06)
    assert "rows of 256 are sorted whole, of which the first 8 columns are read" in finding.title
    assert f"- {LINE.source}" in changes(finding)
    assert "torch.topk(x, 8, dim=dim, largest=False)" in changes(finding)


def test_a_wider_slice_spares_less() -> None:
    made = job(cpu_profile(), read=64, kind="last", largest=True)
    assert saved_ms(only(ID, made), made) == pytest.approx(0.5 * 40.0, rel=0.01)
    assert "the last 64 columns" in only(ID, made).title
    assert "largest=True" in changes(only(ID, made))


def test_a_single_column_is_selected() -> None:
    assert "kthvalue" in changes(only(ID, job(cpu_profile(), kind="single", read=1)))


def test_what_takes_little_is_not_told() -> None:
    assert findings(ID, job(cpu_profile(), ms=8.0, s=0.001)) == ()
    assert findings(ID, cpu_profile()) == ()
