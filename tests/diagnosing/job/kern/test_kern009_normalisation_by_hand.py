from __future__ import annotations

import pytest

from diagnosing.job.kern.jobs import of, operator
from diagnosing.job.made import findings, only, profile, saved_ms
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Operator, Place
from machines.healthy import changed


def by_hand(*names: str, line: int = 12) -> tuple[Operator, ...]:
    place = Place("norm.py", line, "forward", "return x * torch.rsqrt(x.pow(2).mean(-1) + eps)")
    return tuple(operator(name, Kind.ELEMENTWISE, 5.0, where=place) for name in names)


def test_normalisation_by_hand() -> None:
    job = profile(job__models__0__compiled=False)
    rms = of(job, *by_hand("aten::pow", "aten::mean", "aten::rsqrt", "aten::mul"))
    finding = only("normalisation-by-hand", rms)
    assert (finding.code, finding.where) == ("KERN009", "norm.py:12")
    assert saved_ms(finding, rms) == pytest.approx(12.0, rel=0.01)
    assert findings("normalisation-by-hand", of(job, *by_hand("aten::mean", "aten::mul"))) == ()
    compiled = changed(rms, job__models__0__compiled=True)
    assert findings("normalisation-by-hand", compiled) == ()
