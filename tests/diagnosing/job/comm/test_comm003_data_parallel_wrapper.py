from __future__ import annotations

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import Copy


def test_data_parallel() -> None:
    profile = made.profile(
        {Kind.COMMUNICATION: 12.0, Kind.WAIT_HOST: 40.0},
        job__models__0__wrapped="DataParallel",
        copies=(Copy("PtoP", 161.0, 102e6, 14.0, None, 12.0),),
    )
    finding = made.only("data-parallel-wrapper", profile)
    assert (finding.code, finding.where) == ("COMM003", "train.py:84")
    assert "flatout run --gpus all" in finding.cure.text
    assert "torchrun --standalone" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(32)
    assert made.findings("data-parallel-wrapper", made.ddp_profile()) == ()
