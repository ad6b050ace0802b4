from __future__ import annotations

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import RankSeen


def test_rank_straggles() -> None:
    ranks = tuple(
        RankSeen(rank, 130.0, 120.0, 30.0 if rank != 5 else 2.0, 94.0 if rank != 5 else 122.0)
        for rank in range(8)
    )
    profile = made.ddp_profile({Kind.COMMUNICATION: 28.0}, ranks=ranks)
    finding = made.only("rank-straggles", profile)
    assert finding.code == "COMM002"
    assert finding.title == "rank 5 computes 28.0 ms longer than the others"
    assert made.saved_ms(finding, profile) == pytest.approx(28, abs=0.1)
    assert made.findings("rank-straggles", made.changed(profile, ranks=ranks[:1])) == ()
    assert made.findings("rank-straggles", made.ddp_profile()) == ()
