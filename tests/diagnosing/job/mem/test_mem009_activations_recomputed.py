from __future__ import annotations

import pytest

from diagnosing.job.made import GIB, findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place
from machines.healthy import changed


def test_activations_recomputed() -> None:
    line = Place("gpt.py", 70, "forward", "x = checkpoint(block, x, use_reentrant=False)")
    twice = Operator("aten::mm", Kind.TENSOR_CORES, 24, 1.0, 20.0, (), (), line)
    job = profile(operators=(twice,), seen__memory_peak_bytes=20 * GIB)
    finding = only("activations-recomputed", job)
    assert (finding.code, finding.where) == ("MEM009", "gpt.py:70")
    assert saved_ms(finding, job) == pytest.approx(0.2 * 90.0, rel=0.01)
    full = changed(job, seen__memory_peak_bytes=70 * GIB)
    assert findings("activations-recomputed", full) == (), "there it is needed"
    assert findings("activations-recomputed", profile(seen__memory_peak_bytes=20 * GIB)) == ()
