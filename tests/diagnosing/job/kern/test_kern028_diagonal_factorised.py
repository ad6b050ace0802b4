from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job.kern.jobs import of, operator
from diagnosing.job.made import changes, cpu_profile, findings, only, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place, Profile
from flatout_agent import wire

MADE = Place("vae.py", 69, "posterior", "return MultivariateNormal(mean, torch.diag_embed(var))")
USED = Place("vae.py", 80, "forward", "kl = kl_divergence(q, prior)")
CHOLESKY = wire.DiagonalSeen(
    str(MADE), ("aten.linalg_cholesky_ex",), "64x32x32", 32, str(MADE), 1, 0.02
)
SOLVE = wire.DiagonalSeen(
    str(USED), ("aten.linalg_solve_triangular",), "64x32x32", 32, str(MADE), 2, 0.03
)
FACTORISING = operator(
    "aten::linalg_cholesky_ex", Kind.MATMUL, 10.0, shapes=("64x32x32",), where=MADE
)
SOLVING = operator(
    "aten::linalg_solve_triangular",
    Kind.MATMUL,
    20.0,
    shapes=("64x32x32, 64x32x32",),
    where=USED,
    backward=True,
)
ID = "diagonal-factorised"


def job(*operators: Operator, rows: tuple[wire.DiagonalSeen, ...] = (SOLVE, CHOLESKY)) -> Profile:
    base = cpu_profile()
    assert base.seen is not None
    flow = wire.FlowSeen(steps=2, operators=300, operators_s=0.3, diagonals=rows)
    made = of(base, *operators)
    return dataclasses.replace(made, seen=dataclasses.replace(base.seen, flow=flow))


def test_a_multivariate_normal_with_a_diagonal_covariance() -> None:
    others = (
        operator("aten::mm", Kind.MATMUL, 50.0, shapes=("64x128, 128x64",), where=MADE),
        operator("aten::tril", Kind.OTHER, 5.0, shapes=("64x32x32",), where=Place("x.py", 3)),
    )
    made = job(FACTORISING, SOLVING, *others)
    finding = only(ID, made)
    assert (finding.code, finding.where) == ("KERN028", str(MADE))
    assert saved_ms(finding, made) == pytest.approx(0.9 * 30.0, rel=0.01)
    assert "linalg_solve_triangular at vae.py:80, made at vae.py:69" in finding.evidence
    assert "Independent(Normal(mean, variance.sqrt()), 1)" in changes(finding)
    assert f"- {MADE.source}" in changes(finding)


def test_a_factor_that_is_given_is_told_where_it_is_solved_with() -> None:
    assert only(ID, job(SOLVING, rows=(SOLVE,))).where == str(USED)


def test_little_time_and_full_matrices_are_not_told() -> None:
    assert findings(ID, job(dataclasses.replace(FACTORISING, host_ms=2.0))) == ()
    assert findings(ID, job(FACTORISING, SOLVING, rows=())) == ()
    assert findings(ID, cpu_profile()) == ()
