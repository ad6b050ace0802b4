from __future__ import annotations

from diagnosing.job.made import cpu_profile, findings, only

CHECK = "python-traced"


def test_tracemalloc_with_its_line() -> None:
    job = cpu_profile(seen__tracers=("tracemalloc (25 frames)",), seen__tracers_where="train.py:13")
    finding = only(CHECK, job)
    assert (finding.code, finding.where) == ("LOOP020", "train.py:13")
    assert "tracemalloc (25 frames)" in finding.title
    assert "tracemalloc.stop()" in str(finding.cure)


def test_a_debugger_has_no_line_to_take_out() -> None:
    finding = only(CHECK, cpu_profile(seen__tracers=("sys.monitoring (coverage)",)))
    assert finding.where is None
    assert "coverage" in finding.title


def test_without_tracing_there_is_nothing() -> None:
    assert findings(CHECK, cpu_profile()) == ()
