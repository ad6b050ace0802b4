"""LOOP: settings, calls and evaluations that slow the loop down."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from diagnosing.job.made_parts import BACKWARD, FORWARD, STEP
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity
from flatout.nouns.place import Place
from flatout.nouns.profile import Gap, Operator, Profile, Sync
from flatout_agent.wire import CallSeen
from machines.healthy import changed


def calling(name: str, s: float, calls: float = 1.0, **facts: Any) -> Profile:
    """A job on a CPU, 300 ms a step, that makes this call."""
    call = CallSeen(name, calls, s, "train.py:90", **facts)
    return cpu_profile(seen__calls=(call,))


ANOMALY, PROFILER, DEBUG = "anomaly-detection-on", "profiler-left-on", "debug-variables-in-job"
COMPILED, WRITTEN, REBUILT = "compiled-code-left", "written-each-step", "rebuilt-each-step"
WITH_GRADIENTS, TOO_OFTEN = "evaluation-with-gradients", "evaluation-too-often"
NEVER_ZEROED, RETAINED, TRACED = "gradients-never-zeroed", "graph-retained", "python-traced"
HOOKS = "hooks-registered-each-step"
EVALUATING = {"seen__eval_s": 0.06, "seen__eval_where": "train.py:50"}
SCALE = "forward (/home/user/model.py:20): 0/{}: self.scale == {}"
LENGTH = "forward (/home/user/model.py:20): 0/{}: tensor 'x' size mismatch at index 1. expected 64"


def test_anomaly_detection() -> None:
    looking = (
        Operator("aten::isnan", Kind.ELEMENTWISE, 200, 1.0, 4.0),
        Operator("aten::any", Kind.REDUCTION, 200, 1.0, 2.0),
    )
    gap = Gap(Kind.WAIT_SYNC, ms=30.0, count=200, doing="aten::is_nonzero")
    job = profile({Kind.WAIT_SYNC: 30.0}, seen__anomaly=True, operators=looking, gaps=(gap,))
    finding = only(ANOMALY, job)
    assert (finding.code, finding.where) == ("LOOP001", None)
    placed = only(ANOMALY, changed(job, seen__anomaly_where="train.py:4"))
    assert placed.where == "train.py:4"
    assert "# train.py:4" in changes(placed)
    assert saved_ms(finding, job) == pytest.approx(4 + 2 + 200 * 0.05 + 30, rel=0.01)
    assert findings(ANOMALY, changed(job, seen__anomaly=False)) == ()


def test_profiler_left_on() -> None:
    job = cpu_profile(seen__profiler=True, operators__0__calls=4000.0)
    finding = only(PROFILER, job)
    assert finding.code == "LOOP002"
    assert saved_ms(finding, job) == pytest.approx(8.0, rel=0.01), "no more than Python takes"


def test_its_cost_is_measured_where_the_program_ran_without_it() -> None:
    job = cpu_profile(
        seen__profiler=True, seen__profiler_step_s=0.6, seen__profiler_where="train.py:12"
    )
    finding = only(PROFILER, job)
    assert finding.where == "train.py:12"
    assert "600 ms with it and 300 ms without it" in finding.evidence
    assert saved_ms(finding, job) == pytest.approx(150.0), "300 ms more for 300: twice as fast"
    free = cpu_profile(seen__profiler=True, seen__profiler_step_s=0.3)
    assert only(PROFILER, free).gain is None, "it cost nothing"


def test_debug_variables() -> None:
    job = profile({Kind.WAIT_HOST: 60.0}, seen__debug_variables=("CUDA_LAUNCH_BLOCKING=1",))
    finding = only(DEBUG, job)
    assert (finding.code, finding.severity) == ("LOOP003", Severity.WARNING)
    assert saved_ms(finding, job) == pytest.approx(60.3 / 2, rel=0.01)
    assert "unset CUDA_LAUNCH_BLOCKING" in changes(finding)
    logs = profile(seen__debug_variables=("NCCL_DEBUG=INFO", "TORCH_LOGS=recompiles"))
    assert only(DEBUG, logs).severity is Severity.NOTE


def test_recompiled_again() -> None:
    reasons = tuple(SCALE.format(index, index / 10) for index in range(5))
    job = profile(seen__recompiles=reasons)
    finding = only(COMPILED, job)
    assert (finding.code, finding.where) == ("LOOP004", "/home/user/model.py:20")
    assert "self.scale == 0.1" in finding.evidence
    assert "TORCH_LOGS=recompiles python train.py" in changes(finding)


def test_the_line_that_a_guard_names_is_the_users() -> None:
    guard = (
        "__call__ (/opt/flatout_agent/discovery.py:92): 0/1: self.scale == 1.0 # return x * self.s "
        '# pkg/model.py:90 in forward User stack trace: File "/opt/flatout_agent/job.py", line 9'
    )
    assert only(COMPILED, profile(seen__recompiles=(guard,) * 2)).where == "pkg/model.py:90"
    foreign = "inner (/venv/lib/python3.12/site-packages/torch/nn/modules/linear.py:134): 0/1: x"
    assert only(COMPILED, profile(seen__recompiles=(foreign,) * 2)).where is None


def test_graph_breaks() -> None:
    reason = 'builtin: print File "/home/user/model.py", line 31, in forward'
    finding = only(COMPILED, profile(seen__graph_breaks=(reason,)))
    assert (finding.code, finding.where) == ("LOOP004", "/home/user/model.py:31")
    assert "fullgraph=True" in changes(finding)


def test_evaluation_with_gradients() -> None:
    job = cpu_profile(
        job__eval_with_grad=True,
        seen__eval_s=0.3,
        seen__eval_where="train.py:50",
    )
    finding = only(WITH_GRADIENTS, job)
    assert (finding.code, finding.where) == ("LOOP006", "train.py:50")
    assert finding.boost is None
    assert finding.gain.ratio == pytest.approx((300 + 45) / 300, rel=0.01)
    unseen = changed(job, seen__eval_s=0.0)
    assert only(WITH_GRADIENTS, unseen).gain is None


def test_evaluation_too_often() -> None:
    job = cpu_profile(seen__eval_s=0.6, seen__eval_where="train.py:50")
    finding = only(TOO_OFTEN, job)
    assert (finding.code, finding.where) == ("LOOP007", "train.py:50")
    assert "67% of the time" in finding.title
    assert finding.gain.ratio == pytest.approx((300 + 585) / 300, rel=0.01)


def test_one_that_returns_every_few_steps() -> None:
    often = cpu_profile(**EVALUATING, seen__eval_every=2.0, seen__eval_called="train.py:90")
    finding = only(TOO_OFTEN, often)
    assert finding.title == "evaluation after every 2 steps takes 17% of the time"
    assert finding.where == "train.py:90"
    assert "train.py:50" in finding.evidence
    epoch = changed(often, seen__eval_every=15.0, seen__eval_after_epoch=True)
    assert findings(TOO_OFTEN, epoch) == ()


@pytest.mark.parametrize(
    ("function", "source", "title", "cure"),
    [
        ("Teller.on_step_end", "out = model.generate(", "generating in Teller.on_step_end()",
         "Generate less often"),
        ("validate", "scores = model(x)", "evaluation in validate()", "Evaluate less often"),
        ("main", "scores = model(x)", "evaluation", "Evaluate less often"),
    ],
)  # fmt: skip
def test_what_is_called_where(function: str, source: str, title: str, cure: str) -> None:
    place = Place("train.py", 50, function, source)
    job = cpu_profile(
        operators=(Operator("aten::mm", Kind.MATMUL, 9.0, 9.0, where=place),),
        seen__eval_s=0.6,
        seen__eval_where="train.py:50",
        seen__eval_every=1.0,
    )
    finding = only(TOO_OFTEN, job)
    assert finding.title == f"{title} after every step takes 67% of the time"
    assert finding.cure.text.startswith(cure)
    assert source in finding.evidence


def test_checkpoint_each_step() -> None:
    job = calling("torch.save", 0.09)
    finding = only(WRITTEN, job)
    assert (finding.code, finding.where) == ("LOOP008", "train.py:90")
    assert saved_ms(finding, job) == pytest.approx(90 * 0.99, rel=0.01)


def test_logging_each_step() -> None:
    job = calling("SummaryWriter.add_scalar", 0.03, calls=40)
    finding = only(WRITTEN, job)
    assert (finding.code, finding.where) == ("LOOP008", "train.py:90")
    assert saved_ms(finding, job) == pytest.approx(30 * 0.98, rel=0.01)
    place = dataclasses.replace(BACKWARD, line=90)
    waits = changed(job, syncs=(Sync("aten::item", 1, 30.0, where=place),))
    assert findings(WRITTEN, waits) == (), "the wait for the device is told elsewhere"


def test_model_rebuilt_each_step() -> None:
    job = calling("Module()", 0.06, detail="ResNet")
    finding = only(REBUILT, job)
    assert (finding.code, finding.where) == ("LOOP010", "train.py:90")
    assert "ResNet is rebuilt" in finding.title
    assert "+ module = ResNet(...)  # before it" in changes(finding)
    assert saved_ms(finding, job) == pytest.approx(60, rel=0.01)


def test_optimizer_rebuilt_each_step() -> None:
    job = calling("Optimizer()", 0.0004, detail="AdamW")
    finding = only(REBUILT, job)
    assert (finding.code, finding.where, finding.gain) == ("LOOP010", "train.py:90", None)
    assert "its state is lost" in finding.title
    assert "-     optimizer = torch.optim.AdamW(" in changes(finding)


def test_a_fill_in_the_models_own_backward_pass_zeroes_no_gradient() -> None:
    job = cpu_profile()
    fill = Operator("aten::zero_", Kind.ELEMENTWISE, 6, 0.1, where=FORWARD, backward=True)
    job = changed(job, operators=(*job.operators, adding(62), fill))
    assert only(NEVER_ZEROED, job)


def adding(calls: float) -> Operator:
    """The backward pass adds to gradients that are there already."""
    return Operator("aten::add_", Kind.ELEMENTWISE, calls, 9.0, 9.0, (), ("float",), backward=True)


def test_gradients_never_zeroed() -> None:
    job = cpu_profile()
    job = changed(job, operators=(*job.operators, adding(62)))
    finding = only(NEVER_ZEROED, job)
    assert (finding.code, finding.where) == ("LOOP013", str(STEP))
    assert "optimizer.zero_grad()" in changes(finding)
    zeroing = Operator("Optimizer.zero_grad#SGD.zero_grad", Kind.OPTIMIZER, 1, 0.1)
    for other in (
        changed(job, operators=(*job.operators, zeroing)),
        changed(job, operators=(*cpu_profile().operators, adding(20))),
        changed(job, job__micro_steps=4.0),
    ):
        assert findings(NEVER_ZEROED, other) == ()


def seeding(source: str) -> tuple[Operator, ...]:
    """What `backward` itself runs in the user's line."""
    line = dataclasses.replace(BACKWARD, source=source)
    ones = Operator("aten::ones_like", Kind.ELEMENTWISE, 2, 0.1, where=line)
    return (*cpu_profile().operators, ones)


def test_graph_retained() -> None:
    once = cpu_profile(operators=seeding("loss.backward(retain_graph=True)"))
    finding = only(RETAINED, once)
    assert (finding.code, finding.where, finding.gain) == ("LOOP014", str(BACKWARD), None)
    twice = changed(once, job__micro_steps=2.0)
    assert saved_ms(only(RETAINED, twice), twice) == pytest.approx(68.0, rel=0.01)
    elsewhere = changed(once, seen__backward_where="train.py:99")
    assert findings(RETAINED, elsewhere) == (), "the line that runs was seen from inside"


def test_compiled_for_changing_shapes() -> None:
    reasons = tuple(LENGTH.format(index) for index in range(3))
    job = profile(seen__recompiles=reasons, seen__input_shapes=7)
    finding = only(COMPILED, job)
    assert (finding.code, finding.where) == ("LOOP004", str(FORWARD))
    assert "7 shapes" in finding.evidence


def test_tracemalloc_with_its_line() -> None:
    job = cpu_profile(seen__tracers=("tracemalloc (25 frames)",), seen__tracers_where="train.py:13")
    finding = only(TRACED, job)
    assert (finding.code, finding.where) == ("LOOP020", "train.py:13")
    assert "tracemalloc (25 frames)" in finding.title
    assert "tracemalloc.stop()" in str(finding.cure)


def test_a_debugger_has_no_line_to_take_out() -> None:
    finding = only(TRACED, cpu_profile(seen__tracers=("sys.monitoring (coverage)",)))
    assert finding.where is None
    assert "coverage" in finding.title


def test_hooks_registered_each_step() -> None:
    finding = only(HOOKS, calling("hook", 0.0, calls=5.0, detail="Linear"))
    assert (finding.code, finding.where, finding.gain) == ("LOOP025", "train.py:90", None)
    assert finding.title == "Hooks are added in each step and never removed"
    assert "5 hooks a step stay, of Linear, added at train.py:90" in finding.evidence


def test_what_has_grown_since_the_beginning_is_told() -> None:
    hook = CallSeen("hook", 5.0, 0.0, "train.py:13", "Linear")
    job = cpu_profile(seen__calls=(hook,), seen__early_step_s=0.03, seen__step_s=0.3)
    finding = only(HOOKS, job)
    assert finding.title.endswith("a step took 30.0 ms at the beginning, 300 ms now")
    assert finding.gain is not None and finding.gain.ratio == 3.0, "then the loader binds"


def test_parameter_groups() -> None:
    finding = only(HOOKS, calling("Optimizer.add_param_group", 0.0, detail="SGD"))
    assert finding.title == "A parameter group is added in each step and never removed"


SILENT = [
    (COMPILED, profile(seen__recompiles=(SCALE.format(0, 0.0),))),
    (COMPILED, profile(seen__input_shapes=7, job__models__0__compiled=False)),
    (COMPILED, profile(seen__input_shapes=2)),
    (TOO_OFTEN, cpu_profile(**{**EVALUATING, "seen__eval_s": 0.6}, seen__epochs=2)),
    (TOO_OFTEN, cpu_profile(seen__eval_s=0.02)),
    (TOO_OFTEN, cpu_profile(**EVALUATING)),
    (TOO_OFTEN, cpu_profile(**EVALUATING, seen__eval_every=50.0)),
    (TOO_OFTEN, cpu_profile(seen__eval_s=0.6, seen__eval_trained=False)),  # a teacher
    (WRITTEN, calling("torch.save", 0.012, calls=0.125)),
    (WRITTEN, calling("torch.save", 0.001)),
    (WRITTEN, calling("print", 0.0001)),
    (REBUILT, calling("Module()", 0.0002)),
    (REBUILT, calling("Optimizer()", 0.1, calls=0.1)),
    (RETAINED, cpu_profile(operators=seeding("loss.backward()"))),
    (HOOKS, calling("hook", 0.0, calls=0.1)),  # once in ten steps
]


@pytest.mark.parametrize(("check", "job"), SILENT)
def test_nothing_is_told(check: str, job: Profile) -> None:
    assert findings(check, job) == ()
