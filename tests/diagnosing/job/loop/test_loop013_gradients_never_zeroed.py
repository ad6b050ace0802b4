from __future__ import annotations

from diagnosing.job.made import changes, cpu_profile, findings, only
from diagnosing.job.made_parts import FORWARD, STEP
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator
from machines.healthy import changed


def test_a_fill_in_the_models_own_backward_pass_zeroes_no_gradient() -> None:
    job = cpu_profile()
    fill = Operator("aten::zero_", Kind.ELEMENTWISE, 6, 0.1, where=FORWARD, backward=True)
    job = changed(job, operators=(*job.operators, adding(62), fill))
    assert only("gradients-never-zeroed", job)


def adding(calls: float) -> Operator:
    """The backward pass adds to gradients that are there already."""
    return Operator("aten::add_", Kind.ELEMENTWISE, calls, 9.0, 9.0, (), ("float",), backward=True)


def test_gradients_never_zeroed() -> None:
    job = cpu_profile()
    job = changed(job, operators=(*job.operators, adding(62)))
    finding = only("gradients-never-zeroed", job)
    assert (finding.code, finding.where) == ("LOOP013", str(STEP))
    assert "optimizer.zero_grad()" in changes(finding)
    zeroing = Operator("Optimizer.zero_grad#SGD.zero_grad", Kind.OPTIMIZER, 1, 0.1)
    for other in (
        changed(job, operators=(*job.operators, zeroing)),
        changed(job, operators=(*cpu_profile().operators, adding(20))),
        changed(job, job__micro_steps=4.0),
    ):
        assert findings("gradients-never-zeroed", other) == ()
