from __future__ import annotations

from diagnosing.job.made import codes, findings, only, profile
from diagnosing.job.made_parts import FORWARD

LENGTH = "forward (/home/user/model.py:20): 0/{}: tensor 'x' size mismatch at index 1. expected 64"


def test_compiled_for_changing_shapes() -> None:
    reasons = tuple(LENGTH.format(index) for index in range(3))
    job = profile(seen__recompiles=reasons, seen__input_shapes=7)
    finding = only("compiled-for-changing-shapes", job)
    assert (finding.code, finding.where) == ("LOOP015", str(FORWARD))
    assert "7 shapes" in finding.evidence
    assert "LOOP004" not in codes(job)
    eager = profile(seen__input_shapes=7, job__models__0__compiled=False)
    assert findings("compiled-for-changing-shapes", eager) == ()
    assert findings("compiled-for-changing-shapes", profile(seen__input_shapes=2)) == ()
