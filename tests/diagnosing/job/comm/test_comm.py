"""COMM: communication that holds up the step is found, with figures."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

import pytest

from diagnosing.job import made
from flatout.nouns.anatomy import Kind
from flatout.nouns.ceiling import Ceiling, Point
from flatout.nouns.finding import Severity
from flatout.nouns.profile import Collective, Copy, Profile, RankSeen
from flatout.profiling.trace.analysing import analyse, ranks
from flatout.profiling.trace.reading import read
from profiling.trace.making import real


def exchanging(collective: Collective, **changes: object) -> Profile:
    return made.ddp_profile(
        {Kind.COMMUNICATION: collective.exposed_ms}, collectives=(collective,), **changes
    )


def ceilings(ranks: int, gb_per_s: float) -> tuple[Ceiling, ...]:
    """As `flatout bench` measures them over the GPUs."""
    curve = (Point(f"{ranks} ranks, 1 KiB", gb_per_s),)
    return (Ceiling("all-reduce", "all-reduce", "cuda:0", gb_per_s, "GB/s", curve=curve),)


MICRO = {"job__micro_steps": 4.0}
UNSIZED = Collective("all_reduce", 24.0, 36.0, 16.0)
ONCE = Collective("all_reduce", 5.0, 36.0, 16.0, 102.2e6)
SLOW = Collective("all_reduce", 5.0, 18.0, 12.0, 102.2e6, ranks=8, bus_gb_per_s=10.0)
FAST = ceilings(8, gb_per_s=200.0)
BUFFERS = Collective("broadcast", 2.0, 5.0, 4.0, 2e5, ranks=8)
EXCHANGED, BELOW = "gradients-exchange-exposed", "exchange-below-ceiling"
BROADCAST = "ddp-does-needless-work"


def test_all_reduce_exposed() -> None:
    one = Collective("all_reduce", 5.0, 25.0, 20.0, 102.2e6)
    profile = exchanging(one)
    finding = made.only(EXCHANGED, profile)
    assert (finding.code, finding.severity) == ("COMM001", Severity.WARNING)
    assert finding.where == "train.py:85"
    assert "20.0 ms exposed, 5.00 ms hidden; 5 messages" in finding.evidence
    assert "bf16_compress_hook" in made.changes(finding)
    # 42 ms of backward pass are not covered yet: all but the last message of 5 ms and half of that
    assert made.saved_ms(finding, profile) == pytest.approx(15 + 2.5, abs=0.1)


def test_all_reduce_longer_than_the_step_only_shrinks() -> None:
    profile = exchanging(Collective("all_reduce", 5.0, 200.0, 150.0, 102.2e6))
    finding = made.only(EXCHANGED, profile)
    assert 0 < made.saved_ms(finding, profile) <= 75


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


def test_real_ranks_of_unequal_batches() -> None:
    """Rank 1 has three times the rows: named."""
    traces = read([real(f"gloo_uneven_rank{rank}") for rank in (0, 1)])
    profile = dataclasses.replace(analyse(traces[0]), ranks=ranks(traces))
    finding = made.only("rank-straggles", profile)
    assert finding.title.startswith("rank 1 computes")


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


def test_gradients_reduced_each_micro_batch() -> None:
    profile = exchanging(Collective("all_reduce", 20.0, 36.0, 16.0, 4 * 102.2e6), **MICRO)
    finding = made.only(EXCHANGED, profile)
    assert (finding.code, finding.where) == ("COMM001", "train.py:85")
    assert "no_sync()" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(12)
    by_messages = exchanging(UNSIZED, **MICRO)
    assert "4 backward passes" in made.only(EXCHANGED, by_messages).title
    for once in (but(UNSIZED, MICRO, calls=6.0), but(ONCE, MICRO), but(ONCE, bytes=4e8)):
        assert "while nothing computes" in made.only(EXCHANGED, once).title


def test_unused_parameters_searched() -> None:
    profile = made.ddp_profile({Kind.WAIT_HOST: 15.0}, job__models__0__searches_unused=True)
    finding = made.only("ddp-does-needless-work", profile)
    assert (finding.code, finding.severity, finding.gain) == ("COMM006", Severity.NOTE, None)
    many = made.changed(profile, job__optimizers__0__tensors=1600)
    finding = made.only("ddp-does-needless-work", many)
    assert made.saved_ms(finding, many) == pytest.approx(8.0)


def test_exchange_below_ceiling() -> None:
    profile = exchanging(SLOW, ceilings=FAST)
    finding = made.only(BELOW, profile)
    assert finding.code == "COMM008"
    assert "10.0 GB/s of the 200.0 GB/s" in finding.title
    sent = 1.75 * 102.2
    assert made.saved_ms(finding, profile) == pytest.approx(
        min(12.0, 17.885 - sent / 200), rel=0.01
    )
    assert "nvidia-smi topo -m" in finding.cure.commands


def test_buffers_broadcast_each_step() -> None:
    profile = exchanging(BUFFERS)
    finding = made.only(BROADCAST, profile)
    assert finding.code == "COMM006"
    assert made.saved_ms(finding, profile) == pytest.approx(4.0)
    assert "broadcast_buffers=False" in made.changes(finding)
    real_trace = analyse(read([real("a100_nccl")])[0])
    assert made.findings(BROADCAST, real_trace) == ()


def but(collective: Collective, job: Mapping[str, Any] = {}, **facts: Any) -> Profile:
    return exchanging(dataclasses.replace(collective, **facts), **job)


SILENT = [
    (BELOW, but(SLOW, {"ceilings": ()})),
    (BELOW, but(SLOW, {"ceilings": ceilings(2, gb_per_s=200.0)})),
    (BELOW, but(SLOW, {"ceilings": ceilings(8, gb_per_s=19.0)})),
    (BELOW, but(SLOW, {"ceilings": FAST}, exposed_ms=0.5)),
    (BROADCAST, but(BUFFERS, calls=0.1)),
    (BROADCAST, but(BUFFERS, exposed_ms=0.1)),
    (BROADCAST, but(BUFFERS, name="all_reduce")),
    (BROADCAST, but(BUFFERS, {"job__models__0__wrapped": None})),
]


@pytest.mark.parametrize(("check", "profile"), SILENT)
def test_nothing_is_told(check: str, profile: Profile) -> None:
    assert made.findings(check, profile) == ()
