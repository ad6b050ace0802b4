from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.made import (
    changes,
    codes,
    cpu_profile,
    findings,
    only,
    profile,
    saved_ms,
)
from diagnosing.job.made_parts import BACKWARD, FORWARD, STEP
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Gap, Operator, Profile, Sync
from flatout_agent.wire import CallSeen
from machines.healthy import changed


def calling(name: str, s: float, calls: float = 1.0, **facts: Any) -> Profile:
    """A job on a CPU, 300 ms a step, that makes this call."""
    call = CallSeen(name, calls, s, "train.py:90", **facts)
    return cpu_profile(seen__calls=(call,))


def test_anomaly_detection() -> None:
    looking = (
        Operator("aten::isnan", Kind.ELEMENTWISE, 200, 1.0, 4.0),
        Operator("aten::any", Kind.REDUCTION, 200, 1.0, 2.0),
    )
    gap = Gap(Kind.WAIT_SYNC, ms=30.0, count=200, doing="aten::is_nonzero")
    job = profile({Kind.WAIT_SYNC: 30.0}, seen__anomaly=True, operators=looking, gaps=(gap,))
    finding = only("anomaly-detection-on", job)
    assert finding.code == "LOOP001"
    assert saved_ms(finding, job) == pytest.approx(4 + 2 + 200 * 0.05 + 30, rel=0.01)
    assert findings("anomaly-detection-on", changed(job, seen__anomaly=False)) == ()


def test_profiler_left_on() -> None:
    job = cpu_profile(seen__profiler=True, operators__0__calls=4000.0)
    finding = only("profiler-left-on", job)
    assert finding.code == "LOOP002"
    assert saved_ms(finding, job) == pytest.approx(8.0, rel=0.01), "no more than Python takes"
    assert findings("profiler-left-on", cpu_profile()) == ()


def test_debug_variables() -> None:
    job = profile({Kind.WAIT_HOST: 60.0}, seen__debug_variables=("CUDA_LAUNCH_BLOCKING=1",))
    finding = only("debug-variables-in-job", job)
    assert (finding.code, finding.severity) == ("LOOP003", Severity.WARNING)
    assert saved_ms(finding, job) == pytest.approx(60.3 / 2, rel=0.01)
    assert "unset CUDA_LAUNCH_BLOCKING" in changes(finding)
    logs = profile(seen__debug_variables=("NCCL_DEBUG=INFO", "TORCH_LOGS=recompiles"))
    assert only("debug-variables-in-job", logs).severity is Severity.NOTE
    assert findings("debug-variables-in-job", profile()) == ()


SCALE = "forward (/home/user/model.py:20): 0/{}: self.scale == {}"
LENGTH = "forward (/home/user/model.py:20): 0/{}: tensor 'x' size mismatch at index 1. expected 64"


def test_recompiled_again() -> None:
    reasons = tuple(SCALE.format(index, index / 10) for index in range(5))
    job = profile(seen__recompiles=reasons)
    finding = only("recompiled-again", job)
    assert (finding.code, finding.where) == ("LOOP004", "/home/user/model.py:20")
    assert "self.scale == 0.1" in finding.evidence
    assert "TORCH_LOGS=recompiles python train.py" in changes(finding)
    assert findings("recompiled-again", profile(seen__recompiles=reasons[:1])) == ()


def test_compiled_for_changing_shapes() -> None:
    reasons = tuple(LENGTH.format(index) for index in range(3))
    job = profile(seen__recompiles=reasons, seen__input_shapes=7)
    finding = only("compiled-for-changing-shapes", job)
    assert (finding.code, finding.where) == ("LOOP015", str(FORWARD))
    assert "7 shapes" in finding.evidence
    assert "LOOP004" not in codes(job)
    eager = profile(seen__input_shapes=7, job__models__0__compiled=False)
    assert findings("compiled-for-changing-shapes", eager) == ()
    assert findings("compiled-for-changing-shapes", profile(seen__input_shapes=2)) == ()


def test_the_line_that_a_guard_names_is_the_users() -> None:
    guard = (
        "__call__ (/opt/flatout_agent/discovery.py:92): 0/1: self.scale == 1.0 # return x * self.s "
        '# pkg/model.py:90 in forward User stack trace: File "/opt/flatout_agent/job.py", line 9'
    )
    assert (
        only("recompiled-again", profile(seen__recompiles=(guard,) * 2)).where == "pkg/model.py:90"
    )
    foreign = "inner (/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py:134): 0/1: x"
    assert only("recompiled-again", profile(seen__recompiles=(foreign,) * 2)).where is None


def test_graph_breaks() -> None:
    reason = 'builtin: print File "/home/user/model.py", line 31, in forward'
    finding = only("graph-breaks", profile(seen__graph_breaks=(reason,)))
    assert (finding.code, finding.where) == ("LOOP005", "/home/user/model.py:31")
    assert "fullgraph=True" in changes(finding)
    assert findings("graph-breaks", profile()) == ()


def test_evaluation_with_gradients() -> None:
    job = cpu_profile(
        job__eval_seen=True,
        job__eval_with_grad=True,
        seen__eval_s=0.3,
        seen__eval_where="train.py:50",
    )
    finding = only("evaluation-with-gradients", job)
    assert (finding.code, finding.where) == ("LOOP006", "train.py:50")
    assert finding.boost == "eval-without-grad"
    assert finding.gain.ratio == pytest.approx((300 + 45) / 300, rel=0.01)
    unseen = changed(job, seen__eval_s=0.0)
    assert only("evaluation-with-gradients", unseen).gain is None
    assert findings("evaluation-with-gradients", cpu_profile(job__eval_seen=True)) == ()


def test_evaluation_too_often() -> None:
    job = cpu_profile(seen__eval_s=0.6, seen__eval_where="train.py:50")
    finding = only("evaluation-too-often", job)
    assert (finding.code, finding.where) == ("LOOP007", "train.py:50")
    assert "67% of the time" in finding.title
    assert finding.gain.ratio == pytest.approx((300 + 585) / 300, rel=0.01)
    once_an_epoch = changed(job, seen__epochs=2)
    assert findings("evaluation-too-often", once_an_epoch) == ()
    assert findings("evaluation-too-often", cpu_profile(seen__eval_s=0.02)) == ()


def test_checkpoint_each_step() -> None:
    job = calling("torch.save", 0.09)
    finding = only("checkpoint-each-step", job)
    assert (finding.code, finding.where) == ("LOOP008", "train.py:90")
    assert saved_ms(finding, job) == pytest.approx(90 * 0.99, rel=0.01)
    assert findings("checkpoint-each-step", calling("torch.save", 0.012, calls=0.125)) == ()
    assert findings("checkpoint-each-step", calling("torch.save", 0.001)) == ()


def test_logging_each_step() -> None:
    job = calling("SummaryWriter.add_scalar", 0.03, calls=40)
    finding = only("logging-each-step", job)
    assert (finding.code, finding.where) == ("LOOP009", "train.py:90")
    assert saved_ms(finding, job) == pytest.approx(30 * 0.98, rel=0.01)
    assert findings("logging-each-step", calling("print", 0.0001)) == ()
    place = dataclasses.replace(BACKWARD, line=90)
    waits = changed(job, syncs=(Sync("aten::item", 1, 30.0, where=place),))
    assert findings("logging-each-step", waits) == (), "the wait for the device is told elsewhere"


def test_model_rebuilt_each_step() -> None:
    job = calling("Module()", 0.06, detail="ResNet")
    finding = only("model-rebuilt-each-step", job)
    assert (finding.code, finding.where) == ("LOOP010", "train.py:90")
    assert "ResNet is built anew" in finding.title
    assert saved_ms(finding, job) == pytest.approx(60, rel=0.01)
    assert findings("model-rebuilt-each-step", calling("Module()", 0.0002)) == ()


def test_optimizer_rebuilt_each_step() -> None:
    job = calling("Optimizer()", 0.0004, detail="AdamW")
    finding = only("optimizer-rebuilt-each-step", job)
    assert (finding.code, finding.where, finding.gain) == ("LOOP011", "train.py:90", None)
    assert "its state is lost" in finding.title
    assert findings("optimizer-rebuilt-each-step", calling("Optimizer()", 0.1, calls=0.1)) == ()


def test_forward_unused() -> None:
    job = cpu_profile(seen__unused_forwards=1.0)
    finding = only("forward-unused", job)
    assert (finding.code, finding.where) == ("LOOP012", str(FORWARD))
    forward = 68.0 + 30.0 + 24.0
    assert saved_ms(finding, job) == pytest.approx(forward / 2, rel=0.01)
    assert findings("forward-unused", cpu_profile()) == ()


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


def seeding(source: str) -> tuple[Operator, ...]:
    """What `backward` itself runs in the user's line."""
    line = dataclasses.replace(BACKWARD, source=source)
    ones = Operator("aten::ones_like", Kind.ELEMENTWISE, 2, 0.1, where=line)
    return (*cpu_profile().operators, ones)


def test_graph_retained() -> None:
    once = cpu_profile(operators=seeding("loss.backward(retain_graph=True)"))
    finding = only("graph-retained", once)
    assert (finding.code, finding.where, finding.gain) == ("LOOP014", str(BACKWARD), None)
    twice = changed(once, job__micro_steps=2.0)
    assert saved_ms(only("graph-retained", twice), twice) == pytest.approx(68.0, rel=0.01)
    assert findings("graph-retained", cpu_profile(operators=seeding("loss.backward()"))) == ()
    elsewhere = changed(once, seen__backward_where="train.py:99")
    assert findings("graph-retained", elsewhere) == (), "the line that runs was seen from inside"
