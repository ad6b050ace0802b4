"""Which calls are kept: spread over an evaluation, within limits, from the last one."""

from __future__ import annotations

import torch

from flatout_agent.capture.calls import Pool, SeenCall, SeenModel, copied, size_bytes


def call(number: int, rows: int = 8) -> SeenCall:
    return SeenCall((torch.full((rows, 2), float(number)),), {})


def numbers(calls: list[SeenCall]) -> list[int]:
    return [int(seen.args[0][0, 0]) for seen in calls]


def offer(pool: Pool, count: int) -> None:
    for number in range(count):
        if pool.wants():
            seen = call(number)
            pool.add(seen, size_bytes(seen.args))


def test_spread_over_all_within_the_limits() -> None:
    pool = Pool(most_calls=8, most_bytes=1 << 20)
    offer(pool, 40)
    kept = numbers(pool.calls)
    assert 4 <= len(kept) <= 8
    assert kept == sorted(kept)
    assert (kept[0], kept[-1] >= 32) == (0, True)
    small = Pool(most_calls=100, most_bytes=3 * 8 * 2 * 4)
    offer(small, 40)
    assert len(small.calls) <= 3


def test_a_call_that_is_too_large_is_left_out() -> None:
    pool = Pool(most_calls=8, most_bytes=10)
    pool.add(call(1), 11)
    assert pool.calls == []


def evaluate(seen: SeenModel, number: int, calls: int, rows: int = 32) -> None:
    for _ in range(calls):
        pool = seen.pool(evaluation=True)
        if pool.wants():
            pool.add(call(number, rows), 1)


def test_the_last_evaluation() -> None:
    seen = SeenModel()
    for number in (1, 2, 3):
        seen.pool(evaluation=False).wants()
        evaluate(seen, number, 4)
    calls, evaluation = seen.calls()
    assert (numbers(calls), evaluation) == ([3, 3, 3, 3], True)


def test_a_look_at_one_sample_does_not_replace_the_evaluation() -> None:
    seen = SeenModel()
    evaluate(seen, 1, 4)
    seen.pool(evaluation=False)
    evaluate(seen, 2, 1, rows=1)
    seen.pool(evaluation=False)
    evaluate(seen, 3, 1, rows=1)
    assert numbers(seen.calls()[0]) == [3, 1, 1, 1, 1]


def test_copies_are_the_calls_own() -> None:
    x = torch.ones(2, requires_grad=True)
    with torch.inference_mode():
        y = torch.ones(2)
        first, second, third = copied([x, x, y])
    assert first is second  # as in the call
    assert not first.requires_grad
    assert not third.is_inference()
    with torch.no_grad():
        x.zero_()
    assert first.tolist() == [1, 1]
