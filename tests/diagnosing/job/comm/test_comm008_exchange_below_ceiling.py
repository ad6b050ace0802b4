from __future__ import annotations

import pytest

from diagnosing.job import made
from diagnosing.job.comm.jobs import ceilings, exchanging
from flatout.nouns.profile import Collective

SLOW = Collective("all_reduce", 5.0, 18.0, 12.0, 102.2e6, ranks=8, bus_gb_per_s=10.0)


def test_exchange_below_ceiling() -> None:
    profile = exchanging(SLOW, ceilings=ceilings(8, gb_per_s=200.0))
    finding = made.only("exchange-below-ceiling", profile)
    assert finding.code == "COMM008"
    assert "10.0 GB/s of the 200.0 GB/s" in finding.title
    sent = 1.75 * 102.2
    assert made.saved_ms(finding, profile) == pytest.approx(
        min(12.0, 17.885 - sent / 200), rel=0.01
    )
    assert "nvidia-smi topo -m" in finding.cure.commands


@pytest.mark.parametrize(
    "ceiling",
    [
        pytest.param((), id="not measured"),
        pytest.param(ceilings(2, gb_per_s=200.0), id="over another number of ranks"),
        pytest.param(ceilings(8, gb_per_s=19.0), id="reached"),
    ],
)
def test_nothing_to_compare_with(ceiling: object) -> None:
    assert made.findings("exchange-below-ceiling", exchanging(SLOW, ceilings=ceiling)) == ()


def test_hidden_communication_may_be_slow() -> None:
    hidden = Collective("all_reduce", 5.0, 18.0, 0.5, 102.2e6, ranks=8, bus_gb_per_s=10.0)
    profile = exchanging(hidden, ceilings=ceilings(8, gb_per_s=200.0))
    assert made.findings("exchange-below-ceiling", profile) == ()
