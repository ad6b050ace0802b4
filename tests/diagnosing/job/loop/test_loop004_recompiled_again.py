from __future__ import annotations

from diagnosing.job.made import changes, findings, only, profile

SCALE = "forward (/home/user/model.py:20): 0/{}: self.scale == {}"


def test_recompiled_again() -> None:
    reasons = tuple(SCALE.format(index, index / 10) for index in range(5))
    job = profile(seen__recompiles=reasons)
    finding = only("recompiled-again", job)
    assert (finding.code, finding.where) == ("LOOP004", "/home/user/model.py:20")
    assert "self.scale == 0.1" in finding.evidence
    assert "TORCH_LOGS=recompiles python train.py" in changes(finding)
    assert findings("recompiled-again", profile(seen__recompiles=reasons[:1])) == ()


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
