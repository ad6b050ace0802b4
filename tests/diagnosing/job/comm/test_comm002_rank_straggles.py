from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.profile import RankSeen
from flatout.profiling.trace.analysing import analyse, ranks
from flatout.profiling.trace.reading import read
from profiling.trace.making import real


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


def test_real_ranks_of_unequal_batches() -> None:
    """Rank 1 has three times the rows: named, and the exchange itself is not blamed."""
    traces = read([real(f"gloo_uneven_rank{rank}") for rank in (0, 1)])
    profile = dataclasses.replace(analyse(traces[0]), ranks=ranks(traces))
    finding = made.only("rank-straggles", profile)
    assert finding.title.startswith("rank 1 computes")
    assert "COMM007" not in made.codes(profile)
