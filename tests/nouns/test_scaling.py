from __future__ import annotations

import dataclasses

import pytest

from flatout.nouns import scaling
from flatout.nouns.scaling import Cluster, Link, Rehearsal

NODE = Cluster(8, Link(100.0, 5e-6))
CLUSTER = Cluster(8, Link(100.0, 5e-6), Link(10.0, 20e-6))
SMALL = Rehearsal(outside_s=0.01, region_s=0.09, backward_s=0.06, gradient_bytes=100 * 2**20)


def test_one_rank_exchanges_nothing() -> None:
    alone = scaling.predicted(SMALL, 1, NODE)
    assert alone.step_s == pytest.approx(0.1)
    assert (alone.exchange_s, alone.exposed_s, alone.latency_s) == (0.0, 0.0, 0.0)


def test_what_fits_beside_the_backward_pass_costs_its_last_message_alone() -> None:
    two = scaling.predicted(SMALL, 2, NODE)
    assert two.exchange_s == pytest.approx(100 * 2**20 / 100e9 + 4 * 2 * 5e-6)
    assert two.exposed_s == pytest.approx(two.exchange_s / 4)
    assert two.step_s == pytest.approx(0.1 + two.exposed_s)


def test_what_does_not_fit_is_exposed() -> None:
    slow = Cluster(8, Link(1.0))
    two = scaling.predicted(SMALL, 2, slow)
    assert two.exposed_s == pytest.approx(100 * 2**20 / 1e9 - 0.06)
    assert two.exposed_share == pytest.approx(two.exposed_s / two.step_s)


def test_one_bucket_is_wholly_exposed() -> None:
    whole = dataclasses.replace(SMALL, bucket_bytes=2**40)
    assert scaling.predicted(whole, 2, NODE).exposed_s == pytest.approx(
        scaling.predicted(whole, 2, NODE).exchange_s
    )


def test_between_nodes_the_slower_link_sets_the_pace() -> None:
    assert scaling.sending_s(1e9, 8, CLUSTER) == pytest.approx(1.75 / 100)
    assert scaling.sending_s(1e9, 16, CLUSTER) == pytest.approx(2 * 15 / 16 / 10)
    assert scaling.message_latency_s(8, CLUSTER) == pytest.approx(14 * 5e-6)
    assert scaling.message_latency_s(64, CLUSTER) == pytest.approx(14 * 5e-6 + 6 * 20e-6)


def test_one_rank_on_each_node_uses_the_network_alone() -> None:
    fast_network = Cluster(1, Link(1.0), Link(10.0))
    assert scaling.sending_s(1e9, 2, fast_network) == pytest.approx(0.1)


def test_nodes_that_nothing_connects() -> None:
    with pytest.raises(ValueError, match="more than 8 ranks"):
        scaling.predicted(SMALL, 16, NODE)


def test_a_measured_link() -> None:
    link = scaling.of_measured(4, 50.0, 60e-6)
    assert link == Link(50.0, pytest.approx(10e-6))
    assert scaling.message_latency_s(4, Cluster(4, link)) == pytest.approx(60e-6)


def test_efficiency() -> None:
    ideal = dataclasses.replace(scaling.predicted(SMALL, 2, NODE), step_s=0.05)
    assert scaling.efficiency(0.1, ideal) == pytest.approx(1.0)
    same_rows_each = dataclasses.replace(ideal, step_s=0.1)
    assert scaling.efficiency(0.1, same_rows_each, rows_factor=2) == pytest.approx(1.0)


def test_fewer_rows_scale_worse() -> None:
    """A fixed batch: each rank computes less, and sends as much."""
    steps = []
    for ranks in (1, 2, 4, 8):
        part = dataclasses.replace(
            SMALL, region_s=SMALL.region_s / ranks, backward_s=SMALL.backward_s / ranks
        )
        steps.append(scaling.efficiency(0.1, scaling.predicted(part, ranks, NODE)))
    assert steps == sorted(steps, reverse=True)
