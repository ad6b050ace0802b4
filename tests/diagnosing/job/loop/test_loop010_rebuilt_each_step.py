from __future__ import annotations

import pytest

from diagnosing.job.loop.jobs import calling
from diagnosing.job.made import changes, findings, only, saved_ms

CHECK = "rebuilt-each-step"


def test_model_rebuilt_each_step() -> None:
    job = calling("Module()", 0.06, detail="ResNet")
    finding = only(CHECK, job)
    assert (finding.code, finding.where) == ("LOOP010", "train.py:90")
    assert "ResNet is rebuilt" in finding.title
    assert "+ module = ResNet(...)  # before it" in changes(finding)
    assert saved_ms(finding, job) == pytest.approx(60, rel=0.01)
    assert findings(CHECK, calling("Module()", 0.0002)) == ()


def test_optimizer_rebuilt_each_step() -> None:
    job = calling("Optimizer()", 0.0004, detail="AdamW")
    finding = only(CHECK, job)
    assert (finding.code, finding.where, finding.gain) == ("LOOP010", "train.py:90", None)
    assert "its state is lost" in finding.title
    assert "-     optimizer = torch.optim.AdamW(" in changes(finding)
    assert findings(CHECK, calling("Optimizer()", 0.1, calls=0.1)) == ()
