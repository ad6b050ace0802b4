from __future__ import annotations

import pytest

from diagnosing.job.made import changes, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity


def test_debug_variables() -> None:
    job = profile({Kind.WAIT_HOST: 60.0}, seen__debug_variables=("CUDA_LAUNCH_BLOCKING=1",))
    finding = only("debug-variables-in-job", job)
    assert (finding.code, finding.severity) == ("LOOP003", Severity.WARNING)
    assert saved_ms(finding, job) == pytest.approx(60.3 / 2, rel=0.01)
    assert "unset CUDA_LAUNCH_BLOCKING" in changes(finding)
    logs = profile(seen__debug_variables=("NCCL_DEBUG=INFO", "TORCH_LOGS=recompiles"))
    assert only("debug-variables-in-job", logs).severity is Severity.NOTE
    assert findings("debug-variables-in-job", profile()) == ()
