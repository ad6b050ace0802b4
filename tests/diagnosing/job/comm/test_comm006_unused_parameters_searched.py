from __future__ import annotations

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.finding import Severity


def test_unused_parameters_searched() -> None:
    profile = made.ddp_profile({Kind.WAIT_HOST: 15.0}, job__models__0__searches_unused=True)
    finding = made.only("unused-parameters-searched", profile)
    assert (finding.code, finding.severity, finding.gain) == ("COMM006", Severity.NOTE, None)
    many = made.changed(profile, job__optimizers__0__tensors=1600)
    finding = made.only("unused-parameters-searched", many)
    assert made.saved_ms(finding, many) == pytest.approx(8.0)
    assert made.findings("unused-parameters-searched", made.ddp_profile()) == ()
