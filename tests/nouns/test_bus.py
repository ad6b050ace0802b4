from __future__ import annotations

import pytest

from flatout.nouns import bus


@pytest.mark.parametrize(
    ("collective", "ranks", "share"),
    [
        ("all_reduce", 2, 1.0),
        ("all_reduce", 8, 1.75),
        ("all_gather", 4, 3.0),  # of what one rank puts in, the others' parts come
        ("reduce_scatter", 4, 0.75),
        ("all_to_all", 4, 0.75),
        ("broadcast", 4, 1.0),
        ("other", 4, None),
        ("all_reduce", 1, None),
        ("all_reduce", -1, None),
    ],
)
def test_share(collective: str, ranks: int, share: float | None) -> None:
    assert bus.share(collective, ranks) == share


def test_bandwidth() -> None:
    assert bus.gb_per_s("all_reduce", 8, 1e9, 0.01) == pytest.approx(175.0)
    assert bus.gb_per_s("all_reduce", 8, 1e9, 0.0) is None
