from __future__ import annotations

from diagnosing.job.made import GIB, MIB, changes, codes, findings, only, profile


def test_losses_kept() -> None:
    kept = tuple(9 * GIB + step * 180 * MIB for step in range(12))
    job = profile(
        seen__losses_kept=True, seen__backward_where="train.py:88", seen__memory_bytes=kept
    )
    finding = only("losses-kept-with-graph", job)
    assert (finding.code, finding.where) == ("MEM005", "train.py:88")
    assert "180 MiB a step" in finding.evidence
    assert "loss.detach()" in changes(finding)
    assert [code for code in codes(job) if code.startswith("MEM")] == ["MEM005"]
    assert findings("losses-kept-with-graph", profile()) == ()
