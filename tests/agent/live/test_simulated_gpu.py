"""The real decisions on a simulated GPU: most of what is possible within a minute."""

from __future__ import annotations

import pytest

from simulated_gpu import START_S, best_ms, true_ms, tuned

SEEDS = range(12)


@pytest.mark.parametrize("noise", [0.01, 0.05, 0.2])
def test_the_best_set_is_nearly_reached_in_a_minute(noise: float) -> None:
    shares = []
    for seed in SEEDS:
        gpu = tuned(noise, seed)
        assert gpu.clock <= 60.0, "the start is part of the time"
        shares.append(best_ms() / true_ms(frozenset(order.id for order in gpu.on())))
    assert min(shares) >= 0.95


@pytest.mark.parametrize("noise", [0.01, 0.05])
def test_nothing_is_kept_where_nothing_makes_a_difference(noise: float) -> None:
    assert not any(tuned(noise, seed, useless=True).on() for seed in SEEDS)


def test_most_of_the_gain_is_there_within_seconds_of_the_first_step() -> None:
    gpu = tuned(0.05, 0)
    kept = [r for r in gpu.told if r.verdict == "kept"]
    assert kept[0].elapsed_s <= 15
    assert "bf16-autocast" in kept[0].together


@pytest.mark.parametrize("budget_s", [START_S + 2, 20.0, 30.0])
def test_with_little_time_it_ends_in_time(budget_s: float) -> None:
    assert tuned(0.05, 3, budget_s).clock <= budget_s + 1.0
