from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.kern.jobs import of, operator
from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place, Profile

LOOP = Place("model.py", 30, "forward", "for t in range(x.shape[1]):")
ID = "slice-gradients-filled-whole"


def backward(name: str, ms: float, *shapes: str, **facts: Any) -> Operator:
    made = operator(name, Kind.ELEMENTWISE, ms, shapes=shapes, where=LOOP, backward=True)
    return dataclasses.replace(made, **{"calls": 192.0, **facts})


TAKING = backward("aten::select_backward", 0.2, "64x96")
FILLING = backward("aten::fill_", 7.0, "64x192x96, ")
ADDING = backward("aten::add_", 11.0, "64x192x96, 64x192x96, ")


def job(*operators: Operator, base: Profile | None = None) -> Profile:
    return of(cpu_profile() if base is None else base, *operators)


def test_time_steps_of_a_sequence() -> None:
    made = job(TAKING, FILLING, ADDING, backward("aten::add_", 5.0, "96x96, 96x96"))
    finding = only(ID, made)
    assert (finding.code, finding.where) == ("KERN024", str(LOOP))
    assert saved_ms(finding, made) == pytest.approx(18.0 * (1 - 2 / 192), rel=0.01)
    assert "192 slices" in finding.title
    assert "64x96 out of 64x192x96" in finding.evidence
    assert f"- {LOOP.source}" in changes(finding)
    assert "x.unbind(1)" in changes(finding)


def test_operators_that_go_over_other_tensors_too() -> None:
    shapes = ("64x192x96, ", "64x48x96, ")
    made = job(TAKING, dataclasses.replace(FILLING, host_ms=30.0, calls=576.0, shapes=shapes))
    share = 192 / (192 + 384 / 4)
    assert saved_ms(only(ID, made), made) == pytest.approx(30.0 * share * (1 - 2 / 192), rel=0.01)


def test_no_pass_is_slower_than_memory() -> None:
    made = job(TAKING, dataclasses.replace(FILLING, host_ms=90.0))
    most = 192 * 64 * 192 * 96 * 0.2e-6
    assert saved_ms(only(ID, made), made) == pytest.approx(most * (1 - 2 / 192), rel=0.01)


def test_wider_slices_are_split() -> None:
    taking = dataclasses.replace(TAKING, name="aten::slice_backward", shapes=("64x8x96",))
    made = job(taking, FILLING, ADDING)
    assert "x.split(size, 1)" in changes(only(ID, made))
    assert saved_ms(only(ID, made), made) == pytest.approx(18.0 * (1 - 2 / 24), rel=0.01)


def test_on_a_gpu_by_the_time_of_its_kernels() -> None:
    made = job(TAKING, dataclasses.replace(FILLING, host_ms=30.0), ADDING, base=profile())
    assert saved_ms(only(ID, made), made) == pytest.approx(18.0 * (1 - 2 / 192), rel=0.06)


@pytest.mark.parametrize(
    "others",
    [
        (dataclasses.replace(TAKING, shapes=("64x64x96",)), FILLING, ADDING),
        (dataclasses.replace(TAKING, shapes=("32x96",)), FILLING, ADDING),
        (dataclasses.replace(TAKING, calls=6.0), FILLING, ADDING),
        (TAKING, dataclasses.replace(FILLING, backward=False)),
        (TAKING, dataclasses.replace(FILLING, host_ms=2.0)),
        (FILLING, ADDING),
    ],
    ids=["half of it", "another tensor's", "a few", "forward", "little", "no slices"],
)
def test_what_is_no_such_loop(others: tuple[Operator, ...]) -> None:
    assert findings(ID, job(*others)) == ()
    assert findings(ID, cpu_profile()) == ()
