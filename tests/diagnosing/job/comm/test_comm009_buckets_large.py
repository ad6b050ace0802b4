from __future__ import annotations

import dataclasses

import pytest

from diagnosing.job import made
from diagnosing.job.comm.jobs import ceilings, exchanging, recorded
from flatout.nouns.profile import Collective

ONE = Collective("all_reduce", 1.0, 12.0, 12.0, 80 * 2**20, ranks=8)


def test_buckets_large() -> None:
    profile = exchanging(ONE)
    finding = made.only("buckets-large", profile)
    assert finding.code == "COMM009"
    assert "80 MiB of gradients are exchanged in 1 message," in finding.title
    assert "bucket_cap_mb=10)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(12.0 * 7 / 8)
    assert "COMM001" not in made.codes(profile)


def test_a_known_latency_sets_the_size() -> None:
    profile = exchanging(ONE, ceilings=ceilings(8, latency_us=30.0))
    finding = made.only("buckets-large", profile)
    assert "bucket_cap_mb=2)" in made.changes(finding)
    assert made.saved_ms(finding, profile) == pytest.approx(12.0 * 39 / 40 - 39 * 0.03)


@pytest.mark.parametrize(
    "other",
    [
        dataclasses.replace(ONE, calls=5.0),
        dataclasses.replace(ONE, exposed_ms=4.0),
        dataclasses.replace(ONE, ms=2.0, exposed_ms=2.0),
        dataclasses.replace(ONE, bytes=2**19),
        dataclasses.replace(ONE, name="all_gather"),
    ],
)
def test_what_is_no_large_bucket(other: Collective) -> None:
    assert made.findings("buckets-large", exchanging(other)) == ()


def test_a_real_trace_with_one_bucket_and_one_with_several() -> None:
    finding = made.only("buckets-large", recorded("gloo_one_bucket_rank0"))
    assert "4.5 MiB of gradients are exchanged in 1 message" in finding.title
    assert "bucket_cap_mb=1)" in made.changes(finding)
    assert made.findings("buckets-large", recorded("gloo_buckets_rank0")) == ()
