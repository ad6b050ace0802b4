from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from flatout_agent import wire
from flatout_agent.watch.profile.phases import PhaseSteps, phase_steps


@pytest.mark.parametrize("known", [None, wire.SHORT_RUN, 10_000])
def test_a_long_run_has_as_many_as_it_needs(known: int | None) -> None:
    orders = wire.ProfileOrders(steps=9, known_steps=known)
    assert phase_steps(orders) == PhaseSteps(record=9)


@given(st.integers(8, wire.SHORT_RUN - 1), st.integers(1, 50))
def test_the_phases_of_a_short_run_fit_into_it(total: int, steps: int) -> None:
    phases = phase_steps(wire.ProfileOrders(steps=steps, known_steps=total))
    first = 1
    recordings = 1 + phases.record + 1 + phases.detail
    assert (
        first + phases.warmup_most + phases.window_most + phases.sample_most + recordings <= total
    )
    assert min(phases.warmup_least, phases.window_least, phases.sample_least) >= 1
    assert min(phases.record, phases.detail) >= 1
    assert phases.warmup_least <= phases.warmup_most
    assert phases.window_least <= phases.window_most
    assert phases.sample_least <= phases.sample_most
