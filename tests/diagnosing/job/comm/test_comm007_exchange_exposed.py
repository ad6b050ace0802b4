from __future__ import annotations

import dataclasses

from diagnosing.job import made
from diagnosing.job.comm.jobs import exchanging
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Collective


def test_exchange_exposed() -> None:
    one = Collective("all_to_all", 7.0, 21.8, 13.7)
    finding = made.only("exchange-exposed", exchanging(one))
    assert (finding.code, finding.severity, finding.gain) == ("COMM007", Severity.WARNING, None)
    assert "all_to_all 13.7 ms" in finding.evidence
    little = dataclasses.replace(one, exposed_ms=2.0)
    assert made.findings("exchange-exposed", exchanging(little)) == ()
    assert "COMM007" not in made.codes(exchanging(Collective("all_reduce", 5.0, 25.0, 20.0, 1e8)))
