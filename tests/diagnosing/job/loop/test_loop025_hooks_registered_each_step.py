from __future__ import annotations

from diagnosing.job.loop.jobs import calling
from diagnosing.job.made import cpu_profile, findings, only
from flatout_agent.wire import CallSeen

CODE = "hooks-registered-each-step"


def test_hooks_registered_each_step() -> None:
    finding = only(CODE, calling("hook", 0.0, calls=5.0, detail="Linear"))
    assert (finding.code, finding.where, finding.gain) == ("LOOP025", "train.py:90", None)
    assert finding.title == "Hooks are added in each step and never removed"
    assert "5 hooks a step stay, of Linear, added at train.py:90" in finding.evidence
    assert findings(CODE, calling("hook", 0.0, calls=0.1)) == (), "once in ten steps"


def test_what_has_grown_since_the_beginning_is_told() -> None:
    hook = CallSeen("hook", 5.0, 0.0, "train.py:13", "Linear")
    job = cpu_profile(seen__calls=(hook,), seen__early_step_s=0.03, seen__step_s=0.3)
    finding = only(CODE, job)
    assert finding.title.endswith("a step took 30.0 ms at the beginning, 300 ms now")
    assert finding.gain is not None and finding.gain.ratio == 3.0, "then the loader binds"


def test_parameter_groups() -> None:
    finding = only(CODE, calling("Optimizer.add_param_group", 0.0, detail="SGD"))
    assert finding.title == "A parameter group is added in each step and never removed"
