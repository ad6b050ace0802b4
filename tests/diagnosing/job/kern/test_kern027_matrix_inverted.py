from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.kern.jobs import of, operator
from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Place, Profile
from flatout_agent import wire

LINE = Place("lm.py", 44, "step", "delta = torch.linalg.inv(normal) @ rhs")
ROW = wire.InverseSeen(str(LINE), shape="491x491", products=(str(LINE),), s=0.03)
ID = "matrix-inverted"


def job(base: Profile, ms: float = 40.0, **facts: Any) -> Profile:
    assert base.seen is not None
    row = dataclasses.replace(ROW, **facts)
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, inverses=(row,))
    made = of(base, operator("aten::linalg_inv_ex", Kind.OTHER, ms, where=LINE))
    return dataclasses.replace(made, seen=dataclasses.replace(base.seen, flow=flow))


@pytest.mark.parametrize("base", [cpu_profile(), profile()], ids=["cpu", "gpu"])
def test_an_inverse_that_is_multiplied(base: Profile) -> None:
    made = job(base)
    finding = only(ID, made)
    assert (finding.code, finding.where) == ("KERN027", str(LINE))
    assert saved_ms(finding, made) == pytest.approx(0.4 * 40.0, rel=0.06)
    assert "the inverse of a 491x491 matrix" in finding.title
    assert f"nothing but matrix products takes it, at {LINE}" in finding.evidence
    assert "torch.linalg.solve(A, b)" in changes(finding)
    assert f"- {LINE.source}" in changes(finding)


@pytest.mark.parametrize(("hermitian", "cure"), [(True, "cholesky_solve"), (False, "linalg.solve")])
def test_a_pseudo_inverse(hermitian: bool, cure: str) -> None:
    made = job(cpu_profile(), pseudo=True, hermitian=hermitian)
    finding = only(ID, made)
    assert saved_ms(finding, made) == pytest.approx(0.6 * 40.0, rel=0.01)
    assert "the pseudo-inverse of a 491x491 matrix" in finding.title
    assert cure in changes(finding)
    assert "lstsq" in changes(finding)


def test_a_matrix_that_is_not_square_has_no_solve() -> None:
    made = job(cpu_profile(), pseudo=True, shape="32x1000")
    assert "linalg.solve" not in changes(only(ID, made))
    assert "x = torch.linalg.lstsq(A, b).solution" in changes(only(ID, made))


def test_small_and_cheap_inverses_are_not_told() -> None:
    assert findings(ID, job(cpu_profile(), shape="64x4x4")) == ()
    assert findings(ID, job(cpu_profile(), ms=8.0, s=0.001)) == ()
    assert findings(ID, cpu_profile()) == ()
