from __future__ import annotations

from diagnosing.job.made import changes, findings, only, profile


def test_graph_breaks() -> None:
    reason = 'builtin: print File "/home/user/model.py", line 31, in forward'
    finding = only("graph-breaks", profile(seen__graph_breaks=(reason,)))
    assert (finding.code, finding.where) == ("LOOP005", "/home/user/model.py:31")
    assert "fullgraph=True" in changes(finding)
    assert findings("graph-breaks", profile()) == ()
