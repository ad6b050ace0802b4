"""LOOP: settings, calls and evaluations that slow the loop down."""

from __future__ import annotations

import dataclasses
from typing import Any

import pytest

from diagnosing.job.made import changes, cpu_profile, findings, only, profile, saved_ms
from diagnosing.job.made_parts import BACKWARD, FORWARD, STEP
from diagnosing.job.telling import JobTold, each_of, told
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


ANOMALY, PROFILER, DEBUG = "LOOP001", "LOOP002", "LOOP003"
COMPILED, WRITTEN, REBUILT = "LOOP004", "LOOP008", "LOOP010"
WITH_GRADIENTS, TOO_OFTEN = "LOOP006", "LOOP007"
NEVER_ZEROED, RETAINED, TRACED = "LOOP013", "LOOP014", "LOOP020"
HOOKS = "LOOP025"
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


def adding(calls: float) -> Operator:
    """The backward pass adds to gradients that are there already."""
    return Operator("aten::add_", Kind.ELEMENTWISE, calls, 9.0, 9.0, (), ("float",), backward=True)


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


def test_what_has_grown_since_the_beginning_is_told() -> None:
    hook = CallSeen("hook", 5.0, 0.0, "train.py:13", "Linear")
    job = cpu_profile(seen__calls=(hook,), seen__early_step_s=0.03, seen__step_s=0.3)
    finding = only(HOOKS, job)
    assert finding.title.endswith("a step took 30.0 ms at the beginning, 300 ms now")
    assert finding.gain is not None and finding.gain.ratio == 3.0, "then the loader binds"


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
    # logging each step
    (
        WRITTEN,
        changed(
            calling("SummaryWriter.add_scalar", 0.03, calls=40),
            syncs=(Sync("aten::item", 1, 30.0, where=dataclasses.replace(BACKWARD, line=90)),),
        ),
    ),
    # gradients never zeroed
    (
        NEVER_ZEROED,
        cpu_profile(
            operators=(
                *cpu_profile(operators=(*cpu_profile().operators, adding(62))).operators,
                Operator("Optimizer.zero_grad#SGD.zero_grad", Kind.OPTIMIZER, 1, 0.1),
            )
        ),
    ),
    (NEVER_ZEROED, cpu_profile(operators=(*cpu_profile().operators, adding(20)))),
    (
        NEVER_ZEROED,
        cpu_profile(operators=(*cpu_profile().operators, adding(62)), job__micro_steps=4.0),
    ),
]


@pytest.mark.parametrize(("check", "job"), SILENT)
def test_nothing_is_told(check: str, job: Profile) -> None:
    assert findings(check, job) == ()


TOLD = [
    told("profiler left on", PROFILER, cpu_profile(seen__profiler=True, operators__0__calls=4000.0),
         saves=8.0),
    told("its cost is measured where the program ran without it", PROFILER,
         cpu_profile(seen__profiler=True, seen__profiler_step_s=0.6,
             seen__profiler_where="train.py:12"),
         "600 ms with it and 300 ms without it", where="train.py:12", saves=150.0),
    told("its cost is measured where the program ran without it: 2", PROFILER,
         cpu_profile(seen__profiler=True, seen__profiler_step_s=0.3), saves=None),
    told("debug variables", DEBUG,
         profile({Kind.WAIT_HOST: 60.0}, seen__debug_variables=("CUDA_LAUNCH_BLOCKING=1",)),
         "unset CUDA_LAUNCH_BLOCKING", severity=Severity.WARNING, saves=60.3 / 2),
    told("debug variables: 2", DEBUG,
         profile(seen__debug_variables=("NCCL_DEBUG=INFO", "TORCH_LOGS=recompiles")),
         severity=Severity.NOTE),
    told("recompiled again", COMPILED,
         profile(seen__recompiles=tuple(SCALE.format(index, index / 10) for index in range(5))),
         "self.scale == 0.1", "TORCH_LOGS=recompiles python train.py",
         where="/home/user/model.py:20"),
    told("evaluation with gradients", WITH_GRADIENTS,
         cpu_profile(job__eval_with_grad=True, seen__eval_s=0.3, seen__eval_where="train.py:50"),
         where="train.py:50", boost=None, ratio=(300 + 45) / 300),
    told("evaluation with gradients: 2", WITH_GRADIENTS,
         cpu_profile(job__eval_with_grad=True, seen__eval_s=0.0, seen__eval_where="train.py:50"),
         saves=None),
    told("evaluation too often", TOO_OFTEN,
         cpu_profile(seen__eval_s=0.6, seen__eval_where="train.py:50"), "67% of the time",
         where="train.py:50", ratio=(300 + 585) / 300),
    told("checkpoint each step", WRITTEN, calling("torch.save", 0.09), where="train.py:90",
         saves=90 * 0.99),
    told("logging each step", WRITTEN, calling("SummaryWriter.add_scalar", 0.03, calls=40),
         where="train.py:90", saves=30 * 0.98),
    told("model rebuilt each step", REBUILT, calling("Module()", 0.06, detail="ResNet"),
         "ResNet is rebuilt", "+ module = ResNet(...)  # before it", where="train.py:90", saves=60),
    told("optimizer rebuilt each step", REBUILT, calling("Optimizer()", 0.0004, detail="AdamW"),
         "its state is lost", "-     optimizer = torch.optim.AdamW(", where="train.py:90",
         saves=None),
    told("a fill in the models own backward pass zeroes no gradient", NEVER_ZEROED,
         cpu_profile(operators=(*cpu_profile().operators, adding(62), Operator("aten::zero_",
             Kind.ELEMENTWISE, 6, 0.1, where=FORWARD, backward=True)))),
    told("gradients never zeroed", NEVER_ZEROED,
         cpu_profile(operators=(*cpu_profile().operators, adding(62))), "optimizer.zero_grad()",
         where=str(STEP)),
    told("compiled for changing shapes", COMPILED,
         profile(seen__recompiles=tuple(LENGTH.format(index) for index in range(3)),
             seen__input_shapes=7),
         "7 shapes", where=str(FORWARD)),
    told("tracemalloc with its line", TRACED,
         cpu_profile(seen__tracers=("tracemalloc (25 frames)",), seen__tracers_where="train.py:13"),
         "tracemalloc (25 frames)", "tracemalloc.stop()", where="train.py:13"),
    told("a debugger has no line to take out", TRACED,
         cpu_profile(seen__tracers=("sys.monitoring (coverage)",)), "coverage", where=None),
    told("hooks registered each step", HOOKS, calling("hook", 0.0, calls=5.0, detail="Linear"),
         "Hooks are added in each step and never removed",
         "5 hooks a step stay, of Linear, added at train.py:90", where="train.py:90", saves=None),
    told("parameter groups", HOOKS, calling("Optimizer.add_param_group", 0.0, detail="SGD"),
         "A parameter group is added in each step and never removed"),
]  # fmt: skip


@each_of(TOLD)
def test_what_is_told(case: JobTold) -> None:
    case.holds()
